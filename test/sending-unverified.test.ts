/** Mail whose identity lost its verification between submission and the try, in another process. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startDirectMail } from './direct-mail.ts';
import { startTestService } from './harness.ts';
import { mailHost, newDomain } from './proving.ts';

const direct = await startDirectMail({ POSTHORN_ROLES: 'api' });
const { service, sink, dns, makeSender, makeDestination, send, findRecipient, attempts } = direct;
const domain = newDomain();
const identityId = await makeSender(domain);
const from = `ada@${domain}`;

const startSender = () =>
  startTestService({
    DATABASE_URL: service.databaseUrl,
    POSTHORN_ROLES: 'api,send',
    POSTHORN_OUTBOUND: 'direct',
    POSTHORN_MX_PORT: String(sink.port),
    POSTHORN_DNS_SERVERS: dns.address,
    POSTHORN_MAIL_HOST: mailHost,
    POSTHORN_SEND_SCHEDULE: '3600',
  });

test('the attempt says that the identity is not verified', async () => {
  const dest = newDomain();
  makeDestination(dest);
  const { id } = await send({ identityId, from, to: `a@${dest}` });
  await service.sql`update identities set status = 'failed' where id = ${identityId}`;
  const sender = await startSender();
  await findRecipient(id, ({ attemptCount }) => attemptCount === 1);
  const [{ error, host, response }] = await attempts(id);
  assert.deepEqual({ error, host, response }, { error: 'identity_not_verified', host: null, response: null });
  await sender.stop();
});

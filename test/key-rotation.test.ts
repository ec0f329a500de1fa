/**
 * The drill of docs/operations.md for a new secret key: with both given, all goes on; `posthorn reseal` moves what is stored to
 * the new one beside the running service; then the old one can go, and before that a start without it is refused.
 */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { after, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { newId } from '../src/lib/ids.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { providerContext } from '../src/store/providers.ts';
import { createSmtpAccount, findMailServer } from '../src/store/smtp-accounts.ts';
import { makeDatabase, startTestService } from './harness.ts';
import { posthorn } from './programs.ts';
import { startReceiver } from './receiver.ts';

const database = await makeDatabase();
const receiver = await startReceiver();
after(async () => {
  await receiver.close();
  await database.drop();
});
const [older, newer] = [randomBytes(32).toString('base64'), randomBytes(32).toString('base64')];

const settings = (keys: string) => ({ DATABASE_URL: database.url, POSTHORN_SECRET_KEY: keys });
const keyIdOf = (key: string) => makeSealer([Buffer.from(key, 'base64')]).keyIds[0];
const doctor = (keys: string) =>
  posthorn(['doctor'], { ...settings(keys), PORT: '0', POSTHORN_SMTP_PORT: '0' });
const start = (keys: string) => startTestService(settings(keys));
const account = {
  ...{ id: newId(), label: 'Post', imap: null },
  smtp: {
    ...{ host: 'smtp.example', port: 587, secure: false, username: 'ada' },
    login: { password: 'correct horse' },
  },
};
type Service = Awaited<ReturnType<typeof start>>;

async function assertDelivers(service: Service, secret: string, path = '/'): Promise<void> {
  const eventId = await service.makeEvent();
  const [request] = await receiver.received(
    1,
    ({ headers, url }) => headers['webhook-id'] === eventId && url === path,
  );
  assert.ok(request);
  new Webhook(secret).verify(request.body.toString(), request.headers as Record<string, string>);
}

test('reseal refuses while a running process does not have the new key, and names the process', async () => {
  const running = await start(older);
  const { id } = await running.makeWebhook(receiver.url('/reseal'));
  const reseal = () => posthorn(['reseal'], settings(`${newer},${older}`));
  const refused = await reseal();
  assert.equal(refused.code, 1, refused.output);
  const name = `pid ${process.pid} on ${hostname()}: api, smtp, deliver, send, verify`;
  assert.ok(refused.output.includes(name), refused.output);
  assert.match(
    refused.output,
    new RegExp(`do not have the first key of POSTHORN_SECRET_KEY \\(${keyIdOf(newer)}\\)`),
  );
  assert.equal((await running.call('GET', `/webhooks/${id}/secret`)).status, 200, 'nothing was changed');

  // As after kill -9: the row stays, and is too old after a minute.
  await running.sql`
    insert into processes (id, name, roles, version, key_ids, seen_at)
    values (${randomUUID()}, 'killed', '{api}', '0', '{}', now() - interval '61 seconds')`;
  await running.stop();
  const done = await reseal();
  assert.equal(done.code, 0, done.output);
  const back = await start(`${newer},${older}`);
  assert.deepEqual(
    [...(await back.sql`select key_ids from processes where name <> 'killed'`)],
    [{ key_ids: [keyIdOf(newer), keyIdOf(older)] }],
  );
  await back.call('DELETE', `/webhooks/${id}`);
  await back.stop();
  await posthorn(['reseal'], settings(`${older},${newer}`));
});

test('from one secret key to another, without a delivery that is not made or not signed as before', async (t) => {
  const first = await start(older);
  const made = await first.makeWebhook(receiver.url());
  const { body: rotated } = await first.call('POST', `/webhooks/${made.id}/secret/rotate`);
  const webhook = { id: made.id, secret: rotated.secret };
  const domain = await first.call('POST', '/identities', { body: { value: 'rotation.example' } });
  assert.equal(domain.status, 201, domain.text);
  const provider = await first.call('POST', '/providers', {
    body: { kind: 'postmark', credentials: { serverToken: 'rotated' } },
  });
  assert.equal(provider.status, 201, provider.text);
  await createSmtpAccount(
    first.sql,
    makeSealer([Buffer.from(older, 'base64')]),
    first.user.userId,
    account,
    100,
  );
  await assertDelivers(first, webhook.secret);
  await first.stop();

  await assert.rejects(start(newer), (error: Error) => {
    assert.match(error.message, new RegExp(`6 encrypted under key ${keyIdOf(older)}\\. Add the key`));
    return true;
  });
  const refused = await doctor(newer);
  assert.equal(refused.code, 1);
  assert.match(refused.output, new RegExp(`✗ secret key .*6 encrypted under key ${keyIdOf(older)}`));

  // The other processes learn to open what the new key seals before one seals with it.
  const reading = await start(`${older},${newer}`);
  const both = await start(`${newer},${older}`);
  const { id, secret } = await both.makeWebhook(receiver.url('/new'));
  await assertDelivers(both, webhook.secret);
  await assertDelivers(both, secret, '/new');
  const { body: read } = await reading.call('GET', `/webhooks/${id}/secret`);
  assert.equal(read.secret, secret);
  await reading.stop();
  assert.match((await doctor(`${newer},${older}`)).output, /✓ secret key .*6 use an older key/);

  const resealed = await posthorn(['reseal', '--json'], settings(`${newer},${older}`));
  assert.deepEqual(JSON.parse(resealed.output), { resealed: 6 });
  await assertDelivers(both, webhook.secret);
  const again = await posthorn(['reseal', '--json'], settings(`${newer},${older}`));
  assert.deepEqual(JSON.parse(again.output), { resealed: 0 });
  assert.match((await doctor(newer)).output, /✓ secret key .*decrypts all stored secrets\n/);
  await both.stop();

  const last = await start(newer);
  t.after(() => last.stop());
  await assertDelivers(last, webhook.secret);
  const { body: kept } = await last.call('GET', `/webhooks/${webhook.id}/secret`);
  assert.equal(kept.secret, webhook.secret);
  const [key] = await last.sql`select private_key, identity_id, selector from dkim_keys`;
  const opened = makeSealer([Buffer.from(newer, 'base64')]).open(
    key?.private_key,
    `dkim ${key?.identity_id} ${key?.selector}`,
  );
  assert.match(opened, /PRIVATE KEY/);
  const { body: shown } = await last.call('GET', `/providers/${provider.body.id}`);
  assert.equal(shown.inboundUrl.split('/hooks/')[1], provider.body.inboundUrl.split('/hooks/')[1]);
  const [{ credentials } = {}] = await last.sql`select credentials from providers`;
  const context = providerContext(provider.body.id, 'credentials');
  assert.match(makeSealer([Buffer.from(newer, 'base64')]).open(credentials, context), /rotated/);
  const ref = { ownerId: last.user.userId, accountId: account.id, side: 'smtp' } as const;
  const found = await findMailServer(last.sql, makeSealer([Buffer.from(newer, 'base64')]), ref);
  assert.deepEqual(found?.server, account.smtp);
});

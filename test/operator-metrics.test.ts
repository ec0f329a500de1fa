/** The metrics that tell an operator what users lost: deliveries, webhooks, verified identities, and soon the certificate. */
import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { startTestService, waitFor } from './harness.ts';
import { newDomain, startProving, withoutLoop } from './proving.ts';
import { answer, startReceiver } from './receiver.ts';

const receiver = await startReceiver();
after(() => receiver.close());
const fixtures = path.join(import.meta.dirname, 'fixtures/tls');
const certFile = path.join(fixtures, 'server.pem');
const service = await startTestService({
  ...{ POSTHORN_TLS_CERT: certFile, POSTHORN_TLS_KEY: path.join(fixtures, 'server-key.pem') },
  POSTHORN_RETRY_SCHEDULE: '0',
});

async function readMetric(name: string, of = service): Promise<number> {
  const { text } = await of.call('GET', '/metrics', { as: null });
  const line = text.split('\n').find((line) => line.startsWith(`${name} `));
  return Number(line?.slice(name.length + 1) ?? Number.NaN);
}

const ended = (outcome: string) => `posthorn_deliveries_ended_total{outcome="${outcome}"}`;
const disabled = (reason: string) => `posthorn_webhooks_disabled_total{reason="${reason}"}`;

test('deliveries that ended, and webhooks that were disabled, are counted from 0 on', async () => {
  for (const name of [
    ended('delivered'),
    ended('failed'),
    ended('cancelled'),
    disabled('gone'),
    disabled('failing'),
  ])
    assert.equal(await readMetric(name), 0, name);
  receiver.behaveAt('/gone', answer(410));
  receiver.behaveAt('/failing', answer(500));
  const make = (at: string) => service.makeWebhook(receiver.url(at));
  const [well, gone, failing] = [await make('/well'), await make('/gone'), await make('/failing')];
  await service.sql`
    update webhooks set first_failure_at = now() - interval '6 days', failed_tries = 20 where id = ${failing.id}`;
  const eventId = await service.makeEvent();
  for (const webhook of [well, gone]) await service.findDelivery(eventId, webhook);
  await waitFor('both to be disabled', async () => (await readMetric(disabled('failing'))) === 1);
  await waitFor('the other', async () => (await readMetric(disabled('gone'))) === 1);
  assert.deepEqual([await readMetric(ended('delivered')), await readMetric(ended('failed'))], [1, 1]);
  const told = service.logged.filter(({ msg }) => msg === 'webhook disabled');
  assert.deepEqual(
    new Set(told.map(({ webhookId, reason }) => `${webhookId} ${reason}`)),
    new Set([`${gone.id} gone`, `${failing.id} failing`]),
  );
});

test('a domain that lost its verification is counted once', async () => {
  const { service, dns, add, publish, statusAfterCheck, verify, age } = await startProving(withoutLoop);
  const domain = newDomain();
  const owner = await add(domain);
  await add(`ada@${domain}`);
  await publish(domain, [owner]);
  assert.equal(await statusAfterCheck(owner), 'verified');
  assert.equal(await readMetric('posthorn_identities_lost_total', service), 0);
  dns.answer(`_posthorn.${domain}`, 'NXDOMAIN');
  await verify(owner);
  await age(owner, 73);
  assert.equal(await statusAfterCheck(owner), 'failed');
  assert.equal(await readMetric('posthorn_identities_lost_total', service), 1);
});

test('the expiry of the certificate is told, and nothing without one', async () => {
  const name = 'posthorn_smtp_certificate_expiry_timestamp_seconds';
  const { validToDate } = new X509Certificate(readFileSync(certFile));
  assert.equal(await readMetric(name), validToDate.getTime() / 1000);
  const plain = await startTestService({ POSTHORN_ROLES: 'api' });
  assert.equal(await readMetric(name, plain), Number.NaN);
});

test('the version is a label', async () => {
  const { version } = JSON.parse(readFileSync(path.join(import.meta.dirname, '../package.json'), 'utf8'));
  assert.equal(await readMetric(`posthorn_build_info{version="${version}",node="${process.version}"}`), 1);
});

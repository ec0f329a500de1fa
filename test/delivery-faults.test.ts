/** Receivers that misbehave: each ends as one try with its reason on record, and none costs memory or holds up another. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { startDns } from './dns.ts';
import { startTestService, type TestWebhook, waitFor } from './harness.ts';
import {
  answer,
  type Behaviour,
  type Certificate,
  drip,
  dripHead,
  flood,
  floodHead,
  hang,
  hangUp,
  raw,
  readAuthority,
  readCertificate,
  reset,
  startReceiver,
} from './receiver.ts';
import { deliveryKey, startTestDelivery } from './test-delivery.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api', POSTHORN_SECRET_KEY: deliveryKey });
const { sql, call, makeWebhook, makeEvent, findDelivery } = service;
const receiver = await startReceiver();
const dns = await startDns();
after(async () => {
  await receiver.close();
  await dns.close();
});

const gigabyte = 2 ** 30;
let flooded = 0;
const pour = (): Behaviour =>
  flood(gigabyte, (bytes) => {
    flooded += bytes;
  });
const reply = 'HTTP/1.1 200 OK\r\n';

/** What the receiver does; the error on record, null for a delivered one; the status on record. */
const cases: [string, Behaviour, string | null, number | null][] = [
  ['takes the request and never answers', hang(), 'response_timeout', null],
  ['answers a byte of the head at a time', dripHead(20), 'response_timeout', null],
  ['answers a byte of the body at a time', drip(20), 'body_timeout', 200],
  ['promises more than it sends, and stays', raw(`${reply}content-length: 9\r\n\r\nab`), 'body_timeout', 200],
  [
    'promises more than it sends, and closes',
    raw(`${reply}content-length: 9\r\n\r\nab`, 'close'),
    'connection_lost',
    200,
  ],
  ['floods the head', floodHead(), 'invalid_response', null],
  ['floods 1 GB after a 200', pour(), null, 200],
  ['resets', reset(), 'connection_lost', null],
  [
    'resets in the middle of the body',
    raw(`${reply}content-length: 9\r\n\r\nab`, 'reset'),
    'connection_lost',
    200,
  ],
  ['hangs up', hangUp(), 'connection_lost', null],
  ['answers garbage', raw('\x00\x01\x02 no HTTP at all\r\n\r\n', 'close'), 'invalid_response', null],
  ['redirects', answer(302, { location: 'http://127.0.0.1:1/' }), 'redirect', 302],
  ['is gone', answer(410), 'gone', 410],
  ['asks for patience', answer(429, { 'retry-after': '1' }), 'rate_limited', 429],
  ['fails', answer(500, {}, 'sorry'), 'http_error', 500],
  ['is well', answer(204), null, 204],
];

describe('one event to a receiver that', async () => {
  const webhooks = new Map<string, TestWebhook>();
  for (const [name, behaviour] of cases) {
    const path = `/${name.replaceAll(/\W+/g, '-')}`;
    receiver.behaveAt(path, behaviour);
    webhooks.set(name, await makeWebhook(receiver.url(path)));
  }
  const eventId = await makeEvent();
  const { stop, logged } = startTestDelivery(service.databaseUrl);
  after(async () => {
    await stop();
    for (const { id } of webhooks.values()) await call('DELETE', `/webhooks/${id}`);
  });

  for (const [name, , error, status] of cases) {
    test(name, async () => {
      const webhook = webhooks.get(name) as TestWebhook;
      const delivery = await findDelivery(eventId, webhook);
      assert.equal(delivery.status, error === null ? 'delivered' : 'failed');
      assert.equal(delivery.attemptCount, 1);
      assert.equal(delivery.attempts.length, 1);
      const [tried] = delivery.attempts;
      assert.equal(tried.error, error);
      assert.equal(tried.responseStatus, status);
      assert.ok((tried.responseBody ?? '').length <= 16 * 1024);
      const lines = await waitFor('the line of the end', () => {
        const lines = logged.filter((line) => line.webhookId === webhook.id && line.deliveryId !== undefined);
        return lines.length > 0 ? lines : null;
      });
      assert.deepEqual(
        lines.map((line) => [line.level, line.error, line.deliveryId]),
        [error === null ? ['info', undefined, delivery.id] : ['warn', error, delivery.id]],
      );
    });
  }

  test('and had its try once, whatever it did', async () => {
    assert.equal(receiver.requests.length, cases.length);
    await waitFor('the end of every connection that hung', () => receiver.openConnections() <= cases.length);
  });
});

describe('a target that', () => {
  async function tried(url: string, settings: Parameters<typeof startTestDelivery>[1] = {}) {
    const webhook = await makeWebhook('https://example.com/');
    // What registration would refuse, or look up: it may have been fine then.
    await sql`update webhooks set url = ${url} where id = ${webhook.id}`;
    const loop = startTestDelivery(service.databaseUrl, { dnsServers: [dns.address], ...settings });
    const owned = await makeEvent();
    loop.wake();
    const { attempts } = await findDelivery(owned, webhook);
    await call('DELETE', `/webhooks/${webhook.id}`);
    await loop.stop();
    return attempts.map((one: Record<string, unknown>) => [one.error, one.responseStatus]);
  }

  test('nobody listens on', async () => {
    assert.deepEqual(await tried('http://127.0.0.1:1/'), [['connect_failed', null]]);
  });

  test('does not exist in DNS', async () => {
    assert.deepEqual(await tried('https://nowhere.example/'), [['dns_failed', null]]);
  });

  test('has come to lead inside', async () => {
    dns.answer('inside.example', { A: ['10.0.0.1'] });
    assert.deepEqual(await tried('https://inside.example/'), [['target_refused', null]]);
    assert.deepEqual(await tried('http://169.254.169.254/latest/'), [['target_refused', null]]);
  });

  const certificates: [Certificate, string | null][] = [
    ['self-signed', 'tls_failed'],
    ['expired', 'tls_failed'],
    ['other-name', 'tls_failed'],
    ['good', null],
  ];
  for (const [name, error] of certificates) {
    test(`has a certificate that is ${name}`, async (t) => {
      const secure = await startReceiver({ tls: readCertificate(name) });
      t.after(() => secure.close());
      const came = await tried(secure.url('/'), { ca: readAuthority() });
      assert.deepEqual(came, [[error, error ? null : 204]]);
      assert.equal(secure.requests.length, error ? 0 : 1);
    });
  }
});

test('forty floods of 1 GB at once leave memory flat', async () => {
  const before = process.memoryUsage().rss;
  flooded = 0;
  receiver.behaveAt('/floods', pour());
  const webhook = await makeWebhook(receiver.url('/floods'));
  const events = await Promise.all(Array.from({ length: 40 }, () => makeEvent()));
  const { stop } = startTestDelivery(service.databaseUrl);
  for (const eventId of events) assert.equal((await findDelivery(eventId, webhook)).status, 'delivered');
  await stop();
  assert.ok(flooded < 40 * 16 * 2 ** 20, `${flooded} bytes went out`);
  assert.ok(process.memoryUsage().rss - before < 200 * 2 ** 20);
});

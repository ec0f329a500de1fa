/** From event to receiver: what is sent, byte for byte, and what is kept of it. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { newId } from '../src/lib/ids.ts';
import { readVersion } from '../src/lib/version.ts';
import { recordTries } from '../src/store/delivery-queue.ts';
import { recordEvent } from '../src/store/events.ts';
import { assertProblem, startTestService, type TestWebhook, waitFor } from './harness.ts';
import { answer, type ReceivedRequest, startReceiver } from './receiver.ts';

const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '0,0' });
const { user, sql, call, makeWebhook, makeEvent, findDelivery } = service;
const receiver = await startReceiver();
after(() => receiver.close());

const of = (eventId: string) => (request: ReceivedRequest) => request.headers['webhook-id'] === eventId;

function verifies(secret: string, { body, headers }: ReceivedRequest): boolean {
  try {
    new Webhook(secret).verify(body, headers as Record<string, string>);
    return true;
  } catch {
    return false;
  }
}

async function firstOf(eventId: string): Promise<ReceivedRequest> {
  const [request] = await receiver.received(1, of(eventId));
  assert.ok(request);
  return request;
}

describe('what is sent', () => {
  test('exactly event and data at top level, the data byte for byte as it was recorded', async () => {
    const webhook = await makeWebhook(receiver.url('/exact?a=1&b=%20'));
    const data =
      '{ "z" : 1.0,"a":[ ],\t"big":12345678901234567890, "é":"\\u00e9 \\ud83d\\ude00 \\u0000 😀", "z":1e400 }';
    const eventId = await makeEvent({ data });
    const request = await firstOf(eventId);
    assert.equal(request.method, 'POST');
    assert.equal(request.url, '/exact?a=1&b=%20');
    assert.equal(request.body.toString(), `{"event":"message.received","data":${data}}`);
    assert.deepEqual(Object.keys(JSON.parse(request.body.toString())), ['event', 'data']);
    assert.ok(verifies(webhook.secret, request));
  });

  test('the headers that the contract names, and none that tells more', async () => {
    await makeWebhook(receiver.url('/headers'));
    const eventId = await makeEvent();
    const [request] = await receiver.received(1, (one) => one.url === '/headers' && of(eventId)(one));
    assert.ok(request);
    const { 'webhook-timestamp': timestamp, 'webhook-signature': signature, ...rest } = request.headers;
    assert.deepEqual(rest, {
      host: `127.0.0.1:${receiver.port}`,
      connection: 'keep-alive',
      'content-length': String(request.body.length),
      'content-type': 'application/json',
      'user-agent': `Posthorn/${readVersion()}`,
      'webhook-id': eventId,
    });
    assert.match(String(timestamp), /^\d{10}$/);
    assert.match(String(signature), /^v1,[A-Za-z0-9+/]{43}=$/);
  });

  test('every webhook that listens gets the event once, signed with its own secret', async () => {
    const owner = await service.makeUser();
    const webhooks = await Promise.all(
      ['/one', '/two', '/three'].map((path) => makeWebhook(receiver.url(path), {}, owner)),
    );
    const eventId = await makeEvent({ ownerId: owner.userId });
    const requests = await receiver.received(3, of(eventId));
    assert.deepEqual(requests.map(({ url }) => url).sort(), ['/one', '/three', '/two']);
    for (const [index, path] of ['/one', '/two', '/three'].entries()) {
      const request = requests.find(({ url }) => url === path) as ReceivedRequest;
      const verifying = webhooks.filter(({ secret }) => verifies(secret, request));
      assert.deepEqual(verifying, [webhooks[index]]);
    }
  });

  test('nothing, when the transaction of the event is rolled back', async () => {
    const owner = await service.makeUser();
    await makeWebhook(receiver.url('/rolled-back'), {}, owner);
    const event = { ownerId: owner.userId, event: 'message.received', identityId: null, data: '{}' };
    const lost = newId();
    const rolledBack = sql.begin(async (sql) => {
      assert.equal((await recordEvent(sql, { ...event, id: lost })).deliveries, 1);
      throw new Error('after all not');
    });
    await assert.rejects(rolledBack, /after all not/);
    const kept = await makeEvent(event);
    await firstOf(kept);
    assert.equal(receiver.requests.filter(of(lost)).length, 0);
    assert.equal((await sql`select from deliveries where event_id = ${lost}`).count, 0);
    assert.equal((await call('GET', `/events/${lost}`, { as: owner })).status, 404);
  });
});

describe('every try', () => {
  test('has the same webhook-id and body, its own timestamp, and a line in the log', async () => {
    const webhook = await makeWebhook(receiver.url('/tries'));
    receiver.behaveAt('/tries', answer(500, { 'x-why': 'broken' }, 'no'));
    const eventId = await makeEvent();
    const mine = (request: ReceivedRequest) => request.url === '/tries' && of(eventId)(request);
    const failed = await findDelivery(eventId, webhook);
    assert.equal(failed.status, 'failed');
    assert.equal(failed.attemptCount, 3);

    const second = Math.floor(Date.now() / 1000);
    await waitFor('another second', () => Math.floor(Date.now() / 1000) > second);
    receiver.behaveAt('/tries', answer(200, { 'x-why': 'mended' }, 'yes'));
    await call('POST', `/deliveries/${failed.id}/redeliver`);
    const requests = await receiver.received(4, mine);
    const delivered = await findDelivery(eventId, webhook);

    assert.equal(new Set(requests.map(({ body }) => body.toString())).size, 1);
    for (const request of requests) assert.ok(verifies(webhook.secret, request));
    const timestamps = requests.map(({ headers }) => Number(headers['webhook-timestamp']));
    assert.ok((timestamps[3] ?? 0) > Math.max(...timestamps.slice(0, 3)));
    assert.deepEqual(
      delivered.attempts.map((tried: Record<string, unknown>) => [
        tried.responseStatus,
        tried.responseBody,
        tried.error,
        (tried.responseHeaders as Record<string, string>)['x-why'],
      ]),
      [...Array.from({ length: 3 }, () => [500, 'no', 'http_error', 'broken']), [200, 'yes', null, 'mended']],
    );
  });

  test('of an answer with NULs and bytes that are no UTF-8 is recorded', async () => {
    const webhook = await makeWebhook(receiver.url('/bytes'));
    const bytes = Buffer.from([0x61, 0x00, 0xff, 0xfe, 0xc3, 0x28, 0x62]);
    receiver.behaveAt('/bytes', answer(200, { 'x-odd': 'caf\u00e9' }, bytes));
    const { attempts, status } = await findDelivery(await makeEvent(), webhook);
    assert.equal(status, 'delivered');
    assert.equal(attempts[0].responseBody, 'a\ufffd\ufffd\ufffd(b');
    assert.equal(attempts[0].responseHeaders['x-odd'], 'caf\u00e9');
  });

  test('of an answer that PostgreSQL will not store is recorded without it, and the others of its batch whole', async () => {
    const webhook = await makeWebhook(receiver.url('/fine'), { enabled: false });
    const token = newId();
    const ids = [await prepared(webhook, token), await prepared(webhook, token)];
    const tried = {
      status: 'delivered' as const,
      waitSeconds: null,
      durationMs: 1,
      responseStatus: 200,
      responseHeaders: '{}',
      error: null,
      errorDetail: null,
      tries: 0,
      startedAt: performance.now(),
    };
    const recorded = await recordTries(
      sql,
      ids.map((id, index) => ({ ...tried, id, token, responseBody: index === 0 ? 'nul: \0' : 'fine' })),
    );
    assert.deepEqual([...recorded].sort(), [...ids].sort());
    for (const [index, id] of ids.entries()) {
      const { attempts, status } = (await call('GET', `/deliveries/${id}`)).body;
      assert.equal(status, 'delivered');
      assert.equal(attempts[0].responseStatus, 200);
      assert.equal(attempts[0].responseBody, index === 0 ? null : 'fine');
    }
  });
});

/** A delivery under that lease, of a webhook that is off, so that no loop claims it. */
async function prepared(webhook: TestWebhook, token: string): Promise<string> {
  const eventId = await makeEvent({ ownerId: user.userId });
  const [row] = await sql`
    insert into delivery_queue (id, owner_id, event_id, webhook_id, event, lease_token, lease_until)
    values (delivery_id(${eventId}, ${webhook.id}), ${user.userId}, ${eventId}, ${webhook.id}, 'message.received',
      ${token}, now() + interval '20 seconds')
    returning id`;
  return row?.id;
}

describe('during the rotation of a secret', () => {
  test('at most ten secrets sign along; one rotation more is 429 and says until when', async () => {
    const webhook = await makeWebhook(receiver.url('/rotated-often'));
    const rotate = () => call('POST', `/webhooks/${webhook.id}/secret/rotate`);
    for (let n = 0; n < 10; n += 1) assert.equal((await rotate()).status, 200);
    const refused = await rotate();
    assertProblem(refused, 429, 'rate_limited');
    const seconds = Number(refused.headers.get('retry-after'));
    assert.ok(seconds > 86_000 && seconds <= 86_400, String(seconds));
    await sql`
      update retired_webhook_secrets set retired_at = now() - interval '25 hours'
      where ctid = (select ctid from retired_webhook_secrets where webhook_id = ${webhook.id} limit 1)`;
    assert.equal((await rotate()).status, 200);
  });

  test('old and new verify for a day, then the new one alone', async () => {
    const webhook = await makeWebhook(receiver.url('/rotated'));
    const rotate = async () => (await call('POST', `/webhooks/${webhook.id}/secret/rotate`)).body.secret;
    const secrets = [webhook.secret, await rotate(), await rotate()];
    const verifying = async () => {
      const eventId = await makeEvent();
      const [request] = await receiver.received(1, (one) => one.url === '/rotated' && of(eventId)(one));
      return secrets.map((secret) => verifies(secret, request as ReceivedRequest));
    };
    assert.deepEqual(await verifying(), [true, true, true]);

    const age = (hours: number) => sql`
      update retired_webhook_secrets set retired_at = retired_at - ${hours} * interval '1 hour'
      where webhook_id = ${webhook.id}`;
    await age(23.9);
    assert.deepEqual(await verifying(), [true, true, true]);
    await age(0.2);
    assert.deepEqual(await verifying(), [false, false, true]);
  });
});

/** `DELETE /messages/{id}`: the content goes at once, and the log of what happened stays. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { assertProblem, startTestService, waitFor } from './harness.ts';
import { answer, startReceiver } from './receiver.ts';

const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '3600' });
const { call, sql } = service;
const receiver = await startReceiver();
after(() => receiver.close());

async function receive(size = 10): Promise<string> {
  const headers = { 'content-type': 'message/rfc822' };
  const body = `Subject: ${newId()}\r\n\r\n${'x'.repeat(size)}\r\n`;
  const taken = await call('POST', '/inbound?recipient=ada@deleted.example', { headers, body });
  assert.equal(taken.status, 202, taken.text);
  return taken.body.messageIds[0];
}

const { body: identity } = await call('POST', '/identities', { body: { value: 'ada@deleted.example' } });

test('content, raw bytes and events are gone; an ended delivery stays and cannot be sent again; a waiting one is gone', async () => {
  receiver.behaveAt('/down', answer(500));
  const fine = await service.makeWebhook(receiver.url('/fine'));
  const down = await service.makeWebhook(receiver.url('/down'));
  const id = await receive(2_000_000);
  const [{ id: eventId }] = (await call('GET', '/events?limit=1')).body;
  const ended = await service.findDelivery(eventId, fine);
  const waiting = await service.findDelivery(eventId, down, ({ attemptCount }) => attemptCount === 1);
  const { status, text } = await call('DELETE', `/messages/${id}`);
  assert.deepEqual([status, text], [204, '']);
  for (const path of ['', '/raw', '/attachments/0', '/attempts'])
    assertProblem(await call('GET', `/messages/${id}${path}`), 404, 'not_found');
  assertProblem(await call('GET', `/events/${eventId}`), 404, 'not_found');
  assertProblem(await call('DELETE', `/messages/${id}`), 404, 'not_found');
  assert.deepEqual(await sql`select from raw_chunks`.then(({ count }) => count), 0);
  const kept = await call('GET', `/deliveries/${ended.id}`);
  assert.deepEqual([kept.status, kept.body.status, kept.body.attempts.length], [200, 'delivered', 1]);
  assertProblem(await call('POST', `/deliveries/${ended.id}/redeliver`), 409, 'message_deleted');
  assertProblem(await call('GET', `/deliveries/${waiting.id}`), 404, 'not_found');
  assert.deepEqual((await call('GET', '/messages')).body, []);
});

test('a message that waits to be sent is not sent', async () => {
  const sendAt = new Date(Date.now() + 3_600_000).toISOString();
  const body = { identityId: identity.id, to: 'bob@dest.example', subject: 'Later', text: 'Later', sendAt };
  const { body: message } = await call('POST', '/messages', { body });
  assert.equal((await call('DELETE', `/messages/${message.id}`)).status, 204);
  const left =
    await sql`select from send_queue union all select from recipients union all select from outgoing`;
  assert.equal(left.count, 0);
});

test('a replay skips it', async () => {
  const since = new Date().toISOString();
  const id = await receive();
  const kept = await receive();
  await call('DELETE', `/messages/${id}`);
  const late = await service.makeWebhook(receiver.url('/late'));
  const { headers } = await call('POST', `/webhooks/${late.id}/replay`, { body: { since } });
  const path = headers.get('location') ?? '';
  await waitFor('the replay', async () => (await call('GET', path)).body.completedAt);
  const posted = await receiver.received(1, ({ url }) => url === '/late');
  assert.deepEqual(
    posted.map(({ body }) => JSON.parse(String(body)).data.message.id),
    [kept],
  );
});

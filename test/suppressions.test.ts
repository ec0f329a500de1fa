import assert from 'node:assert/strict';
import { test } from 'node:test';
import { assertProblem, startTestService } from './harness.ts';
import { openOutbox } from './outbox.ts';

const service = await startTestService({ POSTHORN_SEND_SCHEDULE: '3600' });
const { call, sql } = service;
const { makeIdentity, send, findEnded, findMessage, events } = openOutbox(service);
const identityId = await makeIdentity('ada@sender.example');
const list = async (query = '', as = service.user) =>
  (await call('GET', `/suppressions${query}`, { as })).body;

test('create, find, list, delete; the case of letters does not matter', async () => {
  const made = await call('POST', '/suppressions', { body: { address: 'Bob@Dest.example' } });
  assert.equal(made.status, 201, made.text);
  const { createdAt, ...record } = made.body;
  assert.deepEqual(record, { address: 'Bob@dest.example', reason: 'manual', messageId: null });
  assert.match(createdAt, /^\d{4}-.*Z$/);
  assert.match(made.headers.get('location') ?? '', /\/suppressions\/Bob%40dest\.example$/);
  const again = await call('POST', '/suppressions', {
    body: { address: 'bob@dest.example', reason: 'complaint' },
  });
  assert.deepEqual(again.body, made.body);
  const second = await call('POST', '/suppressions', {
    body: { address: 'x+y@dest.example', reason: 'bounce' },
  });
  assert.deepEqual(await list(), [second.body, made.body]);
  assert.deepEqual(await list('?address=BOB@dest.example'), [made.body]);
  assert.deepEqual(await list('?address=nobody@dest.example'), []);
  const page = await call('GET', '/suppressions?limit=1');
  assert.deepEqual(page.body, [second.body]);
  assert.match(page.headers.get('link') ?? '', /rel="next"/);
  const path = '/suppressions/BOB%40DEST.example';
  const other = await service.makeUser();
  assert.deepEqual(await list('', other), []);
  assertProblem(await call('DELETE', path, { as: other }), 404, 'not_found');
  assert.equal((await call('DELETE', path)).status, 204);
  assertProblem(await call('DELETE', path), 404, 'not_found');
  assertProblem(await call('DELETE', '/suppressions/nonsense'), 404, 'not_found');
  assert.deepEqual(await list(), [second.body]);
  for (const body of [
    {},
    { address: 'no' },
    { address: 'dest.example' },
    { address: 'a@b.example', reason: 'x' },
  ])
    assertProblem(await call('POST', '/suppressions', { body }), 400, 'invalid_body');
  assertProblem(await call('GET', '/suppressions?address=no'), 400, 'invalid_query');
});

test('mail to a suppressed address is not sent, for this owner alone', async () => {
  await call('POST', '/suppressions', { body: { address: 'eve@dest.example' } });
  const sent = await send({ identityId, to: 'EVE@dest.example' });
  assert.equal(sent.sending.status, 'suppressed');
  const [event, ...others] = await events(sent.id);
  assert.deepEqual(others, []);
  assert.equal(event?.event, 'message.bounced');
  assert.equal(event?.data.recipient.status, 'suppressed');
  assert.equal(event?.data.recipient.bounce.source, 'suppression');
  assert.deepEqual((await call('GET', `/messages/${sent.id}/attempts`)).body, []);
  const other = await service.makeUser();
  const theirs = await makeIdentity('ada@other.example', { as: other });
  const fine = await send({ identityId: theirs, to: 'eve@dest.example' }, { as: other });
  assert.equal(fine.sending.status, 'queued');
});

test('mail goes again when the suppression is removed; what was suppressed stays so', async () => {
  await call('POST', '/suppressions', { body: { address: 'back@dest.example' } });
  const before = await send({ identityId, to: 'back@dest.example' });
  assert.equal(before.sending.status, 'suppressed');
  assert.equal((await call('DELETE', '/suppressions/back@dest.example')).status, 204);
  const { id } = await send({ identityId, to: 'back@dest.example' });
  assert.equal((await findEnded(id)).sending.status, 'delivered');
  assert.equal((await findMessage(before.id)).sending.status, 'suppressed');
});

test('mail that waits is sent if the suppression is removed in time', async () => {
  const sendAt = new Date(Date.now() + 3_600_000).toISOString();
  const { id } = await send({ identityId, to: 'short@dest.example', sendAt });
  await call('POST', '/suppressions', { body: { address: 'short@dest.example' } });
  await call('DELETE', '/suppressions/short@dest.example');
  await sql`update send_queue set next_attempt_at = now() where message_id = ${id}`;
  assert.equal((await findEnded(id)).sending.status, 'delivered');
});

test('an address that is suppressed while its mail waits is not sent to', async () => {
  const sendAt = new Date(Date.now() + 3_600_000).toISOString();
  const { id } = await send({ identityId, to: ['late@dest.example', 'fine@dest.example'], sendAt });
  await call('POST', '/suppressions', { body: { address: 'late@dest.example' } });
  await sql`update send_queue set next_attempt_at = now() where message_id = ${id}`;
  const { sending } = await findEnded(id);
  assert.deepEqual(
    sending.recipients.map(({ status }: { status: string }) => status),
    ['suppressed', 'delivered'],
  );
  assert.equal(sending.status, 'mixed');
  assert.equal((await events(id)).filter(({ event }) => event === 'message.bounced').length, 1);
});

test('capture never suppresses', async () => {
  const { id } = await send({ identityId, to: 'a@bounce.test' });
  await findEnded(id);
  const [event] = await events(id);
  assert.deepEqual(event?.data.recipient.bounce, { type: 'hard', source: 'smtp' });
  assert.deepEqual(event?.data.recipient.response.enhanced, '5.1.1');
  assert.deepEqual(await list('?address=a@bounce.test'), []);
  assert.equal((await findMessage(id)).sending.status, 'bounced');
});

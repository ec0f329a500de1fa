/** Reports that reach an identity in the ordinary way, about mail that left through an SMTP account. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { startTestService, type TestUser } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { compose, lines } from './report-messages.ts';
import { startSink } from './smtp-sink.ts';

const sink = await startSink({ extensions: ['AUTH PLAIN'] });
const relay = await startSink();
const service = await startTestService({
  POSTHORN_RELAY_URL: `smtp://127.0.0.1:${relay.port}`,
  POSTHORN_ROLES: 'api,send',
});
const { call } = service;
const { send, findEnded, events } = openOutbox(service);
const smtp = { host: '127.0.0.1', port: sink.port, username: 'ada', password: 'secret' };
const account = await call('POST', '/smtp-accounts', { body: { label: 'Post', smtp } });
const address = `ada@s${randomBytes(6).toString('hex')}.example`;
const made = await call('POST', '/identities', {
  body: { value: address, smtp_account_id: account.body.id },
});
const identityId: string = made.body.id;

function reportOf(messageId: string, action: string, status: string, recipient: string): Buffer {
  const returned = `Content-Type: message/rfc822\r\n\r\nFrom: ${address}\r\nMessage-ID: ${messageId}\r\n\r\nText`;
  const entry = [`Final-Recipient: rfc822; ${recipient}`, `Action: ${action}`, `Status: ${status}`];
  return compose(lines('Reporting-MTA: dns; mx.dest.example', '', ...entry), { returned });
}
async function receive(raw: Buffer, recipient = address, as: TestUser = service.user): Promise<void> {
  const headers = { 'content-type': 'message/rfc822' };
  const taken = await call('POST', `/inbound?recipient=${recipient}`, { body: raw, headers, as });
  assert.equal(taken.status, 202, taken.text);
  assert.equal(taken.body.messageIds.length, 1);
}
const statusesOf = async (id: string) =>
  (await call('GET', `/messages/${id}`)).body.sending.recipients.map(
    ({ status }: { status: string }) => status,
  );

test('failed: the recipient that the report names is bounced, once, without a suppression', async () => {
  const { id, messageId } = await send({ identityId, to: ['bob@dest.example', 'carol@dest.example'] });
  await findEnded(id);
  await receive(reportOf(messageId, 'failed', '5.1.1', 'bob@dest.example'));
  assert.deepEqual(await statusesOf(id), ['bounced', 'sent']);
  const bounced = (await events(id)).filter(({ event }) => event === 'message.bounced');
  assert.equal(bounced.length, 1);
  assert.deepEqual(bounced[0]?.data.recipient.bounce, { type: 'hard', source: 'dsn' });
  await receive(reportOf(messageId, 'delivered', '2.0.0', 'bob@dest.example'));
  assert.deepEqual(await statusesOf(id), ['bounced', 'sent']);
  assert.deepEqual((await call('GET', '/suppressions')).body, []);
});

test('delivered: from then on no report changes the recipient, because every recipient could write one', async () => {
  const { id, messageId } = await send({ identityId, to: 'dan@dest.example' });
  await findEnded(id);
  await receive(reportOf(messageId, 'delayed', '4.0.0', 'dan@dest.example'));
  assert.deepEqual(await statusesOf(id), ['sent']);
  await receive(reportOf(messageId, 'delivered', '2.0.0', 'dan@dest.example'));
  assert.deepEqual(await statusesOf(id), ['delivered']);
  await receive(reportOf(messageId, 'failed', '5.1.1', 'dan@dest.example'));
  assert.deepEqual(await statusesOf(id), ['delivered']);
});

test("a report to another owner, one about somebody else, and one about the operator's way change nothing", async () => {
  const { id, messageId } = await send({ identityId, to: 'eve@dest.example' });
  await findEnded(id);
  const stranger = await service.makeUser();
  const theirs = `eve@s${randomBytes(6).toString('hex')}.example`;
  await call('POST', '/identities', { body: { value: theirs }, as: stranger });
  await receive(reportOf(messageId, 'failed', '5.1.1', 'eve@dest.example'), theirs, stranger);
  await receive(reportOf(messageId, 'failed', '5.1.1', 'other@dest.example'));
  assert.deepEqual(await statusesOf(id), ['sent']);
  const plain = await call('POST', '/identities', {
    body: { value: `ben@s${randomBytes(6).toString('hex')}.example` },
  });
  await service.sql`update identities set status = 'verified' where id = ${plain.body.id}`;
  const relayed = await send({ identityId: plain.body.id, to: 'fay@dest.example' });
  await findEnded(relayed.id);
  await receive(reportOf(relayed.messageId, 'failed', '5.1.1', 'fay@dest.example'));
  assert.deepEqual(await statusesOf(relayed.id), ['sent']);
});

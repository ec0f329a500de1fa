/** Addresses that only an SMTP account vouches for: nobody uses them in mail that leaves another way. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { startTestService } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { startSink } from './smtp-sink.ts';
import { assertReply, idIn, letterFrom, signIn, submit } from './submission-client.ts';

const relay = await startSink();
const account = await startSink({ extensions: ['PIPELINING', 'AUTH PLAIN'] });
const service = await startTestService({
  POSTHORN_RELAY_URL: `smtp://127.0.0.1:${relay.port}`,
  POSTHORN_SEND_SCHEDULE: '3600,3600,3600',
  POSTHORN_ROLES: 'api,smtp,send',
});
const { call, sql, submissionPort, user } = service;
const { findEnded, findRecipient, attempts } = openOutbox(service);

async function connect(value: string, smtp_account_id: string | null): Promise<string> {
  const made = await call('POST', '/identities', { body: { value, smtp_account_id } });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}
async function makeAccount(): Promise<string> {
  const smtp = { host: '127.0.0.1', port: account.port, username: 'mallory', password: 'secret' };
  const made = await call('POST', '/smtp-accounts', { body: { label: 'Mine', smtp } });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}
const unique = () => `s${randomBytes(6).toString('hex')}.example`;

const accountId = await makeAccount();
const [own, victim] = [unique(), unique()];
const [me, ceo] = [`me@${own}`, `ceo@${victim}`];
const ownId = await connect(own, null);
await sql`update identities set status = 'verified' where id = ${ownId}`;
await connect(ceo, accountId);
const colleague = `cfo@${victim}`;
await connect(colleague, accountId);

async function submitFrom(header: string, more: string[] = [], from = me) {
  const client = await signIn(submissionPort, user.apiKey);
  return submit(client, { from, wire: letterFrom(header, ...more) });
}

for (const [title, from, more] of [
  ['a second author', `${me}, ${ceo}`, []],
  ['a Sender', me, [`Sender: ${ceo}`]],
] as const) {
  test(`${title} that only an account vouches for, in mail that leaves through the relay: 550`, async () => {
    assertReply(await submitFrom(from, [...more]), 550, '5.7.1', new RegExp(`${ceo}.*account`));
    assert.equal(relay.mails.length, 0);
  });
}

test('through another account of the same owner: 550', async () => {
  const other = `eve@${unique()}`;
  await connect(other, await makeAccount());
  assertReply(await submitFrom(`${other}, ${ceo}`), 550, '5.7.1');
});

test('in mail that leaves through that account, and beside verified addresses there: sent', async () => {
  const before = account.mails.length;
  const id = idIn(await submitFrom(`${ceo}, ${colleague}, ${me}`, [`Sender: ${colleague}`], ceo));
  const { sending } = await findEnded(id);
  assert.deepEqual([sending.status, sending.transport], ['sent', 'account']);
  assert.equal(account.mails.length, before + 1);
});

test('an author whose account was taken away before the try: the mail is put off', async () => {
  const [first, second] = [`a@${unique()}`, `b@${unique()}`];
  const firstId = await connect(first, accountId);
  await sql`update identities set status = 'verified' where id = ${firstId}`;
  const secondId = await connect(second, accountId);
  account.behave('MAIL', '451 4.3.0 Not now');
  const id = idIn(await submitFrom(`${first}, ${second}`, [], first));
  await findRecipient(id, ({ attemptCount }) => attemptCount === 1);
  account.behave('MAIL', '250 2.1.0 Ok');
  const tryAgain = () => sql`update send_queue set next_attempt_at = now() where message_id = ${id}`;

  // The mail would leave through the relay now.
  await call('PATCH', `/identities/${firstId}`, { body: { smtp_account_id: null } });
  await tryAgain();
  const put = await findRecipient(id, ({ attemptCount }) => attemptCount === 2);
  assert.equal(put.status, 'queued');
  const [{ error, host }] = await attempts(id);
  assert.deepEqual({ error, host }, { error: 'identity_not_verified', host: null });

  // An identity that was deleted vouches for nothing.
  await sql`update identities set status = 'verified' where id = ${secondId}`;
  await call('DELETE', `/identities/${secondId}`);
  await tryAgain();
  await findRecipient(id, ({ attemptCount }) => attemptCount === 3);
  assert.equal((await attempts(id))[0].error, 'identity_not_verified');
  assert.equal(relay.mails.length, 0);
});

/** Mail that leaves through the SMTP account of its identity, or of its domain. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { startDns } from './dns.ts';
import { assertProblem, startTestService, type TestUser, waitFor } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { hang, type Sink, startSink } from './smtp-sink.ts';
import { startTokenServer } from './token-server.ts';

const dns = await startDns();
after(() => dns.close());
const relay = await startSink();
const settings = {
  POSTHORN_RELAY_URL: `smtp://127.0.0.1:${relay.port}`,
  POSTHORN_DNS_SERVERS: dns.address,
  POSTHORN_SEND_SCHEDULE: '3600',
  POSTHORN_ROLES: 'api,send',
};
const service = await startTestService(settings);
const { call, sql } = service;
const { post, send, findEnded, findRecipient, attempts, events } = openOutbox(service);
const startAccountSink = () => startSink({ extensions: ['PIPELINING', 'AUTH PLAIN XOAUTH2'] });

const serverOf = ({ port }: Sink, more: object = {}) => ({
  ...{ host: '127.0.0.1', port, username: 'ada@post.example', password: 'correct horse' },
  ...more,
});
async function makeAccount(smtp: object, as: TestUser = service.user): Promise<string> {
  const made = await call('POST', '/smtp-accounts', { as, body: { label: 'Post', smtp } });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}
async function connect(
  value: string,
  smtp_account_id: string | null,
  as: TestUser = service.user,
): Promise<string> {
  const made = await call('POST', '/identities', { as, body: { value, smtp_account_id } });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}
const unique = () => `s${randomBytes(6).toString('hex')}.example`;
const login = (user: string, password: string) =>
  `AUTH PLAIN ${Buffer.from(`\0${user}\0${password}`).toString('base64')}`;
const findAccount = async (id: string) => (await call('GET', `/smtp-accounts/${id}`)).body;

test('an unverified address with an account of its own sends through the account: sent, and no more', async () => {
  const sink = await startAccountSink();
  const accountId = await makeAccount(serverOf(sink));
  const identityId = await connect(`ada@${unique()}`, accountId);
  const before = relay.mails.length;
  const { id } = await send({ identityId, to: ['bob@dest.example', 'carol@other.example'] });
  const { sending } = await findEnded(id);
  assert.deepEqual([sending.status, sending.transport], ['sent', 'account']);
  assert.deepEqual(
    (await events(id)).map(({ event }) => event),
    ['message.sent', 'message.sent'],
  );
  assert.ok(sink.commands.includes(login('ada@post.example', 'correct horse')));
  for (const { mail } of sink.mails) assert.match(mail, /^MAIL FROM:<ada@post\.example>/);
  assert.deepEqual(sink.mails.map(({ rcpt }) => rcpt).sort(), [
    'RCPT TO:<bob@dest.example>',
    'RCPT TO:<carol@other.example>',
  ]);
  assert.equal(relay.mails.length, before);
  assert.equal(dns.count('dest.example'), 0);
  assert.deepEqual((await findAccount(accountId)).send.state, 'ok');
});

test("a verified address without an account sends through its domain's, from its own address where the user is none", async () => {
  const sink = await startAccountSink();
  const domain = unique();
  const domainId = await connect(domain, await makeAccount(serverOf(sink, { username: 'ada' })));
  const identityId = await connect(`bea@${domain}`, null);
  // The account is that of the domain, and not its own: it must be verified.
  assertProblem(await post({ identityId }), 403, 'identity_not_verified');
  await sql`update identities set status = 'verified' where id = any (${[domainId, identityId]}::uuid[])`;
  const { id } = await send({ identityId });
  assert.equal((await findEnded(id)).sending.transport, 'account');
  assert.equal(sink.mails[0]?.mail, `MAIL FROM:<bea@${domain}>`);
});

test('a domain identity sends through its account, from any of its addresses', async () => {
  const sink = await startAccountSink();
  const domain = unique();
  const identityId = await connect(domain, await makeAccount(serverOf(sink, { username: 'ada' })));
  const { id } = await send({ identityId, from: `News <news@${domain}>` });
  assert.equal((await findEnded(id)).sending.transport, 'account');
  assert.equal(sink.mails[0]?.mail, `MAIL FROM:<news@${domain}>`);
});

test('an identity whose account was taken away uses the way of the operator, if it is verified', async () => {
  const sink = await startAccountSink();
  const identityId = await connect(`ada@${unique()}`, await makeAccount(serverOf(sink)));
  await sql`update identities set status = 'verified' where id = ${identityId}`;
  await call('PATCH', `/identities/${identityId}`, { body: { smtp_account_id: null } });
  const { id } = await send({ identityId });
  const { sending } = await findEnded(id);
  assert.equal(sending.transport, 'relay');
  assert.equal(sink.connections(), 0);
});

test('wrong credentials put the mail off and show in `send`; with the right ones it leaves', async () => {
  const sink = await startAccountSink();
  sink.behave('AUTH', '535 5.7.8 Bad credentials');
  const accountId = await makeAccount(serverOf(sink));
  const identityId = await connect(`ada@${unique()}`, accountId);
  const { id } = await send({ identityId });
  const put = await findRecipient(id, ({ attemptCount }) => attemptCount > 0);
  assert.equal(put.status, 'queued');
  assert.equal(put.lastResponse.code, 535);
  assert.equal((await attempts(id))[0].response.code, 535);
  const { state, error } = (await findAccount(accountId)).send;
  assert.deepEqual([state, error.code], ['failing', 'authentication_failed']);
  assert.equal(error.response, '535 5.7.8 Bad credentials');
  assert.match(error.message, /password/);
  assert.equal(sink.mails.length, 0);
  sink.behave('AUTH', '235 2.7.0 Welcome');
  const changed = await call('PATCH', `/smtp-accounts/${accountId}`, {
    body: { smtp: { password: 'right' } },
  });
  assert.equal(changed.body.send.state, 'unknown');
  await sql`update send_queue set next_attempt_at = now() where message_id = ${id}`;
  assert.equal((await findEnded(id)).sending.status, 'sent');
  assert.ok(sink.commands.includes(login('ada@post.example', 'right')));
  assert.equal((await findAccount(accountId)).send.state, 'ok');
});

test('a refused recipient bounces, and says nothing about the account', async () => {
  const sink = await startAccountSink();
  sink.behave('RCPT', '550 5.7.1 Not from here');
  const accountId = await makeAccount(serverOf(sink));
  const { id } = await send({ identityId: await connect(`ada@${unique()}`, accountId) });
  assert.equal((await findEnded(id)).sending.status, 'bounced');
  assert.equal((await findAccount(accountId)).send.state, 'ok');
});

test('OAuth2: one access token serves several messages; without one the mail waits', async () => {
  const [sink, tokens] = [await startAccountSink(), await startTokenServer()];
  tokens.answer({ status: 400, body: { error: 'invalid_grant', error_description: 'Expired' } });
  const oauth2 = { clientId: 'client', refreshToken: 'first', tokenUrl: tokens.url };
  const accountId = await makeAccount(serverOf(sink, { password: undefined, oauth2 }));
  const identityId = await connect(`ada@${unique()}`, accountId);
  const { id } = await send({ identityId });
  await findRecipient(id, ({ attemptCount }) => attemptCount > 0);
  assert.equal((await attempts(id))[0].error, 'account_failed');
  assert.equal((await findAccount(accountId)).send.error.response, 'invalid_grant: Expired');
  tokens.answer({ body: { access_token: 'token-1', expires_in: 3600 } });
  await sql`update send_queue set next_attempt_at = now() where message_id = ${id}`;
  assert.equal((await findEnded(id)).sending.status, 'sent');
  const asked = tokens.requests.length;
  const { id: second } = await send({ identityId });
  assert.equal((await findEnded(second)).sending.status, 'sent');
  assert.equal(tokens.requests.length, asked);
  const text = Buffer.from('user=ada@post.example\x01auth=Bearer token-1\x01\x01').toString('base64');
  assert.ok(sink.commands.includes(`AUTH XOAUTH2 ${text}`));
});

test("another owner with the same server and user does not get the connection of the first owner's account", async () => {
  const sink = await startAccountSink();
  const stranger = await service.makeUser();
  const identityId = await connect(`ada@${unique()}`, await makeAccount(serverOf(sink)));
  await findEnded((await send({ identityId })).id);
  sink.behave('AUTH', '535 5.7.8 Bad credentials');
  const theirs = await makeAccount(serverOf(sink, { password: 'guess' }), stranger);
  const as = { as: stranger };
  const { id } = await send({ identityId: await connect(`eve@${unique()}`, theirs, stranger) }, as);
  await waitFor('the try of the other owner', async () => {
    const { body } = await call('GET', `/messages/${id}/attempts`, as);
    return body.length > 0 && body[0].response?.code === 535;
  });
  assert.equal(sink.mails.length, 1);
});

test('an account that hangs delays no other mail of its owner', async () => {
  const [slow, sink] = [await startAccountSink(), await startAccountSink()];
  slow.behave('connect', hang);
  const stuck = await connect(`ada@${unique()}`, await makeAccount(serverOf(slow)));
  for (let n = 0; n < 15; n += 1) await send({ identityId: stuck });
  await waitFor('a connection that hangs', async () => slow.connections() > 0);
  const { id } = await send({
    identityId: await connect(`bea@${unique()}`, await makeAccount(serverOf(sink))),
  });
  assert.equal((await findEnded(id)).sending.status, 'sent');
  assert.ok(slow.connections() <= 3, 'few connections for each account');
});

test('in capture nothing leaves, not even through accounts', async () => {
  const sink = await startAccountSink();
  const capturing = await startTestService({
    POSTHORN_OUTBOUND: 'capture',
    POSTHORN_ROLES: 'api,send',
  });
  const outbox = openOutbox(capturing);
  const account = await capturing.call('POST', '/smtp-accounts', {
    body: { label: 'Post', smtp: serverOf(sink) },
  });
  const body = { value: `ada@${unique()}`, smtp_account_id: account.body.id };
  const identity = await capturing.call('POST', '/identities', { body });
  const { id } = await outbox.send({ identityId: identity.body.id });
  const { sending } = await outbox.findEnded(id);
  assert.deepEqual([sending.status, sending.transport], ['delivered', 'capture']);
  assert.equal(sink.connections(), 0);
});

/** Servers that repeat what they were sent: no answer, row or log line has the password or the token. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { waitFor } from './harness.ts';
import { startImapScript } from './imap-script.ts';
import { startMailboxService } from './mailbox-service.ts';
import { openOutbox } from './outbox.ts';
import { type Sink, startSink } from './smtp-sink.ts';
import { startTokenServer } from './token-server.ts';

const relay = await startSink({ extensions: ['AUTH PLAIN'] });
const service = await startMailboxService({
  POSTHORN_RELAY_URL: `smtp://mailer:relay%20secret@127.0.0.1:${relay.port}`,
  POSTHORN_SEND_SCHEDULE: '3600',
  POSTHORN_ROLES: 'api,send,sync',
});
const { call, sql, logged } = service;
const { send, findRecipient, attempts } = openOutbox(service);
const password = 'correct "horse"';
const base64 = (text: string) => Buffer.from(text).toString('base64');

const serverOf = (port: number, more: object = {}) => ({
  ...{ host: '127.0.0.1', port, username: 'ada@post.example', password },
  ...more,
});
async function makeAccount(smtp: object, imap?: object): Promise<string> {
  const body = { label: 'Post', smtp, ...(imap ? { imap } : {}) };
  const made = await call('POST', '/smtp-accounts', { body });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}
async function connect(smtp_account_id: string | null): Promise<string> {
  const value = `ada@s${randomBytes(6).toString('hex')}.example`;
  const made = await call('POST', '/identities', { body: { value, smtp_account_id } });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}
/** The last command comes back in the reply. */
const repeat = (sink: Sink) =>
  sink.behave('AUTH', ({ say }) => say(`535 5.7.8 What is "${sink.commands.at(-1)}"?`));

/** In what is stored, logged and answered about the account. */
async function assertHidden(accountId: string, ...secrets: string[]): Promise<void> {
  const answer = await call('GET', `/smtp-accounts/${accountId}`);
  const rows = await sql`select error::text from mail_servers where account_id = ${accountId}`;
  const attempts = await sql`select response::text, error_detail from send_attempts`;
  const all = [answer.text, JSON.stringify(rows), JSON.stringify(attempts), JSON.stringify(logged)].join(
    '\n',
  );
  for (const secret of secrets.flatMap((one) => [one, JSON.stringify(one).slice(1, -1)]))
    assert.ok(!all.includes(secret), all);
}

test('AUTH PLAIN: the reply is shown without the password, in the account and in the attempt', async () => {
  const sink = await startSink({ extensions: ['AUTH PLAIN'] });
  repeat(sink);
  const accountId = await makeAccount(serverOf(sink.port));
  const { id } = await send({ identityId: await connect(accountId) });
  await findRecipient(id, ({ attemptCount }) => attemptCount === 1);
  const { error } = (await call('GET', `/smtp-accounts/${accountId}`)).body.send;
  assert.equal(error.response, '535 5.7.8 What is "AUTH PLAIN [removed]"?');
  assert.equal((await attempts(id))[0].response.text, 'What is "AUTH PLAIN [removed]"?');
  await assertHidden(accountId, password, base64(`\0ada@post.example\0${password}`));
});

test('AUTH LOGIN: also the line with the password', async () => {
  const sink = await startSink({ extensions: ['AUTH LOGIN'] });
  sink.behave('AUTH', '334 VXNlcm5hbWU6');
  sink.behave('text', '334 UGFzc3dvcmQ6', ({ say }) => say(`535 5.7.8 Not ${sink.commands.at(-1)}`));
  const accountId = await makeAccount(serverOf(sink.port));
  const { body } = await call('POST', `/smtp-accounts/${accountId}/verify`);
  assert.equal(body.send.error.response, '535 5.7.8 Not [removed]');
  await assertHidden(accountId, password, base64(password));
});

test('OAuth2: the refresh token and client secret at the token server, the access token at the mail server', async () => {
  const [sink, tokens] = [await startSink({ extensions: ['AUTH XOAUTH2'] }), await startTokenServer()];
  repeat(sink);
  const oauth2 = {
    ...{ clientId: 'client', clientSecret: 'client/secret+1', refreshToken: 'refresh/token+1' },
    tokenUrl: tokens.url,
  };
  const repeated = `You sent refresh/token+1 (client_secret=${encodeURIComponent('client/secret+1')})`;
  tokens.answer({ status: 400, body: { error: 'invalid_grant', error_description: repeated } });
  const accountId = await makeAccount(serverOf(sink.port, { password: undefined, oauth2 }));
  const refused = await call('POST', `/smtp-accounts/${accountId}/verify`);
  assert.equal(
    refused.body.send.error.response,
    'invalid_grant: You sent [removed] (client_secret=[removed])',
  );
  tokens.answer({ body: { access_token: 'access-token-1', expires_in: 3600 } });
  const asked = await call('POST', `/smtp-accounts/${accountId}/verify`);
  assert.match(asked.body.send.error.response, /AUTH XOAUTH2 \[removed\]/);
  await assertHidden(accountId, 'refresh/token', 'client/secret', 'access-token-1', base64('auth=Bearer'));
});

for (const [title, capabilities] of [
  ['LOGIN', 'IMAP4rev1'],
  ['AUTHENTICATE PLAIN', 'IMAP4rev1 SASL-IR AUTH=PLAIN'],
] as const) {
  test(`IMAP, ${title}: neither a check nor the sync shows the password`, async () => {
    const imap = await startImapScript({ capabilities });
    // Long enough that what is kept ends within the password.
    imap.answerLogins(`NO [AUTHENTICATIONFAILED] ${'so '.repeat(46)}wrong: %s`);
    const sink = await startSink({ extensions: ['AUTH PLAIN'] });
    const accountId = await makeAccount(serverOf(sink.port), serverOf(imap.port));
    const { body } = await call('POST', `/smtp-accounts/${accountId}/verify`);
    assert.match(body.receive.error.response, /wrong: [A-Z ]+.*\[removed\]/);
    await connect(accountId);
    await waitFor('the try of the sync', async () =>
      logged.some(
        ({ msg, response }) => msg === 'a mailbox cannot be read' && /removed/.test(String(response)),
      ),
    );
    await assertHidden(accountId, password.slice(0, 6), base64(`\0ada@post.example\0`).slice(0, 20));
  });
}

test("the operator's relay: the reply is shown without its password", async () => {
  repeat(relay);
  const identityId = await connect(null);
  await sql`update identities set status = 'verified' where id = ${identityId}`;
  const { id } = await send({ identityId });
  const { lastResponse } = await findRecipient(id, ({ attemptCount }) => attemptCount === 1);
  assert.equal(lastResponse.text, 'What is "AUTH PLAIN [removed]"?');
});

/** An account at Postfix and Dovecot: mail leaves by submission, with a password or XOAUTH2, and a copy comes into the Sent folder. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from '../harness.ts';
import { mailWith, startMailboxService } from '../mailbox-service.ts';
import { openOutbox } from '../outbox.ts';
import { freePort } from '../own-postgres.ts';
import { startTokenServer } from '../token-server.ts';
import { startDovecot } from './dovecot.ts';
import { startMailServer } from './mail-server.ts';

const service = await startMailboxService({ POSTHORN_RELAY_URL: 'smtp://127.0.0.1:9' });
const { call } = service;
const { send, findEnded } = openOutbox(service);
const [tokens, introspection] = [await startTokenServer(), await startTokenServer()];
const dovecot = await startDovecot({ password: '', full: 'bytes=100', token: '' }, introspection.url);
const submissionPort = await freePort(Math.random);
const postfix = await startMailServer({
  port: submissionPort,
  smtpPort: service.smtpPort,
  settings: {
    smtpd_sasl_auth_enable: 'yes',
    smtpd_sasl_type: 'dovecot',
    smtpd_sasl_path: dovecot.authSocket,
    smtpd_recipient_restrictions: 'permit_sasl_authenticated, reject',
  },
});

/** Whose mail leaves by Postfix, and whose mailbox is at Dovecot. */
async function makeAccount(username: string, login: object) {
  const server = { host: '127.0.0.1', username, ...login };
  const sides = { smtp: { ...server, port: submissionPort }, imap: { ...server, port: dovecot.port } };
  const made = await call('POST', '/smtp-accounts', { body: { label: username, ...sides } });
  assert.equal(made.status, 201, made.text);
  const { body } = await call('POST', `/smtp-accounts/${made.body.id}/verify`);
  return body;
}

async function connect(username: string, login: object = { password: dovecot.password }): Promise<string> {
  const account = await makeAccount(username, login);
  assert.deepEqual([account.send.state, account.receive.state], ['ok', 'ok'], JSON.stringify(account));
  const body = { value: `${username}@home.example`, smtp_account_id: account.id };
  const { body: identity } = await call('POST', '/identities', { body });
  await service.mailboxes(identity.id);
  return identity.id;
}

async function sendToBob(identityId: string, subject: string): Promise<string> {
  const { id } = await send({ identityId, to: 'bob@dest.test', subject });
  const { sending } = await findEnded(id);
  assert.deepEqual([sending.status, sending.transport], ['sent', 'account']);
  await postfix.delivered(subject);
  return id;
}
const firstCopy = (user: string) => waitFor('the copy', () => dovecot.read(user, 'Gesendet')[0]);

test('a message is submitted with the password, arrives, and is copied to the Sent folder as read', async () => {
  const identityId = await connect('password');
  const id = await sendToBob(identityId, 'by password');
  await postfix.logged(/sasl_method=PLAIN, sasl_username=password/);
  const { text } = await call('GET', `/messages/${id}/raw`);
  // Dovecot stores lines with LF.
  assert.equal(await firstCopy('password'), text.replaceAll('\r\n', '\n'));
  assert.match(dovecot.names('password', 'Gesendet')[0] ?? '', /:2,S$/);
  await call('POST', `/identities/${identityId}/sync`);
  dovecot.deliver('password', mailWith('afterwards'));
  const messages = await service.messages(identityId, 2);
  assert.deepEqual(messages.map(({ subject }) => subject).sort(), ['afterwards', 'by password']);
});

test('a mailbox that is full gets no copy, and the message was sent', async () => {
  const identityId = await connect('full');
  const id = await sendToBob(identityId, 'no copy');
  const isWarning = ({ messageId, response }: Record<string, unknown>) =>
    messageId === id && /quota/i.test(String(response));
  await waitFor('the warning', () => service.logged.some(isWarning));
  assert.deepEqual(dovecot.read('full', 'Gesendet'), []);
  assert.equal((await findEnded(id)).sending.status, 'sent');
  const boxes = await service.mailboxes(identityId);
  assert.equal(boxes.inbox?.sync?.error, null);
});

test('XOAUTH2 logs in at both servers', async () => {
  tokens.answer({ body: { access_token: 'token-1', expires_in: 3600 } });
  introspection.answer({ body: { active: true, email: 'token' } });
  const oauth2 = { clientId: 'client', refreshToken: 'refresh', tokenUrl: tokens.url };
  const identityId = await connect('token', { oauth2 });
  await sendToBob(identityId, 'by token');
  await postfix.logged(/sasl_method=XOAUTH2, sasl_username=token/);
  await firstCopy('token');
  dovecot.deliver('token', mailWith('to a mailbox with a token'));
  await service.messages(identityId, 2);
  assert.ok(
    introspection.requests.some(({ token }) => token === 'token-1'),
    JSON.stringify(introspection.requests),
  );
});

test('a token that the server does not accept is a login that failed', async () => {
  introspection.answer({ body: { active: false } });
  const oauth2 = { clientId: 'client', refreshToken: 'other', tokenUrl: tokens.url };
  const { send, receive } = await makeAccount('stranger', { oauth2 });
  assert.equal(send.error?.code, 'authentication_failed', JSON.stringify(send));
  assert.equal(receive.error?.code, 'authentication_failed', JSON.stringify(receive));
});

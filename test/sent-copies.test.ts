/** A message that left through an account is appended to the Sent folder of the account, once. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from './harness.ts';
import { type ImapServer, startImapServer } from './imap-server.ts';
import { startMailboxService } from './mailbox-service.ts';
import { openOutbox } from './outbox.ts';
import { startSink } from './smtp-sink.ts';

const sink = await startSink({ extensions: ['PIPELINING', 'AUTH PLAIN'] });
const service = await startMailboxService({ POSTHORN_RELAY_URL: `smtp://127.0.0.1:${sink.port}` });
const { call, sql } = service;
const { send, findEnded } = openOutbox(service);

/** An identity that sends through the sink, and has its mailbox at this server. */
async function connect({ port, password }: ImapServer, value: string): Promise<string> {
  const server = { host: '127.0.0.1', username: 'ada', password };
  const body = { label: value, smtp: { ...server, port: sink.port }, imap: { ...server, port } };
  const account = await call('POST', '/smtp-accounts', { body });
  assert.equal(account.status, 201, account.text);
  const identity = { value, smtp_account_id: account.body.id };
  const { body: made } = await call('POST', '/identities', { body: identity });
  await service.mailboxes(made.id);
  return made.id;
}

const sentAt = (server: ImapServer) =>
  (server.folders.get('Sent')?.mails ?? []).map(({ raw }) => raw.toString());
const appends = (server: ImapServer) => server.commands.filter((command) => command.startsWith('APPEND'));
const rawOf = async (id: string) => (await call('GET', `/messages/${id}/raw`)).text;
const isTaken = (id: string) =>
  waitFor('the copy to be taken', async () => {
    const [row] = await sql`
      select copy_account_id is not null and not is_copy_due as taken from outgoing where id = ${id}`;
    return row?.taken;
  });

test('it is appended once for all recipients, as read, and not imported again', async () => {
  const server = await startImapServer();
  const identityId = await connect(server, 'copies@home.example');
  const first = await send({ identityId, to: ['bob@dest.example', 'carol@dest.example'], subject: 'first' });
  await findEnded(first.id);
  await waitFor('the first copy', () => sentAt(server).length > 0);
  const second = await send({ identityId, subject: 'second' });
  await waitFor('the second copy', () => sentAt(server).length > 1);
  assert.deepEqual(sentAt(server), [await rawOf(first.id), await rawOf(second.id)]);
  for (const command of appends(server)) assert.match(command, /^APPEND "?Sent"? \(\\Seen\) \{/);
  const isSeen = async () => {
    const { count } = await sql`select from mailbox_ledger where identity_id = ${identityId}`;
    return count === 2;
  };
  await call('POST', `/identities/${identityId}/sync`);
  await waitFor('both copies to be seen', isSeen);
  const { body } = await call('GET', `/messages?identity_id=${identityId}`);
  assert.deepEqual(body.map(({ subject }: { subject: string }) => subject).sort(), ['first', 'second']);
  server.deliver('INBOX', 'Subject: new mail after a copy\r\n\r\n');
  await service.messages(identityId, 3);
  assert.equal(server.commands.filter((command) => command.startsWith('LOGIN')).length, 1);
});

test('a recipient that is sent to later makes no second copy', async () => {
  const server = await startImapServer();
  const identityId = await connect(server, 'later@home.example');
  const { id } = await send({ identityId, subject: 'one' });
  await isTaken(id);
  await findEnded(id);
  // As a recipient that was put off.
  await sql`update outgoing set queued = 1, sent = 0 where id = ${id}`;
  await sql`update recipients set status = 'queued' where message_id = ${id}`;
  await sql`
    insert into send_queue (id, owner_id, lane_id, message_id, n)
    values (gen_random_uuid(), ${service.user.userId}, gen_random_uuid(), ${id}, 0)`;
  const isSent = async () =>
    (await sql`select from recipients where message_id = ${id} and status = 'sent'`).count === 1;
  await waitFor('the later recipient', isSent);
  const { id: next } = await send({ identityId, subject: 'two' });
  await isTaken(next);
  await waitFor('the copy of the next message', () => sentAt(server).some((raw) => /: two/.test(raw)));
  assert.equal(sentAt(server).length, 2);
});

test('a copy that the server refuses changes nothing, and the next message is appended', async () => {
  const server = await startImapServer();
  const identityId = await connect(server, 'full@home.example');
  server.refuseAppend('[OVERQUOTA] Quota exceeded');
  const { id } = await send({ identityId, subject: 'refused' });
  await isTaken(id);
  const isWarning = ({ messageId, response }: Record<string, unknown>) =>
    messageId === id && /Quota exceeded/.test(String(response));
  await waitFor('the warning', () => service.logged.some(isWarning));
  const { sending } = await findEnded(id);
  assert.deepEqual([sending.status, sending.transport], ['sent', 'account']);
  await send({ identityId, subject: 'appended' });
  await waitFor('the next copy', () => sentAt(server).length === 1);
  assert.match(sentAt(server)[0] ?? '', /Subject: appended/);
  const boxes = await service.mailboxes(identityId);
  assert.equal(boxes.sent?.sync?.error, null);
  assert.equal(server.commands.filter((command) => command.startsWith('LOGIN')).length, 1);
});

test('nothing is appended at a server that keeps sent mail by itself', async () => {
  const server = await startImapServer();
  server.capabilities += ' X-GM-EXT-1';
  const identityId = await connect(server, 'gmail@home.example');
  const { id } = await send({ identityId });
  await isTaken(id);
  await call('POST', `/identities/${identityId}/sync`);
  await service.mailboxes(identityId);
  assert.deepEqual(appends(server), []);
});

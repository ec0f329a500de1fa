/** What a server says of a folder while nothing is asked: new mail is read at once, and false notices cost little. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from './harness.ts';
import { type ImapServer, startImapServer } from './imap-server.ts';
import { isIdling, mailWith, startMailboxService } from './mailbox-service.ts';

const hourMs = 3_600_000;
const patient = await startMailboxService({}, { syncTimes: { checkMs: hourMs, emptyReadMs: hourMs } });
const usual = await startMailboxService();

const countSearches = ({ commands }: ImapServer) =>
  commands.filter((command) => command.startsWith('UID SEARCH')).length;

test('the total counts mail that came by IDLE as soon as it was read', async () => {
  const server = await startImapServer();
  const { id } = await patient.connect(server, 'total@notices.example');
  await isIdling(server);
  for (const count of [1, 2]) {
    server.deliver('INBOX', mailWith('new'));
    await patient.messages(id, count);
    await patient.mailboxes(id, ({ inbox }) => inbox?.total === count);
    await isIdling(server, count + 1);
  }
});

test('new mail without a date of its arrival, or with one that cannot be read, is not lost', async () => {
  const server = await startImapServer();
  const { id } = await usual.connect(server, 'undated@notices.example');
  await usual.mailboxes(id);
  await isIdling(server);
  const before = Date.now();
  server.deliver('INBOX', mailWith('damaged'), new Date(Number.NaN));
  await usual.messages(id, 1);
  server.leavesDatesOut = true;
  server.deliver('INBOX', mailWith('without'));
  const messages = await usual.messages(id, 2);
  assert.deepEqual(messages.map(({ subject }) => subject).sort(), ['damaged', 'without']);
  for (const { receivedAt } of messages) assert.ok(Date.parse(receivedAt) >= before, receivedAt);
  const { body: events } = await usual.call('GET', `/events?identity_id=${id}`);
  assert.equal(events.length, 2);
});

test('after a notice that brought no mail, further ones are not read at once', async () => {
  const server = await startImapServer();
  const { id } = await patient.connect(server, 'flood@notices.example');
  await isIdling(server);
  const before = countSearches(server);
  server.announce('INBOX', 1);
  await isIdling(server, 2);
  assert.equal(countSearches(server), before + 1);
  for (let count = 2; count < 200; count += 1) server.announce('INBOX', count);
  // A check that was asked for reads the folder, after all those notices.
  await patient.call('POST', `/identities/${id}/sync`);
  await isIdling(server, 3);
  assert.equal(countSearches(server), before + 2);
});

test('mail that comes right after such a notice is read all the same', async () => {
  const server = await startImapServer();
  const { id } = await usual.connect(server, 'after@notices.example');
  await isIdling(server);
  server.announce('INBOX', 7);
  await waitFor('the empty read', () => countSearches(server) > 1);
  server.deliver('INBOX', mailWith('real'));
  const [message] = await usual.messages(id, 1);
  assert.equal(message.subject, 'real');
});

test('without UIDNEXT, mail that comes to the inbox while another folder is open is read at once', async () => {
  const server = await startImapServer();
  server.hidesUidNext = true;
  server.onCommand = (command) => {
    if (!/^EXAMINE "?Junk/.test(command)) return;
    server.onCommand = () => {};
    server.deliver('INBOX', mailWith('meanwhile'));
  };
  const { id } = await patient.connect(server, 'no-uidnext@notices.example');
  const [message] = await patient.messages(id, 1);
  assert.equal(message.subject, 'meanwhile');
  await isIdling(server);
  const before = countSearches(server);
  await patient.call('POST', `/identities/${id}/sync`);
  await isIdling(server, 2);
  // Each folder once, and the inbox once more, after the others.
  assert.equal(countSearches(server), before + 4);
});

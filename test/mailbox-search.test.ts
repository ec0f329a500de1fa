/** A large folder is searched in parts, and no message is missed. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MailboxClient } from '../src/mailboxes/mailbox-client.ts';
import { openImap } from '../src/mailboxes/open-imap.ts';
import { makeEgress } from '../src/net/egress.ts';
import { startImapServer } from './imap-server.ts';
import { makeImapThreads } from './imap-threads.ts';

const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: null });
const share = { release() {}, shrinkTo() {}, charge() {}, [Symbol.dispose]() {} };
const [date, raw] = [new Date(), Buffer.alloc(0)];

/** A folder with so many messages, whose UIDs are twice their places. */
async function openFolder(count: number) {
  const server = await startImapServer();
  const inbox = server.folders.get('INBOX') ?? assert.fail();
  for (let n = 1; n <= count; n += 1) inbox.mails.push({ uid: 2 * n, date, raw });
  inbox.uidNext = 2 * count + 1;
  const login = { password: server.password };
  const account = { host: '127.0.0.1', port: server.port, secure: false, username: 'ada', login };
  const threads = makeImapThreads({ count: 1 });
  const opened = await openImap('owner', account, login, { egress, threads, production: false });
  const connection = 'client' in opened ? opened.client : assert.fail(opened.error.message);
  const memory = {
    take: async () => share,
    read: <T>(_bytes: number, read: (cut: AbortSignal) => Promise<T>) => read(new AbortController().signal),
  };
  const client = new MailboxClient(connection, memory, { news() {}, closed() {} });
  await client.examine('INBOX');
  const searches = () => server.commands.filter((command) => command.startsWith('UID SEARCH'));
  return { server, inbox, client, searches };
}

test('new mail in a large folder: the newest part is searched, and older parts while they have some', async () => {
  const { client, searches } = await openFolder(12_000);
  assert.deepEqual([...(await client.searchFrom(23_999)).uids], [24_000]);
  assert.deepEqual(searches(), ['UID SEARCH 7001:* UID 23999:*', 'UID SEARCH 2001:7000 UID 23999:*']);
  const { uids, more } = await client.searchFrom(1);
  assert.equal(more, 0);
  assert.deepEqual(
    [...uids],
    Array.from({ length: 12_000 }, (_, n) => 2 * n + 2),
  );
  assert.deepEqual((await client.searchFrom(24_001)).uids.length, 0);
});

test('messages that are deleted between two searches move others down: none is missed or found twice', async () => {
  const { server, inbox, client, searches } = await openFolder(9000);
  server.onCommand = () => {
    if (searches().length === 2) inbox.mails.splice(4000, 10);
  };
  const { uids } = await client.searchRange(1, 18_000, new Date(0));
  const wanted = Array.from({ length: 9000 }, (_, n) => 2 * n + 2);
  assert.deepEqual([...uids], wanted);
});

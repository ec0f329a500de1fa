/** Older mail is imported completely, whatever happens while it is read. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from './harness.ts';
import { type ImapServer, startImapServer } from './imap-server.ts';
import { breakLedger, isIdling, mailWith, startMailboxService } from './mailbox-service.ts';

const service = await startMailboxService();
const { sql } = service;

const importSince = async (id: string, since: string) => {
  const asked = await service.call('POST', `/identities/${id}/sync`, { body: { since } });
  assert.equal(asked.status, 202, asked.text);
};
const importedCount = async (id: string) => (await sql`select from messages where identity_id = ${id}`).count;
const reads = (server: ImapServer) =>
  server.commands.filter((command) => command.includes('BODY.PEEK[]')).length;

async function inboxPosition(id: string) {
  const [row] = await sql<{ scan: number; uidValidity: number }[]>`
    select scan, uid_validity::int as "uidValidity" from mailbox_sync join mailboxes on mailboxes.id = mailbox_id
    where identity_id = ${id} and kind = 'inbox'`;
  return row;
}

/** More than is read at once. */
const mailCount = 120;

async function connectFull(value: string) {
  const server = await startImapServer();
  for (let n = 0; n < mailCount; n += 1)
    server.deliver('INBOX', mailWith(`of 2024, ${n}`), new Date(Date.UTC(2024, 0, 1, 0, n)));
  server.deliver('INBOX', mailWith('of 2019'), new Date('2019-01-01T00:00:00Z'));
  const { id } = await service.connect(server, value);
  await service.mailboxes(id);
  return { server, id };
}

test('older mail that was being read while the database was unavailable is not missed', async () => {
  const { server, id } = await connectFull('away@home.example');
  const ledger = await breakLedger(sql, id, '57P03', 'the database system is starting up');
  await importSince(id, '2020-01-01T00:00:00Z');
  await waitFor('the second try', () => reads(server) >= 2);
  await ledger.fix();
  const { inbox } = await service.mailboxes(id);
  assert.equal(inbox?.sync?.backlog, 0);
  assert.equal(await importedCount(id), mailCount);
});

test('a request for even older mail counts, also while nothing of the first request could be recorded', async () => {
  const { server, id } = await connectFull('earlier@home.example');
  const ledger = await breakLedger(sql, id, '57P03', 'the database system is starting up');
  await importSince(id, '2020-01-01T00:00:00Z');
  await waitFor('the first try', () => reads(server) >= 1);
  await importSince(id, '2018-01-01T00:00:00Z');
  await waitFor('the second request', async () => (await inboxPosition(id))?.scan === 2);
  await ledger.fix();
  await service.mailboxes(id);
  assert.equal(await importedCount(id), mailCount + 1);
});

test('requests while older mail is read: all mail since the earliest of them is imported, once', async () => {
  const { server, id } = await connectFull('several@home.example');
  await importSince(id, '2024-01-01T01:00:00Z');
  for (const since of ['2020-01-01T00:00:00Z', '2018-01-01T00:00:00Z', '2024-01-01T00:00:00Z']) {
    const before = reads(server);
    await importSince(id, since);
    await waitFor('more of it', async () => {
      const { inbox } = await service.mailboxes(id, () => true);
      return reads(server) > before || inbox?.sync?.state === 'idle';
    });
  }
  const { inbox } = await service.mailboxes(id);
  assert.equal(inbox?.sync?.backlog, 0);
  assert.equal(await importedCount(id), mailCount + 1);
});

test('a folder that is read anew has no backlog before it was searched', async () => {
  const { server, id } = await connectFull('anew@home.example');
  await breakLedger(sql, id, '57P03', 'the database system is starting up');
  await importSince(id, '2020-01-01T00:00:00Z');
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.backlog === mailCount);
  server.onCommand = (command) => {
    if (!/^EXAMINE "?INBOX/.test(command)) return;
    server.onCommand = () => {};
    server.rebuild('INBOX');
    server.silence = 'UID SEARCH';
  };
  await waitFor('the new start', async () => (await inboxPosition(id))?.uidValidity === 2);
  const { inbox } = await service.mailboxes(id, () => true);
  assert.equal(inbox?.sync?.backlog, 0);
});

test('a folder that was emptied, and numbers its mail from 1 again, loses none of the mail that comes then', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'emptied@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  for (const subject of ['one', 'two', 'three']) server.deliver('INBOX', mailWith(subject));
  await service.messages(id, 3);
  const folder = server.folders.get('INBOX');
  assert.ok(folder);
  folder.mails = [];
  folder.uidNext = 1;
  await service.call('POST', `/identities/${id}/sync`);
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'idle' && inbox.total === 0);
  const later = ['four', 'five', 'six', 'seven', 'eight'];
  for (const subject of later) server.deliver('INBOX', mailWith(subject));
  await service.call('POST', `/identities/${id}/sync`);
  assert.equal((await service.messages(id, 3 + later.length)).length, 8);
});

test('a folder that the server refuses while its older mail is read does not end the connection', async () => {
  const server = await startImapServer();
  for (let n = 0; n < 3; n += 1)
    server.deliver('Sent', mailWith(`sent ${n}`), new Date(Date.UTC(2024, 0, 1, 0, n)));
  const { id } = await service.connect(server, 'refused@home.example');
  await service.mailboxes(id);
  const ledger = await breakLedger(sql, id, '57P03', 'the database system is starting up');
  await importSince(id, '2020-01-01T00:00:00Z');
  await waitFor('the first try', () => reads(server) >= 1);
  server.refusedFolder = 'Sent';
  await service.mailboxes(id, ({ inbox, sent }) => {
    return inbox?.sync?.state === 'idle' && sent?.sync?.state === 'failing';
  });
  await ledger.fix();
  await isIdling(server);
  const logins = () => server.commands.filter((command) => /^(LOGIN|AUTHENTICATE)/.test(command)).length;
  const before = logins();
  server.deliver('INBOX', mailWith('anyway'));
  await service.messages(id, 1);
  assert.equal(logins(), before);
  server.refusedFolder = null;
  await service.call('POST', `/identities/${id}/sync`);
  await service.messages(id, 4);
});

test('a server that does not search the inbox for older mail: the connection goes on, and new mail is read', async () => {
  const { server, id } = await connectFull('unsearchable@home.example');
  await isIdling(server);
  const before = server.commands.length;
  server.onCommand = (command) => {
    server.unsearchableFolder = command.includes(' SINCE ') ? 'INBOX' : null;
  };
  await importSince(id, '2020-01-01T00:00:00Z');
  const { inbox } = await service.mailboxes(id, (boxes) => boxes.inbox?.sync?.state === 'failing');
  assert.match(inbox?.sync?.error?.message ?? '', /did not search/);
  await waitFor('IDLE', () => server.commands.slice(before).includes('IDLE'));
  server.deliver('INBOX', mailWith('new'));
  await service.messages(id, 1);
  assert.deepEqual(
    server.commands.slice(before).filter((command) => command.startsWith('LOGIN')),
    [],
  );
});

/**
 * A hostile IMAP server cannot fill the memory of the service: its connection is closed, and its owner is told. It cannot slow the
 * event loop either: what it sends is parsed in other threads, and no more of it than was asked for.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from './harness.ts';
import { type ImapServer, maxFlood, startImapServer } from './imap-server.ts';
import { isIdling, mailWith, startMailboxService } from './mailbox-service.ts';

const service = await startMailboxService({}, { syncTimes: { slowMs: 500 } });
const long = 'x'.repeat(50_000);
const header = `Subject: ${long}\r\n\r\n`;
const facts = 'RFC822.SIZE 10 INTERNALDATE "01-Jan-2030 00:00:00 +0000"';
const mib = 1024 * 1024;
/** `most`: bytes that the server may send. */
const floods = {
  'words at the login': { command: 'LOGIN', text: '* OK x\r\n'.repeat(10_000), most: mib / 4 },
  capabilities: { command: 'NAMESPACE', text: `* CAPABILITY ${long}\r\n`, most: mib / 4 },
  folders: { command: 'LIST', text: `* LIST () "/" "${long}"\r\n`, most: 2 * mib },
  'folders with short names': { command: 'LIST', text: '* LIST () / x\r\n'.repeat(10_000), most: 2 * mib },
  'search results': { command: 'UID SEARCH', text: `* SEARCH 1 ${long}\r\n`, most: mib / 8 },
  'headers that nobody asked for': {
    command: 'UID FETCH',
    text: `* 1 FETCH (UID 9999 ${facts} BODY[HEADER] {${header.length}}\r\n${header})\r\n`,
    most: mib + mib / 8 + mib,
  },
  'words while nothing is asked': { command: 'IDLE', text: `* OK ${long}\r\n`, most: mib / 4 },
  'short words while nothing is asked': {
    command: 'IDLE',
    text: '* OK x\r\n'.repeat(10_000),
    most: mib / 4,
  },
};
/** What Node reads from a socket at once. It is counted, and not parsed. */
const pieceBytes = 64 * 1024;
const maxResponses = 10_000;

/** As soon as the account is failing. */
const failureOf = (accountId: string) =>
  waitFor('the failure', async () => {
    const { body } = await service.call('GET', `/smtp-accounts/${accountId}`);
    return body.receive.state === 'failing' ? body.receive.error : null;
  });

test('a folder that claims to have millions of messages is not read', async () => {
  const server = await startImapServer();
  server.flood = { command: 'UID SEARCH', text: '* 16777216 EXISTS\r\n* ESEARCH UID ALL 1:16777216\r\n' };
  const { accountId } = await service.connect(server, 'millions@hostile.example');
  await waitFor('the failure', async () => {
    const { body } = await service.call('GET', `/smtp-accounts/${accountId}`);
    return body.receive.state === 'failing';
  });
  assert.ok(server.flooded < maxFlood, `${server.flooded} bytes were taken`);
  await server.stop();
});

const ranges = {
  'millions of messages that were found': '* 2000000 EXISTS\r\n* ESEARCH UID ALL 1200000000:4000000000\r\n',
  'the same messages again and again': `* 2000 EXISTS\r\n* ESEARCH UID ALL ${'1:1999,'.repeat(9000)}1\r\n`,
  'found messages in a string': '* 2000000 EXISTS\r\n* ESEARCH UID ALL "1:4000000000"\r\n',
  'found messages after a number': '* 2000000 EXISTS\r\n* 1 ESEARCH UID ALL 1:4e9\r\n',
  'millions of messages that were deleted': '* VANISHED 1:4000000000\r\n',
};

for (const [what, text] of Object.entries(ranges)) {
  test(`a short line that stands for ${what}: no list of them is made`, async () => {
    const server = await startImapServer();
    server.flood = { command: 'UID SEARCH', text };
    const { accountId } = await service.connect(server, `${what.replaceAll(' ', '-')}@hostile.example`);
    assert.match((await failureOf(accountId)).message, /more than it was asked for: .* numbers of messages/);
    server.flood = null;
    await server.stop();
  });
}

test('a folder without a valid UIDVALIDITY is a failure of the server, which its owner sees', async () => {
  const server = await startImapServer();
  const inbox = server.folders.get('INBOX') ?? assert.fail();
  inbox.uidValidity = Number.NaN;
  const { accountId } = await service.connect(server, 'validity@hostile.example');
  assert.match((await failureOf(accountId)).message, /UIDVALIDITY/);
  await server.stop();
});

test('a folder that has more messages than a number of the database is a failure of the server', async () => {
  const server = await startImapServer();
  const { id, accountId } = await service.connect(server, 'status@hostile.example');
  await service.mailboxes(id);
  const { mails } = server.folders.get('Sent') ?? assert.fail();
  mails.length = 2 ** 32 - 1;
  assert.equal((await service.call('POST', `/identities/${id}/sync`)).status, 202);
  assert.match((await failureOf(accountId)).message, /more than 2000000 messages/);
  await server.stop();
});

test('a server that numbers a folder anew each time it is opened does not keep the connection busy', async () => {
  const server = await startImapServer();
  const sent = server.folders.get('Sent') ?? assert.fail();
  // More than is read at once.
  for (let n = 0; n < 60; n += 1) server.deliver('Sent', mailWith(`${n}`), new Date('2024-01-01T00:00:00Z'));
  const { id } = await service.connect(server, 'anew@hostile.example');
  await service.mailboxes(id);
  await isIdling(server);
  server.onCommand = (command) => {
    if (/^EXAMINE "?Sent/.test(command)) sent.uidValidity += 1;
  };
  const before = server.commands.length;
  const body = { since: '2023-01-01T00:00:00Z' };
  assert.equal((await service.call('POST', `/identities/${id}/sync`, { body })).status, 202);
  await waitFor('IDLE', () => server.commands.slice(before).includes('IDLE'));
  const opened = server.commands.slice(before).filter((command) => /^EXAMINE "?Sent/.test(command));
  assert.equal(opened.length, 2);
  await server.stop();
});

for (const [what, flood] of Object.entries(floods)) {
  test(`endless ${what}: the connection is closed`, async () => {
    const server = await startImapServer();
    server.capabilities = 'IMAP4rev1 NAMESPACE SPECIAL-USE IDLE';
    server.flood = flood;
    const { accountId } = await service.connect(server, `${what.replaceAll(' ', '-')}@hostile.example`);
    if (flood.command === 'UID FETCH') {
      await waitFor('the first search', () => server.commands.some((one) => one.startsWith('UID SEARCH')));
      server.deliver('INBOX', mailWith('new'));
      await service.sql`update imap_connections set requests = requests + 1`;
    }
    const receive = await waitFor('the failure', async () => {
      const { body } = await service.call('GET', `/smtp-accounts/${accountId}`);
      return body.receive.state === 'failing' ? body.receive : null;
    });
    const taken = /more than it was asked for: (\d+) (bytes|responses)/.exec(receive.error.message);
    const most = taken?.[2] === 'bytes' ? flood.most + pieceBytes : maxResponses + 1;
    assert.ok(Number(taken?.[1]) <= most, receive.error.message);
    assert.ok(server.flooded < maxFlood, `${server.flooded} bytes were taken`);
    server.flood = null;
    await server.stop();
  });
}

test('a message that is much longer than its RFC822.SIZE is not recorded', async () => {
  const server = await startImapServer();
  const { id, accountId } = await service.connect(server, 'longer@hostile.example');
  await isIdling(server);
  server.claimedSize = 10;
  server.deliver('INBOX', `${mailWith('long')}${'x'.repeat(20_000_000)}`);
  assert.match((await failureOf(accountId)).message, /more than it was asked for/);
  assert.deepEqual(await service.messages(id, 0), []);
});

test('a long header is read whole, and its message recorded', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'header@hostile.example');
  await isIdling(server);
  const raw = mailWith('long', { 'X-Long': `a${'\r\n x'.repeat(2_400_000)}` });
  server.deliver('INBOX', raw);
  const [message] = await service.messages(id, 1);
  assert.equal(message.size, raw.length);
  // Known by all of its header: a message that differs at the end of it is another one.
  server.deliver(
    'INBOX',
    raw.replace('\r\n x\r\n', '\r\n y\r\n'),
    server.folders.get('INBOX')?.mails[0]?.date,
  );
  assert.equal((await service.messages(id, 2)).length, 2);
});

test('some owners have all the memory with messages that never come: another owner gets mail', async () => {
  const owners = [await service.makeUser(), await service.makeUser(), await service.makeUser()];
  const servers: ImapServer[] = [];
  for (const owner of owners)
    for (const name of ['one', 'two']) {
      const server = await startImapServer();
      server.claimedSize = 25_000_000;
      server.silence = 'UID FETCH 1 (UID BODY.PEEK[])';
      await service.connect(server, `${name}@${owner.userId}.example`, owner);
      await isIdling(server);
      server.deliver('INBOX', mailWith('never'));
      servers.push(server);
    }
  await waitFor('silent servers', () => {
    const asked = servers.filter(({ commands, silence }) => commands.some((one) => one === silence));
    return asked.length >= 4;
  });
  const server = await startImapServer();
  const { id } = await service.connect(server, 'other@hostile.example');
  await isIdling(server);
  const raw = `${mailWith('large')}${'x'.repeat(20_000_000)}`;
  server.deliver('INBOX', raw);
  const [message] = await service.messages(id, 1);
  assert.equal(message.size, raw.length);
});

test('a server that ends each connection after the first check is called less and less often', async () => {
  const server = await startImapServer();
  server.onCommand = (command) => {
    if (command === 'IDLE') server.drop();
  };
  const { id } = await service.connect(server, 'restless@hostile.example');
  await waitFor('three connections', async () => {
    const { sql } = service;
    await sql`update imap_connections set next_try_at = now() where identity_id = ${id} and lease_token is null`;
    const [row] = await sql<{ failures: number }[]>`
      select failures from imap_connections where identity_id = ${id}`;
    return row && row.failures >= 3;
  });
  await server.stop();
});

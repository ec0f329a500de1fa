/** A hostile IMAP server cannot fill the memory of the service: its connection is closed, and its owner is told. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from './harness.ts';
import { maxFlood, startImapServer } from './imap-server.ts';
import { mailWith, startMailboxService } from './mailbox-service.ts';

const service = await startMailboxService();
const long = 'x'.repeat(100_000);
const header = `Subject: ${long}\r\n\r\n`;
const facts = 'RFC822.SIZE 10 INTERNALDATE "01-Jan-2030 00:00:00 +0000"';
const floods = {
  capabilities: { command: 'NAMESPACE', text: `* CAPABILITY ${long}\r\n` },
  folders: { command: 'LIST', text: `* LIST () "/" "${long}"\r\n` },
  'search results': { command: 'UID SEARCH', text: `* SEARCH 1 ${long}\r\n` },
  'headers that nobody asked for': {
    command: 'UID FETCH',
    text: `* 1 FETCH (UID 9999 ${facts} BODY[HEADER] {${header.length}}\r\n${header})\r\n`,
  },
};

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

for (const [what, flood] of Object.entries(floods)) {
  test(`endless ${what}: the connection is closed`, async () => {
    const server = await startImapServer();
    server.capabilities = 'IMAP4rev1 NAMESPACE SPECIAL-USE';
    server.flood = flood;
    const { accountId } = await service.connect(server, `${flood.command.replace(' ', '')}@hostile.example`);
    if (flood.command === 'UID FETCH') {
      await waitFor('the first search', () => server.commands.some((one) => one.startsWith('UID SEARCH')));
      server.deliver('INBOX', mailWith('new'));
      await service.sql`update imap_connections set requests = requests + 1`;
    }
    const receive = await waitFor('the failure', async () => {
      const { body } = await service.call('GET', `/smtp-accounts/${accountId}`);
      return body.receive.state === 'failing' ? body.receive : null;
    });
    assert.match(receive.error.message, /more than it was asked for/);
    assert.ok(server.flooded < maxFlood, `${server.flooded} bytes were taken`);
    server.flood = null;
    await server.stop();
  });
}

/** No mail is lost when the connection ends between two commands: imapflow then answers with nothing, and without an error. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { transaction } from '../src/db/client.ts';
import { waitFor } from './harness.ts';
import { type ImapServer, startImapServer } from './imap-server.ts';
import { isIdling, mailWith, startMailboxService } from './mailbox-service.ts';

const service = await startMailboxService();
const { sql } = service;

/** Two messages of this size are recorded one after the other. */
const largeText = `${'x'.repeat(998)}\r\n`.repeat(700);
const hourAgo = () => new Date(Date.now() - 3_600_000);

const hasConnections = async (count: number) =>
  new RegExp(`^posthorn_sync_connections ${count}$`, 'm').test((await service.call('GET', '/metrics')).text);

/** The service knows of the end, and the work that waits for the database has not gone on. */
async function cut(server: ImapServer): Promise<void> {
  server.drop();
  await waitFor('the end of the connection', () => hasConnections(0));
}

const waitsFor = (query: RegExp) =>
  waitFor('a query that waits', async () => {
    const waiting = await sql<{ query: string }[]>`
      select query from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
    return waiting.some((one) => query.test(one.query));
  });

async function connect(value: string) {
  const server = await startImapServer();
  for (const subject of ['old one', 'old two']) server.deliver('INBOX', mailWith(subject), hourAgo());
  const { id, accountId } = await service.connect(server, value);
  await service.mailboxes(id);
  await isIdling(server);
  const deliverTwo = () => {
    for (const subject of ['one', 'two']) server.deliver('INBOX', mailWith(subject) + largeText);
  };
  /** The mail of the next connection, which is the last one. */
  const readAgain = async (count: number) => {
    await waitFor('the next connection', async () => {
      await sql`update imap_connections set next_try_at = now() where identity_id = ${id} and lease_token is null`;
      return hasConnections(1);
    });
    await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'idle');
    await service.call('POST', `/identities/${id}/sync`);
    const messages = await service.messages(id, count);
    assert.equal((await service.call('DELETE', `/identities/${id}`)).status, 204);
    await waitFor('the end', () => hasConnections(0));
    return messages.map(({ subject }) => subject).sort();
  };
  return { server, id, accountId, deliverTwo, readAgain };
}

test('the connection ends while the first of two batches is recorded: the next connection reads the second', async () => {
  const { server, deliverTwo, readAgain } = await connect('batch@cut.example');
  await transaction(sql, async (holder) => {
    await holder`lock table mailbox_ledger in share mode`;
    deliverTwo();
    await waitsFor(/insert into mailbox_ledger/);
    await cut(server);
  });
  assert.deepEqual(await readAgain(2), ['one', 'two']);
});

test('the connection ends while the ledger is asked which mail is known: the next connection reads the mail', async () => {
  const { server, deliverTwo, readAgain } = await connect('known@cut.example');
  await transaction(sql, async (holder) => {
    await holder`lock table mailbox_ledger in access exclusive mode`;
    deliverTwo();
    await waitsFor(/from mailbox_ledger/);
    await cut(server);
  });
  assert.deepEqual(await readAgain(2), ['one', 'two']);
});

test('the connection ends before older mail is searched for: the next connection imports it', async () => {
  const { server, id, accountId, readAgain } = await connect('older@cut.example');
  await transaction(sql, async (holder) => {
    // The last thing that is written before older mail is searched for.
    await holder`select from mail_servers where account_id = ${accountId} for update`;
    const since = new Date(Date.now() - 24 * 3_600_000).toISOString();
    const asked = await service.call('POST', `/identities/${id}/sync`, { body: { since } });
    assert.equal(asked.status, 202, asked.text);
    await waitsFor(/update mail_servers/);
    await cut(server);
  });
  assert.deepEqual(await readAgain(2), ['old one', 'old two']);
});

test('the process stops while the first of two batches is recorded: the next process reads the second', async () => {
  const server = await startImapServer();
  const key = Buffer.alloc(32, 7).toString('base64');
  const api = await startMailboxService({ POSTHORN_SECRET_KEY: key, POSTHORN_ROLES: 'api' });
  const settings = { POSTHORN_SECRET_KEY: key, POSTHORN_ROLES: 'sync', DATABASE_URL: api.databaseUrl };
  const first = await startMailboxService(settings);
  const { id } = await api.connect(server, 'stop@cut.example');
  await api.mailboxes(id);
  await isIdling(server);
  const stopping = await transaction(api.sql, async (holder) => {
    await holder`lock table mailbox_ledger in share mode`;
    for (const subject of ['one', 'two']) server.deliver('INBOX', mailWith(subject) + largeText);
    await waitFor('a query that waits', async () => {
      const { count } = await api.sql`
        select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query ~ 'insert into mailbox_ledger'`;
      return count > 0;
    });
    const stopped = first.stop();
    await waitFor('the end of the connection', () => server.sessions() === 0);
    return { stopped };
  });
  await stopping.stopped;
  await startMailboxService(settings);
  const messages = await api.messages(id, 2);
  assert.deepEqual(messages.map(({ subject }) => subject).sort(), ['one', 'two']);
});

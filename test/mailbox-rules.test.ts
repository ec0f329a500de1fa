/** A request for older mail counts, also if it comes while the connection reads what an earlier request asked for. */
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { connect, type Sql, transaction } from '../src/db/client.ts';
import { makeMetrics } from '../src/lib/metrics.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { startSync } from '../src/mailboxes/sync.ts';
import { AccessTokens } from '../src/net/access-tokens.ts';
import { makeEgress } from '../src/net/egress.ts';
import { makeTestLog, waitFor } from './harness.ts';
import { startImapServer } from './imap-server.ts';
import { makeImapThreads } from './imap-threads.ts';
import { isIdling, mailWith, startMailboxService } from './mailbox-service.ts';

const key = randomBytes(32);
const service = await startMailboxService({
  ...{ POSTHORN_SECRET_KEY: key.toString('base64'), POSTHORN_ROLES: 'api' },
});

/** The same database. The answer of each query that starts so goes through `pass`. */
function passAnswers(sql: Sql, start: RegExp, pass: (rows: object[]) => Promise<void>): Sql {
  const ask = (...args: Parameters<Sql>) => {
    const query = sql(...args);
    if (!start.test(args[0][0] ?? '')) return query;
    return query.then(async (rows) => {
      await pass(rows);
      return rows;
    });
  };
  return Object.assign(ask, sql) as Sql;
}

test('a request for older mail that comes while the rules of the request before it are read', async (t) => {
  const hourMs = 3_600_000;
  const held = Promise.withResolvers<void>();
  let isReading = false;
  let notedScan = 0;
  const pool = connect(service.databaseUrl, { max: 4, applicationName: 'posthorn sync test' });
  const late = passAnswers(pool, /^\s*select import_since/, () => {
    isReading = true;
    return held.promise;
  });
  const sql = passAnswers(late, /^\s*select identity_id as "identityId", lease_token/, async (rows) => {
    for (const row of rows) if ('scan' in row) notedScan = Number(row.scan);
  });
  const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: null });
  const tokens = new AccessTokens({ egress, allowHttp: true });
  const sync = startSync({
    ...{ sql, log: makeTestLog().log, metrics: makeMetrics(), maxMessageBytes: 1024 * 1024 },
    recordMails: (_found, alsoWrite) => transaction(sql, alsoWrite),
    accounts: {
      sql,
      sealer: makeSealer([key]),
      tokens,
      imap: { egress, threads: makeImapThreads(), production: false },
    },
    times: { checkMs: hourMs, pollMs: 50 },
  });
  t.after(async () => {
    held.resolve();
    await sync.stop();
    await pool.end();
  });
  const server = await startImapServer();
  server.deliver('INBOX', mailWith('of 2019'), new Date('2019-01-01T00:00:00Z'));
  const { id } = await service.connect(server, 'rules@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  const request = (since: string) => service.call('POST', `/identities/${id}/sync`, { body: { since } });
  await request('2022-01-01T00:00:00Z');
  await waitFor('the rules', () => isReading);
  await request('2018-01-01T00:00:00Z');
  await waitFor('the second request', () => notedScan === 2);
  held.resolve();
  const isRead = async () => (await sql`select from mailbox_ledger where identity_id = ${id}`).count === 1;
  await waitFor('the older mail', isRead);
});

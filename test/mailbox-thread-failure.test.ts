/** The server of one owner breaks a thread: the mailboxes of others on the thread connect again at once, and are not shown as failing. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { connect, transaction } from '../src/db/client.ts';
import { makeMetrics } from '../src/lib/metrics.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { startSync } from '../src/mailboxes/sync.ts';
import { AccessTokens } from '../src/net/access-tokens.ts';
import { makeEgress } from '../src/net/egress.ts';
import { makeTestLog, waitFor } from './harness.ts';
import { startImapServer } from './imap-server.ts';
import { makeImapThreads } from './imap-threads.ts';
import { isIdling, startMailboxService } from './mailbox-service.ts';

const key = randomBytes(32);
const service = await startMailboxService({
  ...{ POSTHORN_SECRET_KEY: key.toString('base64'), POSTHORN_ROLES: 'api' },
});

test('only the mailbox that the thread worked for waits before it connects again', async (t) => {
  const sql = connect(service.databaseUrl, { max: 4, applicationName: 'posthorn sync test' });
  const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: null });
  const file = new URL('./fixtures/faulty-imap-thread.ts', import.meta.url);
  const threads = makeImapThreads({ count: 1, heapMb: 32, file });
  const sync = startSync({
    ...{ sql, log: makeTestLog().log, metrics: makeMetrics(), maxMessageBytes: 1024 * 1024 },
    recordMails: (_found, alsoWrite) => transaction(sql, alsoWrite),
    accounts: {
      sql,
      sealer: makeSealer([key]),
      tokens: new AccessTokens({ egress, allowHttp: true }),
      imap: { egress, threads, production: false },
    },
    times: { pollMs: 50 },
  });
  t.after(async () => {
    await sync.stop();
    await sql.end();
  });
  const failuresOf = async (id: string) => {
    const [row] = await sql`select failures from imap_connections where identity_id = ${id}`;
    return row?.failures;
  };
  const stateOf = async (accountId: string) =>
    (await service.call('GET', `/smtp-accounts/${accountId}`)).body.receive.state;
  const [good, bad] = [await startImapServer(), await startImapServer()];
  const innocent = await service.connect(good, 'innocent@home.example');
  await isIdling(good);
  // The thread breaks when it is asked for this folder.
  const sent = bad.folders.get('Sent') ?? assert.fail();
  bad.folders.delete('Sent');
  bad.folders.set('Huge', sent);
  const guilty = await service.connect(bad, 'guilty@home.example');
  await waitFor('the failure', async () => (await failuresOf(guilty.id)) === 1);
  await isIdling(good, 2);
  assert.equal(await failuresOf(innocent.id), 0);
  assert.equal(await stateOf(innocent.accountId), 'ok');
  assert.notEqual(await stateOf(guilty.accountId), 'failing');
});

/**
 * PostgreSQL keeps a plan that it made while the queue was empty. When the queue fills at once, as by a replay, each statement still
 * reads only the rows that it needs. No service runs here.
 */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { readOldestPending } from '../src/store/backlog.ts';
import { redeliver } from '../src/store/deliveries.ts';
import {
  type ClaimedDelivery,
  claimDeliveries,
  promoteDue,
  recordTries,
  releaseLeases,
  renewLeases,
  type TryResult,
} from '../src/store/delivery-queue.ts';
import { holdDeliveries, settleWebhooks } from '../src/store/held.ts';
import { purgeOld } from '../src/store/purge.ts';
import { ensureUser } from '../src/store/users.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 1, applicationName: 'posthorn plans' });
const other = connect(database.url, { max: 1, applicationName: 'posthorn plans, other' });
after(async () => {
  await sql.end();
  await other.end();
  await database.drop();
});

const waiting = 40_000;
const mostRead = 8000;

await other.script('alter table delivery_queue set (autovacuum_enabled = false)');
const { userId: owner } = (await ensureUser(other, 'plans@users.example')).user;
await other`
  insert into webhooks (id, owner_id, url, events, secret)
  select uuidv7(), ${owner}, 'https://example.com/', '{message.received}', ${randomBytes(8)} from generate_series(1, 100)`;
await other.script('vacuum analyze delivery_queue');
const [{ id: hook = '' } = {}] = await other<{ id: string }[]>`select id from webhooks limit 1`;

let claimed: ClaimedDelivery[] = [];
const leases = () => (claimed.length > 0 ? claimed : [{ id: randomUUID(), token: randomUUID(), tries: 0 }]);
const result: TryResult = {
  ...{ status: 'delivered', waitSeconds: null, durationMs: 1, responseStatus: 200, responseHeaders: null },
  ...{ responseBody: null, error: null, errorDetail: null },
};
const end = (status: TryResult['status']) => () =>
  recordTries(
    sql,
    leases()
      .splice(0, 40)
      .map(({ id, token, tries }) => ({
        ...{ ...result, status, waitSeconds: status === 'pending' ? 60 : null },
        ...{ id, token, tries, startedAt: performance.now() },
      })),
  );
const setEnabled = (enabled: boolean) => async () => {
  await other`update webhooks set enabled = ${enabled} where id = ${hook}`;
  return settleWebhooks(sql, 100);
};

const statements: Record<string, () => Promise<unknown>> = {
  claim: async () => {
    claimed = await claimDeliveries(sql, {
      ...{ token: randomUUID(), afterGroup: null, afterLanes: new Map(), skippedGroups: [] },
      ...{ allowances: new Map(), allowance: 4, maxLanes: 64 },
    });
  },
  'renewal of leases': () => renewLeases(sql, leases()),
  'record of successes': end('delivered'),
  'record of retries': end('pending'),
  'record of failures': end('failed'),
  hold: () => holdDeliveries(sql, leases().slice(0, 40)),
  release: () => releaseLeases(sql, leases()),
  promotion: () => promoteDue(sql, 100),
  redelivery: () => redeliver(sql, owner, leases()[0]?.id ?? ''),
  'settling of a disabled webhook': setEnabled(false),
  'settling of an enabled webhook': setEnabled(true),
  'age of the oldest': () => readOldestPending(sql),
  purge: () => purgeOld(sql, 30, 100),
};

/** Rows of the queue that were read, by whatever index. */
async function countReads(): Promise<number> {
  await sql`select pg_stat_force_next_flush()`;
  await sql`select 1`;
  const [{ reads } = { reads: 0 }] = await other<{ reads: number }[]>`
    select seq_tup_read::int + (select sum(idx_tup_read)::int from pg_stat_user_indexes where relname = 'delivery_queue') as reads
    from pg_stat_user_tables where relname = 'delivery_queue'`;
  return reads;
}

/**
 * Scans of the indexes whose last column is the id. The planner may look for ids there, and PostgreSQL then compares each id with
 * every row of the queue, without counting these rows as read.
 */
async function countListScans(): Promise<number> {
  const [{ scans } = { scans: 0 }] = await other<{ scans: number }[]>`
    select sum(idx_scan)::int as scans from pg_stat_user_indexes
    where indexrelname in ('delivery_queue_listed', 'delivery_queue_of_owner')`;
  return scans;
}

test(`plans of an empty queue, then ${waiting} deliveries wait`, async (t) => {
  for (let n = 0; n < 8; n += 1) for (const run of Object.values(statements)) await run();
  await other`
    insert into delivery_queue (id, owner_id, event_id, webhook_id, event, ready, next_attempt_at)
    select uuidv7(), ${owner}, uuidv7(), webhooks.id, 'message.received', n % 4 > 0,
      case when n % 4 > 0 then now() else now() - interval '1 minute' end
    from generate_series(1, ${waiting / 100}::int) n cross join webhooks`;
  for (const [name, run] of Object.entries(statements))
    await t.test(name, async () => {
      const [before, listScans] = [await countReads(), await countListScans()];
      await run();
      const reads = (await countReads()) - before;
      assert.equal(await countListScans(), listScans, 'the index for lists was scanned');
      assert.ok(reads < mostRead, `${reads} rows were read`);
    });
});

test('the time to renew leases does not grow with the square of their number', async () => {
  const rows = await other<{ id: string }[]>`select id from delivery_queue limit 16000`;
  const tokens = Array.from({ length: 64 }, () => randomUUID());
  const all = rows.map(({ id }, n) => ({ id, token: tokens[n % 64] ?? '' }));
  await other`
    update delivery_queue set lease_token = lease.token from unnest(${all.map(({ id }) => id)}::uuid[],
      ${all.map(({ token }) => token)}::uuid[]) as lease (id, token) where delivery_queue.id = lease.id`;
  const measure = async (count: number) => {
    let least = Number.POSITIVE_INFINITY;
    for (let n = 0; n < 3; n += 1) {
      const from = performance.now();
      assert.equal((await renewLeases(sql, all.slice(0, count))).size, count);
      least = Math.min(least, performance.now() - from);
    }
    return least;
  };
  const [few, many] = [await measure(1000), await measure(16_000)];
  // With the square: 256 times.
  assert.ok(many < 80 * few, `1,000: ${few.toFixed(1)} ms, 16,000: ${many.toFixed(1)} ms`);
});

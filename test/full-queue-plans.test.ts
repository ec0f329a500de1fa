/**
 * What each statement of the two queues reads when PostgreSQL plans it while the queue is full and not analysed: a burst fills the
 * queue in seconds, and the next ANALYZE comes a minute later. Whatever the number of owners, lanes and events, a statement hops
 * along the index of ready rows, or finds rows by id. `queue-plans.test.ts` has the plans of an empty queue. No service runs here.
 */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { readDatabaseUrl } from '../src/db/address.ts';
import { connect, type Sql } from '../src/db/client.ts';
import { Connection } from '../src/db/connection.ts';
import { makeSql } from '../src/db/query.ts';
import type { Lease } from '../src/queue/leases.ts';
import type { ClaimRequest } from '../src/queue/worker.ts';
import { readOldestPending } from '../src/store/backlog.ts';
import {
  cancelDeliveries,
  claimDeliveries,
  promoteDue,
  recordTries,
  releaseLeases,
  renewLeases,
  type TryResult,
} from '../src/store/delivery-queue.ts';
import { findDueWork } from '../src/store/due-work.ts';
import { holdDeliveries } from '../src/store/held.ts';
import {
  claimSends,
  dropSends,
  promoteSends,
  recordSends,
  releaseSends,
  renewSends,
  type TriedSend,
} from '../src/store/send-queue.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();

interface PlanNode {
  'Node Type': string;
  'Relation Name'?: string;
  'Index Name'?: string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  'Shared Hit Blocks': number;
  'Shared Read Blocks': number;
  Plans?: PlanNode[];
}

/** A connection of the service's kind, whose server reports the plan of every statement that runs. */
async function openExplained() {
  const address = readDatabaseUrl(database.url);
  const connection = new Connection(address, address.endpoints[0], {
    applicationName: 'posthorn full plans',
  });
  const plans: PlanNode[] = [];
  connection.on('notice', ({ message = '' }) => {
    const [, json] = /plan:\n(\{.*\})/s.exec(message) ?? [];
    if (json) plans.push(JSON.parse(json).Plan);
  });
  await connection.connect();
  await connection.runScript(`
    load 'auto_explain';
    set auto_explain.log_level = notice;
    set auto_explain.log_format = json;
    set auto_explain.log_analyze = on;
    set auto_explain.log_buffers = on;
    set auto_explain.log_timing = off;
    set auto_explain.log_min_duration = 0`);
  const sql = makeSql((work) => work(connection));
  return { sql, plans, [Symbol.asyncDispose]: () => connection.close() };
}

function listNodes(node: PlanNode): PlanNode[] {
  return [node, ...(node.Plans ?? []).flatMap(listNodes)];
}

const setUp = connect(database.url, { max: 1, applicationName: 'posthorn full plans, set-up' });
after(async () => {
  await setUp.end();
  await database.drop();
});
await setUp.script(`
  alter table delivery_queue set (autovacuum_enabled = false);
  alter table send_queue set (autovacuum_enabled = false)`);

function clear(): Promise<void> {
  return setUp.script(`truncate delivery_queue, send_queue, recipients, ended_deliveries, earlier_attempts, webhooks,
    retired_webhook_secrets`);
}

/** The rows are spread evenly over the lanes, and the lanes over the owners. */
interface Shape {
  owners: number;
  lanes: number;
  events: number;
  rows: number;
}

async function fill({ owners, lanes, events, rows }: Shape): Promise<void> {
  await setUp`
    insert into users (id, email)
    select md5('owner' || n)::uuid, n || '@users.example' from generate_series(0, ${owners - 1}::int) n on conflict do nothing`;
  await setUp`
    insert into webhooks (id, owner_id, url, events, enabled, secret)
    select md5('lane' || n)::uuid, md5('owner' || n % ${owners}::int)::uuid, 'https://example.com/', '{event}', true, ''
    from generate_series(0, ${lanes - 1}::int) n on conflict do nothing`;
  const made = setUp`(
    select md5('row' || n)::uuid as id, md5('owner' || n % ${lanes}::int % ${owners}::int)::uuid as owner_id,
      md5('lane' || n % ${lanes}::int)::uuid as lane_id, 'event' || n % ${events}::int as event, n % 7 > 0 as ready,
      now() - interval '1 minute' as due
    from generate_series(1, ${rows}::int) n
  ) made`;
  await setUp`
    insert into delivery_queue (id, owner_id, webhook_id, event_id, event, ready, next_attempt_at)
    select id, owner_id, lane_id, id, event, ready, due from ${made}`;
  await setUp`
    insert into send_queue (id, owner_id, lane_id, message_id, n, ready, next_attempt_at)
    select id, owner_id, lane_id, id, 0, ready, due from ${made}`;
  await setUp`
    insert into recipients (message_id, n, owner_id, address, address_key, kind, status)
    select id, 0, owner_id, 'a@b.example', 'a@b.example', 'to', 'queued' from ${made}`;
}

function makeRequest(allowance: number): ClaimRequest {
  return {
    ...{ token: randomUUID(), afterGroup: null, afterLanes: new Map(), skippedGroups: [] },
    ...{ allowances: new Map(), allowance, maxLanes: 64 },
  };
}

const result: TryResult = {
  ...{ status: 'delivered', waitSeconds: null, durationMs: 1, responseStatus: 200, responseHeaders: null },
  ...{ responseBody: null, error: null, errorDetail: null },
};
const recordDeliveries = (sql: Sql, leases: Lease[], status: TryResult['status']) =>
  recordTries(
    sql,
    leases.map((lease) => ({
      ...{ ...result, ...lease, status, tries: 0, startedAt: performance.now() },
      waitSeconds: status === 'pending' ? 60 : null,
    })),
  );
const recordMail = (sql: Sql, leases: Lease[], status: TriedSend['status']) =>
  recordSends(
    sql,
    leases.map((lease) => ({
      ...{ ...lease, messageId: lease.id, n: 0, status, waitSeconds: status === 'queued' ? 60 : null },
      ...{ attempt: null, transport: 'direct', accountId: null, bounce: null, suppresses: false },
    })),
  );

type Run = (sql: Sql, leases: Lease[]) => Promise<unknown>;

type Claim = (sql: Sql, request: ClaimRequest) => Promise<Lease[]>;

const queues: Record<string, { claim: Claim; others: Record<string, Run> }> = {
  delivery_queue: {
    claim: claimDeliveries,
    others: {
      'renewal of leases': renewLeases,
      'record of successes': (sql, leases) => recordDeliveries(sql, leases, 'delivered'),
      'record of retries': (sql, leases) => recordDeliveries(sql, leases, 'pending'),
      hold: holdDeliveries,
      cancellation: cancelDeliveries,
      promotion: (sql) => promoteDue(sql, batch),
      'age of the oldest': readOldestPending,
      'due work': findDueWork,
      release: releaseLeases,
    },
  },
  send_queue: {
    claim: claimSends,
    others: {
      'renewal of leases': renewSends,
      'record of sent mail': (sql, leases) => recordMail(sql, leases, 'sent'),
      'record of retries': (sql, leases) => recordMail(sql, leases, 'queued'),
      'deletion of mail': dropSends,
      promotion: (sql) => promoteSends(sql, batch),
      'due work': findDueWork,
      release: releaseSends,
    },
  },
};

const rows = 6000;
const shapes: Shape[] = [
  { owners: 1, lanes: 1, events: 1, rows },
  { owners: 1, lanes: 50, events: 1, rows },
  { owners: 1, lanes: 300, events: 4, rows },
  { owners: 20, lanes: 20, events: 3, rows },
  { owners: 20, lanes: 300, events: 3, rows },
];
const batch = 40;
const leasesEach = 4;
/** PostgreSQL plans a prepared statement for its values five times, and may then keep one plan for all values. */
const runs = 7;

function checkPlans(plans: readonly PlanNode[], mostRows: number): void {
  assert.ok(plans.length > 0);
  const nodes = plans.flatMap(listNodes);
  const used = nodes.map(
    (node) => node['Index Name'] ?? `${node['Node Type']} ${node['Relation Name'] ?? ''}`,
  );
  const text = JSON.stringify(plans, undefined, 1);
  assert.deepEqual(
    used.filter((name) =>
      /^(Incremental Sort|Seq Scan \w+_queue|\w+_queue_(listed|of_owner|by_message))/.test(name),
    ),
    [],
    text,
  );
  const scans = nodes.filter(
    (node) => node['Relation Name']?.endsWith('_queue') && node['Node Type'] !== 'ModifyTable',
  );
  const sum = (count: (node: PlanNode) => number) => scans.reduce((total, node) => total + count(node), 0);
  const read = sum(
    (node) => (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)) * node['Actual Loops'],
  );
  const blocks = sum((node) => node['Shared Hit Blocks'] + node['Shared Read Blocks']);
  assert.ok(read <= mostRows, `${read} rows read, at most ${mostRows} expected: ${text}`);
  // To find a row costs a few blocks of its index, and one of the table.
  assert.ok(blocks <= 10 * mostRows + 50, `${blocks} blocks read: ${text}`);
}

for (const known of ['never', 'while it was small'])
  for (const shape of shapes)
    for (const [table, { claim, others }] of Object.entries(queues)) {
      const { owners, lanes, events } = shape;
      const each = `${owners} owners, ${lanes} lanes, ${events} events`;
      test(`${table} of ${each}, analysed ${known}: what is read grows with the lanes`, async () => {
        await clear();
        if (known !== 'never') {
          await fill({ owners: 1, lanes: 1, events: 1, rows: 20 });
          await setUp.script(`analyze ${table}`);
          await setUp.script('delete from delivery_queue; delete from send_queue; delete from recipients');
        }
        await fill(shape);
        await using explained = await openExplained();
        const { sql, plans } = explained;
        const hops = owners + lanes;
        for (let n = 0; n < runs; n += 1) {
          const leases = await claim(sql, makeRequest(Math.ceil(50 / lanes)));
          assert.ok(leases.length >= 50);
          checkPlans(plans.splice(0), 4 * hops + 2 * leases.length + 100);
          for (const run of Object.values(others)) {
            await run(sql, leases.splice(0, run === others.release ? leases.length : leasesEach));
            checkPlans(plans.splice(0), 4 * hops + 200);
          }
          await claim(sql, makeRequest(0));
          // A lane that may claim nothing is not looked into.
          checkPlans(plans.splice(0), hops + owners + 10);
        }
      });
    }

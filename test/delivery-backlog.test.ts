/** A claim reads a few deliveries of each webhook, however many wait. No service runs here. */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { connect, type Sql } from '../src/db/client.ts';
import { claimDeliveries } from '../src/store/delivery-queue.ts';
import { ensureUser } from '../src/store/users.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
// 120,000 rows are inserted at once.
const patient = { statementTimeoutMs: 0 };
const sql = connect(database.url, { max: 2, applicationName: 'posthorn backlog test', ...patient });
after(async () => {
  await sql.end();
  await database.drop();
});

const { userId: owner } = (await ensureUser(sql, 'backlog@users.example')).user;

async function fill(webhooks: number, waiting: number): Promise<void> {
  await sql`truncate delivery_queue, events, webhooks, retired_webhook_secrets`;
  await sql`
    insert into webhooks (id, owner_id, url, events, enabled, secret)
    select uuidv7(), ${owner}, 'https://example.com/', '{message.received}', true, ${randomBytes(8)}
    from generate_series(1, ${webhooks}::int)`;
  await sql`
    insert into events (id, owner_id, event, data)
    select uuidv7(), ${owner}, 'message.received', '{}' from generate_series(1, ${waiting}::int)`;
  await sql`
    insert into delivery_queue (id, owner_id, event_id, webhook_id, event)
    select delivery_id(events.id, webhooks.id), ${owner}, events.id, webhooks.id, 'message.received'
    from events cross join webhooks order by events.id`;
  await sql.script('vacuum analyze delivery_queue');
}

/** Keeps the plan of the claim, and returns no rows. */
function explain(plans: string[]): Sql {
  const explained = (strings: TemplateStringsArray, ...values: never[]) => {
    const statement = sql(strings, ...values);
    if (!strings[0]?.includes('with recursive')) return statement;
    const lines = sql<{ 'QUERY PLAN': string }[]>`explain (analyze, timing off) ${statement}`;
    return lines.then((rows) => {
      plans.push(rows.map((row) => row['QUERY PLAN']).join('\n'));
      return [];
    });
  };
  return explained as unknown as Sql;
}

for (const [webhooks, waiting] of [
  [300, 400],
  [1, 20_000],
] as const) {
  test(`a claim reads the index of ready deliveries, and sorts nothing: ${webhooks} webhooks, ${waiting} each`, async () => {
    await fill(webhooks, waiting);
    const plans: string[] = [];
    await claimDeliveries(explain(plans), {
      ...{ token: randomUUID(), afterGroup: null, afterLanes: new Map(), skippedGroups: [] },
      ...{ allowances: new Map(), allowance: 4, maxLanes: 64 },
    });
    const [plan = ''] = plans;
    assert.match(plan, /using delivery_queue_ready/);
    assert.doesNotMatch(plan, /Sort|Seq Scan on delivery_queue|delivery_queue_(listed|of_owner)/, plan);
  });
}

/**
 * Every filter of a list reads about as many rows as it returns, by an index that begins with the owner: shown by the plans that
 * PostgreSQL executes, with at least 30,000 rows in each large table.
 */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { readDatabaseUrl } from '../src/db/address.ts';
import { connect, only, type Sql } from '../src/db/client.ts';
import { Connection } from '../src/db/connection.ts';
import { makeSql } from '../src/db/query.ts';
import type { Statement } from '../src/db/sql.ts';
import { newId } from '../src/lib/ids.ts';
import { listApiKeys } from '../src/store/api-keys.ts';
import { deliveryStatuses, listDeliveries, outlineDeliveries } from '../src/store/deliveries.ts';
import { listEvents } from '../src/store/events.ts';
import { identityKinds, listIdentities } from '../src/store/identities.ts';
import { listMessages } from '../src/store/message-lists.ts';
import type { Page, PageRequest } from '../src/store/page.ts';
import { createReplay, runReplayBatch } from '../src/store/replays.ts';
import { ensureUser } from '../src/store/users.ts';
import { identityStatuses } from '../src/store/verification.ts';
import { listWebhooks } from '../src/store/webhooks.ts';
import { makeDatabase } from './harness.ts';

const rows = 30_000;
/** With fewer, PostgreSQL sometimes reads them all because that is cheap. */
const addresses = 60_000;
/** A page, and as many rows again for each of its groups, with what belongs to each row. */
const maxRowsRead = 400;

const database = await makeDatabase();
const sql = connect(database.url, {
  max: 1,
  applicationName: 'posthorn filters test',
  statementTimeoutMs: 0,
});
const address = readDatabaseUrl(database.url);
const connection = new Connection(address, address.endpoints[0], {
  applicationName: 'posthorn filters test',
  statementTimeoutMs: 0,
});
await connection.connect();
/** For the results: `connection` forgets its prepared statements. */
const plain = new Connection(address, address.endpoints[0], {
  applicationName: 'posthorn filters test',
  statementTimeoutMs: 0,
});
await plain.connect();
after(async () => {
  await plain.close();
  await connection.close();
  await sql.end();
  await database.drop();
});

const owner = (await ensureUser(sql, 'owner@users.example')).user.userId;
const other = (await ensureUser(sql, 'other@users.example')).user.userId;
/** One identity and one webhook have nearly all rows, the others a few old ones. All events of `early` are of the first kind. */
const [busy, quiet, early, checked] = [newId(), newId(), newId(), newId()];
const [busyHook, quietHook] = [newId(), newId()];
/** The busy thread has half of all messages. Nearly all of them are of the busy identity, a few of the quiet one. */
const [busyThread, quietThread] = [newId(), newId()];

before(async () => {
  // Indexes are built at the end, and foreign keys are not checked: both would take most of the time of the inserts.
  const indexes = await sql<{ name: string; definition: string }[]>`
    select indexrelid::regclass::text as name, pg_get_indexdef(indexrelid) as definition from pg_index
    where not indisunique and indrelid in ('identities'::regclass, 'events'::regclass, 'messages'::regclass,
      'delivery_queue'::regclass, 'ended_deliveries'::regclass)`;
  await sql.script(
    `drop index ${indexes.map(({ name }) => name).join(', ')}; set session_replication_role = replica`,
  );
  const age = sql`now() - n * interval '1 second'`;
  await sql`
    insert into identities (id, owner_id, kind, public_id, value, value_key, status, pending_until, created_at)
    values (${busy}, ${owner}, 'domain', 'busy', 'busy.example', 'busy.example', 'verified', null, now()),
      (${checked}, ${owner}, 'domain', 'checked', 'checked.example', 'checked.example', 'unverified',
        now() + interval '1 day', now() - interval '1 year'),
      (${quiet}, ${owner}, 'domain', 'quiet', 'quiet.example', 'quiet.example', 'failed', null, now() - interval '1 year'),
      (${early}, ${owner}, 'domain', 'early', 'early.example', 'early.example', 'failed', null, now() - interval '1 year')`;
  await sql`
    insert into identities (id, owner_id, kind, public_id, value, value_key, status, domain_identity_id, created_at)
    select gen_random_uuid(), case when n % 3 = 0 then ${other}::uuid else ${owner}::uuid end, 'email', 'p' || n,
      n || '@busy.example', n || '@busy.example', case when n > ${addresses} - 6 then 'unverified' else 'verified' end,
      case when n > ${addresses} - 6 and n % 3 <> 0 then ${checked}::uuid end, ${age}
    from generate_series(1, ${addresses}::int) n`;
  await sql`
    with claimants as (
      insert into users (id, email) select gen_random_uuid(), n || '@users.example' from generate_series(1, 5000) n
      returning id
    )
    insert into identities (id, owner_id, kind, public_id, value, value_key)
    select gen_random_uuid(), id, 'domain', id, 'claimed-by-many.example', 'claimed-by-many.example' from claimants`;
  await sql`
    insert into webhooks (id, owner_id, url, events, secret)
    values (${busyHook}, ${owner}, 'https://x.example/', '{message.received}', ''),
      (${quietHook}, ${owner}, 'https://x.example/', '{message.received}', '')`;
  await sql`
    insert into webhooks (id, owner_id, url, events, secret, deleted_at, created_at)
    select gen_random_uuid(), ${owner}, 'https://x.example/', '{message.received}', '', now(), ${age}
    from generate_series(1, 20000) n`;
  await sql`
    insert into api_keys (id, owner_id, key_hash, prefix, suffix, revoked_at, created_at)
    select gen_random_uuid(), ${owner}, sha256(n::text::bytea), 'p', 's', case when n < 20000 then now() end, ${age}
    from generate_series(1, 20000) n`;
  await sql`
    insert into events (id, owner_id, event, message_id, identity_id, data, created_at)
    select gen_random_uuid(), case when n % 3 = 0 then ${other}::uuid else ${owner}::uuid end,
      case when n > ${rows} - 6 then 'message.bounced' else 'message.received' end, gen_random_uuid(),
      case when n % 2000 = 1 then ${quiet}::uuid else ${busy}::uuid end, '{}', ${age}
    from generate_series(1, ${rows}::int) n`;
  await sql`
    insert into events (id, owner_id, event, message_id, identity_id, data, created_at)
    select gen_random_uuid(), ${owner}, 'message.bounced', gen_random_uuid(), ${early}, '{}', now() - interval '1 year'
    from generate_series(1, 4) n`;
  await sql`
    insert into messages (id, owner_id, identity_id, direction, event_id, raw_id, size, sha256, thread_id, summary, created_at)
    select gen_random_uuid(), case when n % 3 = 0 then ${other}::uuid else ${owner}::uuid end,
      case when n % 2000 = 1 then ${quiet}::uuid else ${busy}::uuid end,
      case when n % 5 < 2 then 'outgoing' else 'incoming' end, gen_random_uuid(), gen_random_uuid(), 1, '',
      case when n % 2 = 0 or n % 4000 = 1 then ${busyThread}::uuid when n % 2000 = 1 then ${quietThread}::uuid
        else gen_random_uuid() end, '{}', ${age}
    from generate_series(1, ${rows}::int) n`;
  // Every 2,000th bounced, all others were delivered.
  await sql`
    insert into outgoing (id, owner_id, identity_id, key_id, transport, eight_bit, smtp_utf8, summary_bytes, bounced, delivered,
      ended_at, created_at)
    select id, owner_id, identity_id, ${newId()}, 'direct', false, false, 2, (n % 2000 = 7)::int, (n % 2000 <> 7)::int, now(),
      created_at
    from (select *, row_number() over () as n from messages where direction = 'outgoing') sent`;
  await sql`
    insert into recipients (message_id, n, owner_id, address, address_key, kind, status)
    select id, 0, owner_id, 'a@dest.example', 'a@dest.example', 'to', 'delivered' from outgoing`;
  const delivery = sql`
    gen_random_uuid(), ${owner}::uuid, gen_random_uuid(),
    case when n % 2000 = 1 then ${quietHook}::uuid else ${busyHook}::uuid end,
    case when n > ${rows} - 6 then 'message.bounced' else 'message.received' end, ${age}`;
  await sql`
    insert into delivery_queue (id, owner_id, event_id, webhook_id, event, created_at, ready)
    select ${delivery}, n % 2 = 0 from generate_series(1, ${rows}::int) n`;
  await sql`
    insert into ended_deliveries (id, owner_id, event_id, webhook_id, event, created_at, attempt_count, status)
    select ${delivery}, 1, case when n > ${rows} - 12 then 'failed' else 'delivered' end
    from generate_series(1, ${rows}::int) n`;
  await sql.script(
    `${indexes.map(({ definition }) => definition).join(';')}; set session_replication_role = origin`,
  );
  await sql.script('vacuum analyze');
});

interface PlanNode {
  'Node Type': string;
  'Index Name'?: string;
  'Relation Name'?: string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  'Rows Removed by Index Recheck'?: number;
  Plans?: PlanNode[];
}

const plans: PlanNode[] = [];

/** Runs every statement as the service does, and keeps the plan of each. */
const explained: Sql = makeSql((work) =>
  work({
    async run(statement: Statement) {
      // Prepared by name: PostgreSQL plans an EXPLAIN that has parameters for their values, whatever the plan_cache_mode is.
      const given = statement.values.length > 0 ? `(${statement.values.map(writeLiteral).join(', ')})` : '';
      await connection.runScript(`deallocate all; prepare listed as ${statement.text}`);
      // From the sixth time on, it uses a plan for any values if that plan looks as cheap. To plan counts as a time.
      if (planMode === 'auto') await connection.runScript(`explain execute listed ${given};`.repeat(5));
      const { rows } = await connection.run(
        `explain (analyze, timing off, format json) execute listed ${given}`,
      );
      plans.push(rows[0]['QUERY PLAN'][0].Plan);
      return plain.run(statement);
    },
  } as Connection),
);

const planModes = ['force_custom_plan', 'auto'] as const;
type PlanMode = (typeof planModes)[number];
let planMode: PlanMode;

async function setPlanMode(mode: PlanMode): Promise<void> {
  planMode = mode;
  await connection.run(`set plan_cache_mode = ${mode}`);
}

/** Of the values that lists have: texts, numbers, null, and arrays of names. */
function writeLiteral(value: unknown): string {
  if (value === null || typeof value === 'number') return String(value);
  const text = Array.isArray(value) ? `{${value.join(',')}}` : String(value);
  return `'${text.replaceAll("'", "''")}'`;
}

function nodesOf(plan: PlanNode): PlanNode[] {
  return [plan, ...(plan.Plans ?? []).flatMap(nodesOf)];
}

function countRead(node: PlanNode): number {
  const { 'Actual Rows': kept, 'Rows Removed by Filter': filtered = 0 } = node;
  const { 'Rows Removed by Index Recheck': rechecked = 0, 'Actual Loops': loops } = node;
  return (kept + filtered + rechecked) * loops;
}

async function assertCheap(
  list: (sql: Sql, page: PageRequest) => Promise<Page<{ id: string }>>,
): Promise<void> {
  const ofOwner = await sql<{ name: string }[]>`
    select indexrelid::regclass::text as name from pg_index
    join pg_attribute on attrelid = indrelid and attnum = indkey[0] where attname = 'owner_id'`;
  // What belongs to a row that an index of the owner found.
  const byRow = [
    ...['outgoing_pkey', 'recipients_pkey', 'messages_pkey', 'events_pkey', 'events_by_message'],
    ...['delivery_queue_pkey', 'ended_deliveries_pkey', 'earlier_attempts_pkey'],
  ];
  const byOwner = new Set([...ofOwner.map(({ name }) => name), ...byRow]);
  for (const mode of planModes) {
    await setPlanMode(mode);
    let page: PageRequest = { limit: 50, after: null };
    for (let pages = 0; pages < 3; pages += 1) {
      plans.length = 0;
      const { next } = await list(explained, page);
      const nodes = plans.flatMap(nodesOf).filter((node) => node['Relation Name']);
      const read = nodes.reduce((sum, node) => sum + countRead(node), 0);
      const described = nodes.map((node) => `${node['Node Type']} ${node['Index Name']} ${countRead(node)}`);
      assert.ok(read <= maxRowsRead, `${mode}, page ${pages + 1}, ${read} rows: ${described.join(', ')}`);
      for (const node of nodes.filter(({ 'Node Type': type }) => type !== 'Bitmap Heap Scan'))
        assert.ok(byOwner.has(node['Index Name'] ?? ''), `${mode}: ${described.join(', ')}`);
      if (!next) break;
      page = { ...page, after: next };
    }
  }
}

const since = [undefined, '2020-01-01T00:00:00Z', '2100-01-01T00:00:00Z'];
const name = (filter: object) => JSON.stringify(filter);

describe('events', () => {
  for (const event of [undefined, 'message.received', 'message.bounced', 'message.sent'])
    for (const identityId of [undefined, busy, quiet, early, newId()])
      for (const from of since) {
        const filter = { event, identityId, since: from };
        test(name(filter), () => assertCheap((sql, page) => listEvents(sql, owner, filter, page)));
      }
});

describe('deliveries', () => {
  const list = (filter: Parameters<typeof listDeliveries>[2]) => async (sql: Sql, page: PageRequest) => {
    const found = await listDeliveries(sql, owner, filter, page);
    await outlineDeliveries(sql, owner, found.rows);
    return found;
  };
  for (const webhookId of [busyHook, quietHook, undefined])
    for (const event of [undefined, 'message.received', 'message.bounced', 'message.sent'])
      for (const status of [undefined, ...deliveryStatuses])
        for (const from of since) {
          const filter = { event, status, since: from };
          const which = webhookId === undefined ? 'all' : webhookId === busyHook ? 'busy' : 'quiet';
          test(`${which} ${name(filter)}`, () => assertCheap(list({ ...filter, webhookId })));
        }

  for (const webhookId of [undefined, busyHook])
    for (const status of [undefined, 'pending', 'delivered'] as const)
      test(`of messages and events ${name({ webhookId, status })}`, async () => {
        const found = await sql<{ id: string; messageId: string }[]>`
          select id, message_id as "messageId" from events where owner_id = ${owner} limit 50`;
        const messageIds = found.map(({ messageId }) => messageId);
        const eventId = found[0]?.id;
        await assertCheap(list({ webhookId, status, messageIds }));
        await assertCheap(list({ webhookId, status, messageIds: messageIds.slice(0, 1), eventId }));
        await assertCheap(list({ webhookId, status, eventId }));
      });
});

test('a replay reads the next events alone, of all kinds', async () => {
  for (const mode of ['force_custom_plan', 'auto'] as const) {
    await setPlanMode(mode);
    const given = {
      webhookId: busyHook,
      since: '2020-01-01T00:00:00Z',
      until: null,
      status: 'failed' as const,
    };
    const { id } = await createReplay(sql, owner, given);
    for (let batches = 1; batches <= 3; batches += 1) {
      plans.length = 0;
      const step = await runReplayBatch(explained, 200);
      assert.equal(step?.examined, 200);
      const nodes = plans.flatMap(nodesOf).filter((node) => node['Relation Name'] === 'events');
      const described = nodes.map((node) => `${node['Node Type']} ${node['Index Name']} ${countRead(node)}`);
      const read = nodes.reduce((sum, node) => sum + countRead(node), 0);
      assert.ok(read > 200 && read <= maxRowsRead, `${mode}, batch ${batches}: ${described.join(', ')}`);
    }
    await sql`update replays set completed_at = now() where id = ${id}`;
  }
});

describe('messages', () => {
  for (const identityId of [undefined, busy, quiet, newId()])
    for (const threadId of [undefined, busyThread, quietThread, newId()])
      for (const from of since) {
        const filter = { identityId, threadId, since: from };
        test(name(filter), () => assertCheap((sql, page) => listMessages(sql, owner, filter, page)));
      }
  for (const identityId of [undefined, busy, quiet])
    for (const filter of [
      { direction: 'incoming', identityId },
      { direction: 'outgoing', identityId },
      { direction: 'outgoing', identityId, threadId: busyThread },
      { status: 'bounced', identityId },
      { status: 'delivered', identityId, since: '2020-01-01T00:00:00Z' },
      { status: 'queued', identityId },
    ] as const)
      test(name(filter), () => assertCheap((sql, page) => listMessages(sql, owner, filter, page)));

  for (const identityId of [undefined, quiet])
    test(`of a thread of two identities are listed newest first, each once, of ${identityId ? 'one' : 'both'}`, async () => {
      const listed: string[] = [];
      for (let page: PageRequest | null = { limit: 7, after: null }; page && listed.length < 100; ) {
        const found: Page<{ id: string }> = await listMessages(
          sql,
          owner,
          { identityId, threadId: busyThread },
          page,
        );
        listed.push(...found.rows.map(({ id }) => id));
        page = found.next && { ...page, after: found.next };
      }
      const wanted = await sql<{ id: string; identityId: string }[]>`
        select id, identity_id as "identityId" from messages
        where owner_id = ${owner} and thread_id = ${busyThread} and identity_id = any (${[identityId ?? busy, quiet]}::uuid[])
        order by created_at desc, id desc limit ${listed.length}`;
      assert.deepEqual(
        listed,
        wanted.map(({ id }) => id),
      );
      assert.ok(wanted.some((message) => message.identityId === quiet));
      assert.equal(new Set(wanted.map((message) => message.identityId)).size, identityId ? 1 : 2);
    });
});

describe('identities', () => {
  const values = [
    undefined,
    { kind: 'email', key: '1@busy.example' },
    { kind: 'domain', key: 'nobody.example' },
    { kind: 'domain', key: 'claimed-by-many.example' },
  ] as const;
  for (const kind of [undefined, ...identityKinds])
    for (const status of [undefined, ...identityStatuses])
      for (const value of values) {
        const filter = { kind, status, value };
        test(name(filter), () => assertCheap((sql, page) => listIdentities(sql, owner, filter, page)));
      }

  test('that show as pending are found: a domain under check and its addresses', async () => {
    const list = async (kind?: 'email' | 'domain') =>
      (await listIdentities(sql, owner, { kind, status: 'pending' }, { limit: 50, after: null })).rows;
    const [all, domains, addresses] = [await list(), await list('domain'), await list('email')];
    assert.deepEqual(
      domains.map(({ id }) => id),
      [checked],
    );
    assert.equal(addresses.length, 4);
    for (const { domain_identity_id } of addresses) assert.equal(domain_identity_id, checked);
    assert.deepEqual(
      [...all].map(({ id }) => id),
      [...addresses, ...domains].map(({ id }) => id),
      'newest first',
    );
  });
});

test('webhooks and API keys, beside many that were deleted or revoked', async () => {
  await assertCheap((sql, page) => listWebhooks(sql, owner, page));
  await assertCheap((sql, page) => listApiKeys(sql, owner, page));
  const { count } = only(await sql<{ count: number }[]>`select count(*)::int as count from api_keys`);
  assert.equal(count, 20_000);
});

/** The last test: it replaces all events. */
test('events of an identity that is newer than the statistics, beside very many of a later kind', async () => {
  await sql.script('truncate events; alter table events set (autovacuum_enabled = false)');
  const add = (identityId: string, event: string, count: number) => sql`
    insert into events (id, owner_id, event, identity_id, data, created_at)
    select gen_random_uuid(), ${owner}, ${event}, ${identityId}, '{}', now() - n * interval '1 second'
    from generate_series(1, ${count}::int) n`;
  await add(busy, 'message.received', 20_000);
  await sql.script('analyze events');
  await add(early, 'message.bounced', 4);
  for (const identityId of [busy, quiet, early])
    for (const event of [undefined, 'message.bounced', 'message.received'])
      await assertCheap((sql, page) => listEvents(sql, owner, { event, identityId }, page));
  const { rows } = await listEvents(sql, owner, { identityId: early }, { limit: 50, after: null });
  assert.equal(rows.length, 4);
});

/** Migrations on real databases: from nothing, by several at once, refused where they do not fit, whole or not at all. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { readConfig } from '../src/config.ts';
import { connect, type Pool } from '../src/db/client.ts';
import { buildIndex, largeIndexes, listUnbuilt } from '../src/db/large-indexes.ts';
import { migrate, prepareSchema, readSchemaState } from '../src/db/migrate.ts';
import { makeLog } from '../src/lib/log.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { type Service, startService } from '../src/main.ts';
import { findActiveKey } from '../src/store/api-keys.ts';
import { settleWebhooks } from '../src/store/held.ts';
import { makeDatabase, makeTestLog, waitFor } from './harness.ts';

const log = makeLog({ level: 'silent', json: true });
const folder = path.join(import.meta.dirname, '../migrations');
const known = readdirSync(folder)
  .filter((name) => name.endsWith('.sql'))
  .sort();

/** An empty database, and a maker of pools to it. */
async function makeEmpty(t: TestContext) {
  const database = await makeDatabase({ empty: true });
  const pools: Pool[] = [];
  t.after(async () => {
    for (const pool of pools) await pool.end();
    await database.drop();
  });
  const open = (max = 2) => {
    const pool = connect(database.url, { max, applicationName: 'posthorn migrate test' });
    pools.push(pool);
    return pool;
  };
  return { url: database.url, open };
}

async function listTables(sql: Pool): Promise<string[]> {
  const rows = await sql<{ name: string }[]>`
    select tablename as name from pg_tables where schemaname = 'public' order by 1`;
  return rows.map(({ name }) => name);
}

/** Every table, column, constraint and index, as text. */
async function describeSchema(sql: Pool): Promise<string[]> {
  const rows = await sql<{ line: string }[]>`
    select table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable as line
    from information_schema.columns where table_schema = 'public'
    union all select conrelid::regclass || ' ' || pg_get_constraintdef(oid) from pg_constraint where conrelid > 0
    union all select indexdef from pg_indexes where schemaname = 'public'
    order by 1`;
  return rows.map(({ line }) => line);
}

function readSettings(url: string, more: Record<string, string> = {}) {
  const key = randomBytes(32).toString('base64');
  return readConfig({
    DATABASE_URL: url,
    POSTHORN_SECRET_KEY: key,
    PORT: '0',
    POSTHORN_SMTP_PORT: '0',
    POSTHORN_SUBMISSION_PORT: '0',
    ...more,
  });
}

async function refusal(work: Promise<unknown>): Promise<OperatorError> {
  const error = await work.then(
    () => undefined,
    (thrown) => thrown,
  );
  assert.ok(error instanceof OperatorError, String(error));
  return error;
}

test('an empty database gets every migration, in order, and says so', async (t) => {
  const sql = (await makeEmpty(t)).open();
  const before = { version: 0, pending: known, newer: false };
  assert.deepEqual(await readSchemaState(sql), before);
  assert.deepEqual(await migrate(sql, log), known);
  assert.deepEqual(await readSchemaState(sql), {
    version: Number(known.at(-1)?.slice(0, 4)),
    pending: [],
    newer: false,
  });
  const rows = await sql`select version, name from schema_migrations order by version`;
  assert.deepEqual(
    rows.map(({ version, name }) => [version, name]),
    known.map((name) => [Number(name.slice(0, 4)), name]),
  );
  const tables = await listTables(sql);
  const wanted = [
    'users',
    'api_keys',
    'identities',
    'providers',
    'smtp_accounts',
    'mailboxes',
    'mailbox_sync',
  ];
  for (const table of [...wanted, 'webhooks', 'idempotency_records'])
    assert.ok(tables.includes(table), table);
});

test('a second run applies nothing and leaves everything as it is', async (t) => {
  const sql = (await makeEmpty(t)).open();
  await migrate(sql, log);
  const [schema, applied] = [await describeSchema(sql), await sql`select * from schema_migrations`];
  assert.deepEqual(await migrate(sql, log), []);
  assert.deepEqual(await describeSchema(sql), schema);
  assert.deepEqual([...(await sql`select * from schema_migrations`)], [...applied]);
});

test('five at once on one empty database: each migration is applied once, and all five see it done', async (t) => {
  const { open } = await makeEmpty(t);
  const pools = Array.from({ length: 5 }, open);
  const applied = await Promise.all(pools.map((sql) => migrate(sql, log)));
  assert.deepEqual(applied.flat().sort(), known);
  for (const sql of pools) assert.deepEqual((await readSchemaState(sql)).pending, []);
});

test('three services that start at once on an empty database all get up, and one makes the first user', async (t) => {
  const { url, open } = await makeEmpty(t);
  const started = await Promise.allSettled(
    Array.from({ length: 3 }, () => startService(readSettings(url), log)),
  );
  const services = started.flatMap((result): Service[] =>
    result.status === 'fulfilled' ? [result.value] : [],
  );
  t.after(() => Promise.all(services.map((service) => service.stop())));
  assert.deepEqual(
    started.map(({ status }) => status),
    ['fulfilled', 'fulfilled', 'fulfilled'],
  );
  assert.equal(services.filter(({ firstUser }) => firstUser !== null).length, 1);
  assert.equal((await open()`select from users`).count, 1);
});

/** As an upgrade leaves a database with mail: without the new indexes, or with one whose building was cut, and with old ones. */
async function leaveIndexesOut(sql: Pool): Promise<void> {
  for (let n = 0; n < 2; n += 1) {
    await sql`
      insert into events (id, owner_id, event, data, bytes)
      values (gen_random_uuid(), gen_random_uuid(), 'message.received', '{}', 2)`;
  }
  const names = largeIndexes.map(({ name }) => name);
  await sql.script(`drop index ${names.join(', ')}`);
  await sql.script('create index events_by_owner on events (owner_id, created_at, id)');
  await assert.rejects(sql.script('create unique index concurrently events_by_xact on events (event)'));
}

test('indexes that a migration left out are built while the service runs', async (t) => {
  const { url, open } = await makeEmpty(t);
  const sql = open();
  await migrate(sql, log);
  const schema = await describeSchema(sql);
  await leaveIndexesOut(sql);
  const services = await Promise.all([1, 2].map(() => startService(readSettings(url), log)));
  t.after(() => Promise.all(services.map((service) => service.stop())));
  await waitFor('all indexes', async () => (await listUnbuilt(sql)).length === 0);
  assert.deepEqual(await describeSchema(sql), schema);
});

test('of three processes that build an index at the same moment one builds it, and the others do not wait', async (t) => {
  const { open } = await makeEmpty(t);
  const sql = open();
  await migrate(sql, log);
  await leaveIndexesOut(sql);
  const [index = assert.fail('nothing to build')] = await listUnbuilt(sql);
  const pools = [1, 2, 3].map(() => open(1));
  const ended: string[] = [];
  let builds: Promise<unknown> | undefined;
  await sql.begin(async (holder) => {
    // Who builds an index waits for it.
    await holder`lock table events in row exclusive mode`;
    builds = Promise.all(pools.map(async (pool) => ended.push(await buildIndex(pool, index))));
    await waitFor('those that do not build', () => ended.length === 2);
  });
  await builds;
  assert.deepEqual(ended, ['by another', 'by another', 'built']);
  assert.ok(!(await listUnbuilt(sql)).some(({ name }) => name === index.name));
});

test('an index whose build fails is removed, so that it takes no space until the next try', async (t) => {
  const { open } = await makeEmpty(t);
  const sql = open();
  await migrate(sql, log);
  await leaveIndexesOut(sql);
  const failing = { name: 'events_by_nothing', on: 'events ((1 / (bytes - bytes)))' };
  await assert.rejects(buildIndex(open(1), failing), /division by zero/);
  const left = await sql`select from pg_class where relname = ${failing.name}`;
  assert.equal(left.count, 0);
});

test('a stop does not wait for an index', async (t) => {
  const { url, open } = await makeEmpty(t);
  const [sql, other] = [open(), open()];
  await migrate(sql, log);
  await leaveIndexesOut(sql);
  await sql.begin(async (holder) => {
    // Who builds an index waits for it.
    await holder`lock table events in row exclusive mode`;
    const service = await startService(readSettings(url), log);
    t.after(() => service.stop());
    const isWaiting = async () => {
      const waiting = await other`
        select from pg_stat_activity
        where datname = current_database() and application_name like '%indexes%' and wait_event_type = 'Lock'`;
      return waiting.count > 0;
    };
    await waitFor('the building to wait', isWaiting);
    await service.stop();
  });
  assert.ok((await listUnbuilt(sql)).length > 0);
});

test('a role that may not create indexes: the service runs, and says what to do', async (t) => {
  const { url, open } = await makeEmpty(t);
  const sql = open();
  await migrate(sql, log);
  await leaveIndexesOut(sql);
  const role = `limited_${randomBytes(6).toString('hex')}`;
  await sql.script(`create role ${role}; grant all on all tables in schema public to ${role}`);
  const { logged, log: ownLog } = makeTestLog();
  const service = await startService(readSettings(`${url}?role=${role}`), ownLog);
  const has = (pattern: RegExp) => logged.some(({ msg }) => pattern.test(String(msg)));
  try {
    await waitFor('the message', () => has(/may not create indexes/) || has(/building indexes failed/));
    assert.ok(!has(/building indexes failed/), 'it would be tried again and again');
  } finally {
    await service.stop();
    await sql.script(`drop owned by ${role}; drop role ${role}`);
  }
});

test('a schema newer than this Posthorn is refused and not touched', async (t) => {
  const { url, open } = await makeEmpty(t);
  const sql = open();
  await migrate(sql, log);
  await sql`insert into schema_migrations (version, name) values (9999, '9999_from_the_future.sql')`;
  // Whatever it looks like by then.
  await sql`alter table webhooks rename secret to sealed`;
  const schema = await describeSchema(sql);
  assert.equal((await readSchemaState(sql)).newer, true);
  for (const autoMigrate of [true, false]) {
    const { message } = await refusal(prepareSchema(sql, log, { autoMigrate }));
    assert.match(message, /schema version 9999.*newer than this Posthorn/);
    assert.match(message, /Run the newer Posthorn, or restore a backup/);
  }
  assert.match((await refusal(startService(readSettings(url), log))).message, /newer than this Posthorn/);
  assert.deepEqual(await describeSchema(sql), schema);
  assert.equal((await sql`select from users`).count, 0, 'not even a first user was made');
});

test('POSTHORN_AUTO_MIGRATE=false refuses a schema that lacks something, and names the command', async (t) => {
  const { url, open } = await makeEmpty(t);
  const config = readSettings(url, { POSTHORN_AUTO_MIGRATE: 'false' });
  const { message } = await refusal(startService(config, log));
  assert.match(message, /Run: npm run -s posthorn -- migrate/);
  for (const name of known) assert.ok(message.includes(name), name);
  const sql = open();
  assert.deepEqual(await listTables(sql), []);

  await migrate(sql, log);
  const service = await startService(config, log);
  await service.stop();
});

/** As a Posthorn before this migration left it. Returns the name of the migration. */
async function migrateUntil(sql: Pool, end = known.at(-1) ?? ''): Promise<string> {
  await sql`create table schema_migrations (version int primary key, name text not null, applied_at timestamptz default now())`;
  for (const name of known.slice(0, known.indexOf(end))) {
    await sql.begin((sql) => sql.script(readFileSync(path.join(folder, name), 'utf8')));
    await sql`insert into schema_migrations (version, name) values (${Number(name.slice(0, 4))}, ${name})`;
  }
  return end;
}

test('a tool makes the schema of an empty database, and upgrades none', async (t) => {
  const { open } = await makeEmpty(t);
  const sql = open();
  const lacking = await migrateUntil(sql);
  const tool = { autoMigrate: true, onlyEmpty: true };
  const { message } = await refusal(prepareSchema(sql, log, tool));
  assert.equal(
    message,
    `The database schema is out of date: ${lacking} not applied. Run: npm run -s posthorn -- migrate`,
  );
  assert.deepEqual((await readSchemaState(sql)).pending, [lacking]);

  const empty = (await makeEmpty(t)).open();
  await prepareSchema(empty, log, tool);
  assert.deepEqual((await readSchemaState(empty)).pending, []);
});

test('a start that is refused for its key has not upgraded the schema', async (t) => {
  const { url, open } = await makeEmpty(t);
  const sql = open();
  const lacking = await migrateUntil(sql);
  // And as one from before there were DKIM keys.
  await sql`alter table dkim_keys rename to dkim_keys_of_later`;
  const [{ id } = {}] = await sql`
    insert into users (id, email) values (gen_random_uuid(), 'ada@users.example') returning id`;
  await sql`
    insert into webhooks (id, owner_id, url, events, secret)
    values (gen_random_uuid(), ${id}, 'https://example.com', '{message.received}', ${Buffer.alloc(64, 1)})`;
  const { message } = await refusal(startService(readSettings(url), log));
  assert.match(message, /1 encrypted under key 01010101/);
  assert.deepEqual((await readSchemaState(sql)).pending, [lacking]);
});

test('a migration that fails leaves nothing behind, and works once its obstacle is gone', async (t) => {
  const sql = (await makeEmpty(t)).open();
  // 0001 makes webhooks late, so much of it has been done when it meets this.
  await sql`create table webhooks (in_the_way int)`;
  await assert.rejects(migrate(sql, log), /relation "webhooks" already exists/);
  assert.deepEqual(await listTables(sql), ['webhooks']);
  assert.equal((await readSchemaState(sql)).version, 0);

  await sql`drop table webhooks`;
  assert.deepEqual(await migrate(sql, log), known);
});

test('deliveries of webhooks that were disabled before an upgrade are held after it, and sent when they are enabled', async (t) => {
  const sql = (await makeEmpty(t)).open();
  await migrateUntil(sql, '0009_owners_first.sql');
  const [{ id: owner } = {}] = await sql`
    insert into users (id, email) values (gen_random_uuid(), 'ada@users.example') returning id`;
  await sql.script(`
    insert into webhooks (id, owner_id, url, events, secret, enabled)
    select gen_random_uuid(), '${owner}', 'https://example.com', '{message.received}', '', n > 2 from generate_series(1, 4) n;
    insert into deliveries (id, owner_id, event_id, webhook_id, event)
    select gen_random_uuid(), owner_id, gen_random_uuid(), id, 'message.received' from webhooks, generate_series(1, 3)`);
  await migrate(sql, log);
  const ready = async () => (await sql`select from delivery_queue where ready`).count;
  while ((await settleWebhooks(sql)).webhooks > 0);
  assert.equal(await ready(), 6);
  await sql`update webhooks set enabled = true`;
  while ((await settleWebhooks(sql)).webhooks > 0);
  assert.equal(await ready(), 12);
});

test('a key from before there were scopes may do everything after the upgrade', async (t) => {
  const sql = (await makeEmpty(t)).open();
  await migrateUntil(sql, '0013_key_scopes.sql');
  const keyHash = randomBytes(32);
  const [{ id: owner } = {}] = await sql`
    insert into users (id, email) values (gen_random_uuid(), 'ada@users.example') returning id`;
  await sql`
    insert into api_keys (id, owner_id, key_hash, prefix, suffix)
    values (gen_random_uuid(), ${owner}, ${keyHash}, 'ph_12345', '6789')`;
  await migrate(sql, log);
  assert.equal((await findActiveKey(sql, keyHash))?.scope, 'full');
});

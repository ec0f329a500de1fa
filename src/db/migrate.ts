/**
 * Updates the schema: migrations/NNNN_name.sql in order, forward only, each in one transaction with its row in
 * schema_migrations. Any number of processes may migrate at once: one applies a migration, the others wait and skip it.
 * A migration that older processes cannot work with begins with the line `-- Stops older processes: …`. It does not run while
 * one is connected.
 */
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { posthorn } from '../lib/command-line.ts';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { only, type Pool, type Sql } from './client.ts';
import { indexEmptyTables } from './large-indexes.ts';
import { refuseOlderProcesses } from './older-processes.ts';

const folder = path.join(import.meta.dirname, '../../migrations');
const stopsOlder = /^-- Stops older processes: /;
/** How long the connections of processes that were stopped or killed a moment ago may take to close. */
const closingMs = 5000;
const pollMs = 100;

interface Migration {
  version: number;
  name: string;
}

function listMigrations(): Migration[] {
  const files = readdirSync(folder).filter((file) => /^\d{4}_.+\.sql$/.test(file));
  return files.sort().map((name) => ({ version: Number(name.slice(0, 4)), name }));
}

/** The version of the schema that this Posthorn works with. */
export function readOwnSchemaVersion(): number {
  return Math.max(...listMigrations().map(({ version }) => version));
}

/** Returns the names of the migrations that this process applied. */
export async function migrate(sql: Pool, log: Log): Promise<string[]> {
  const applied: string[] = [];
  const known = listMigrations();
  for (const migration of known) if (await apply(sql, migration)) applied.push(migration.name);
  if (applied.length > 0) {
    await sql.begin(async (sql) => {
      await lockMigrations(sql);
      await indexEmptyTables(sql);
    });
  }
  if (applied.length === known.length) log.info(`schema created (${known.length} migrations)`);
  else if (applied.length > 0) log.info({ applied }, 'schema updated');
  return applied;
}

/** False if the migration was applied before. */
async function apply(sql: Pool, migration: Migration): Promise<boolean> {
  const deadline = performance.now() + closingMs;
  for (;;) {
    try {
      return await sql.begin((sql) => applyIn(sql, migration));
    } catch (error) {
      if (!(error instanceof OperatorError) || performance.now() > deadline) throw error;
      await delay(pollMs);
    }
  }
}

/** Without the lock, one of two simultaneous `create … if not exists` can fail. */
async function lockMigrations(sql: Sql): Promise<void> {
  await sql.script(`select pg_advisory_xact_lock(hashtext('posthorn migrations'))`);
}

async function applyIn(sql: Sql, migration: Migration): Promise<boolean> {
  // An index on a large table takes long, and so does waiting for another process that creates one.
  await sql`set local statement_timeout = 0`;
  await lockMigrations(sql);
  await sql`
    create table if not exists schema_migrations (
      version int primary key,
      name text not null,
      applied_at timestamptz not null default now()
    )`;
  const inserted = await sql`
    insert into schema_migrations (version, name) values (${migration.version}, ${migration.name})
    on conflict do nothing returning version`;
  if (inserted.count === 0) return false;
  const script = readFileSync(path.join(folder, migration.name), 'utf8');
  if (stopsOlder.test(script)) {
    // Every process reads this table first. One that has read it is connected, and is found; one that starts from now on waits,
    // and then finds the schema too new.
    await sql`lock table schema_migrations in access exclusive mode`;
    await refuseOlderProcesses(sql, migration);
  }
  await sql.script(script);
  return true;
}

/** `version` is 0 for an empty database; `newer`: a newer Posthorn has migrated the database. */
export async function readSchemaState(sql: Sql) {
  const known = listMigrations();
  const { present } = only(await sql`select to_regclass('schema_migrations') is not null as present`);
  const rows = present ? await sql<{ version: number }[]>`select version from schema_migrations` : [];
  const versions = new Set(rows.map((row) => row.version));
  const version = Math.max(0, ...versions);
  return {
    version,
    pending: known.filter((migration) => !versions.has(migration.version)).map((migration) => migration.name),
    newer: version > readOwnSchemaVersion(),
  };
}

export async function refuseNewerSchema(sql: Sql) {
  const state = await readSchemaState(sql);
  if (!state.newer) return state;
  throw new OperatorError(
    `The database has schema version ${state.version}, which is newer than this Posthorn supports. ` +
      'Run the newer Posthorn, or restore a backup from before the upgrade.',
  );
}

/**
 * Migrates if allowed, and refuses a schema that does not match this version. `onlyEmpty` is for tools: a migration cannot be
 * undone, so a tool of a newer version must not upgrade the database of a running service.
 */
export async function prepareSchema(
  sql: Pool,
  log: Log,
  options: { autoMigrate: boolean; onlyEmpty?: boolean },
): Promise<void> {
  const { version, pending } = await refuseNewerSchema(sql);
  if (pending.length === 0) return;
  if (!options.autoMigrate || (options.onlyEmpty && version > 0)) {
    throw new OperatorError(
      `The database schema is out of date: ${pending.join(', ')} not applied. Run: ${posthorn} migrate`,
    );
  }
  await migrate(sql, log);
}

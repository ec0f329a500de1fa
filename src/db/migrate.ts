/**
 * Brings the schema up to date: migrations/NNNN_name.sql in order, forward only, each in a transaction of its own
 * with its row in schema_migrations. Any number of processes may do so at once: one works, the others wait and
 * find it done.
 */
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { only, type Pool, type Sql } from './client.ts';

const folder = path.join(import.meta.dirname, '../../migrations');

interface Migration {
  version: number;
  name: string;
}

function listMigrations(): Migration[] {
  const files = readdirSync(folder).filter((file) => /^\d{4}_.+\.sql$/.test(file));
  return files.sort().map((name) => ({ version: Number(name.slice(0, 4)), name }));
}

/** Applies what is missing and returns the names of what this process applied. */
export async function migrate(sql: Pool, log: Log): Promise<string[]> {
  const applied: string[] = [];
  for (const migration of listMigrations()) {
    await sql.begin(async (sql) => {
      // An index on a large table takes its time, and so does waiting for another process that makes one.
      await sql`set local statement_timeout = 0`;
      // Not `create table if not exists` alone: two at once can both find it missing and one fails.
      await sql.script(`select pg_advisory_xact_lock(hashtext('posthorn migrations'))`);
      await sql`
        create table if not exists schema_migrations (
          version int primary key,
          name text not null,
          applied_at timestamptz not null default now()
        )`;
      const inserted = await sql`
        insert into schema_migrations (version, name) values (${migration.version}, ${migration.name})
        on conflict do nothing returning version`;
      if (inserted.count === 0) return;
      await sql.script(readFileSync(path.join(folder, migration.name), 'utf8'));
      applied.push(migration.name);
    });
  }
  if (applied.length > 0) log.info({ applied }, 'schema brought up to date');
  return applied;
}

export interface SchemaState {
  /** Highest version in the database; 0 when it is empty. */
  version: number;
  pending: string[];
  /** The database was migrated by a newer Posthorn than this one. */
  newer: boolean;
}

export async function readSchemaState(sql: Sql): Promise<SchemaState> {
  const known = listMigrations();
  const { present } = only(await sql`select to_regclass('schema_migrations') is not null as present`);
  const rows = present ? await sql<{ version: number }[]>`select version from schema_migrations` : [];
  const versions = new Set(rows.map((row) => row.version));
  const version = Math.max(0, ...versions);
  return {
    version,
    pending: known.filter((migration) => !versions.has(migration.version)).map((migration) => migration.name),
    newer: version > Math.max(...known.map((migration) => migration.version)),
  };
}

/** What stands in it may not be what this version would read. */
export async function refuseNewerSchema(sql: Sql): Promise<SchemaState> {
  const state = await readSchemaState(sql);
  if (!state.newer) return state;
  throw new OperatorError(
    `The database has schema version ${state.version}, which is newer than this Posthorn knows. ` +
      'Run the newer Posthorn, or restore a backup from before the upgrade.',
  );
}

/**
 * Migrates (when allowed) and refuses a schema that this version does not fit. `onlyEmpty` is for tools: there is no way back,
 * so whoever only looks around with a new version must not have upgraded by it.
 */
export async function prepareSchema(
  sql: Pool,
  log: Log,
  options: { autoMigrate: boolean; onlyEmpty?: boolean },
): Promise<void> {
  const { version, pending } = await refuseNewerSchema(sql);
  if (pending.length === 0) return;
  if (!options.autoMigrate || (options.onlyEmpty && version > 0)) {
    throw new OperatorError(`The schema lacks ${pending.join(', ')}. Run: posthorn migrate`);
  }
  await migrate(sql, log);
}

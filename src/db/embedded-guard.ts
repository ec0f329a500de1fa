/**
 * The guard: one connection per process that holds advisory locks, so that PostgreSQL itself knows who uses the
 * server and forgets the dead. `users` is shared by all; who can have it alone is the last one. `serve` is held
 * by the one service of a data folder.
 */
import { setTimeout as delay } from 'node:timers/promises';
import postgres, { type Sql } from 'postgres';
import { OperatorError } from '../lib/operator-error.ts';
import { codeOf } from './embedded-cluster.ts';

export interface Guard {
  readonly sql: Sql;
  /** Resolves when the connection is gone, and its locks with it, whoever closed it. */
  readonly gone: Promise<void>;
}

const lockSpace = 0x706f7374;
const users = 1;
const serve = 2;

/** Waits behind one who is just stopping the server; that cuts this connection, which is an error to retry. */
export async function joinServer(url: string, name: string): Promise<Guard> {
  const { promise: gone, resolve } = Promise.withResolvers<void>();
  const sql = postgres(url, {
    max: 1,
    // The driver would renew a connection of its own accord after half an hour, and the locks would be lost.
    max_lifetime: null,
    connect_timeout: 10,
    fetch_types: false,
    onnotice: () => {},
    onclose: () => resolve(),
    connection: { application_name: name, lock_timeout: 10_000 },
  });
  try {
    await sql`select pg_advisory_lock_shared(${lockSpace}::int, ${users}::int)`;
    await makeDatabase(sql);
    return { sql, gone };
  } catch (error) {
    await sql.end({ timeout: 1 });
    throw error;
  }
}

async function makeDatabase(sql: Sql): Promise<void> {
  const found = await sql`select 1 from pg_database where datname = 'posthorn'`;
  if (found.length > 0) return;
  try {
    await sql`create database posthorn`;
  } catch (error) {
    const madeByAnother = ['42P04', '23505'].includes(codeOf(error) ?? '');
    if (!madeByAnother) throw error;
  }
}

/** A killed holder's lock goes within moments, one who is stopping may take a while; any other stays. */
export async function takeServeLock(sql: Sql, dataDir: string): Promise<void> {
  const began = performance.now();
  for (;;) {
    const [row] = await sql`select pg_try_advisory_lock(${lockSpace}::int, ${serve}::int) as taken`;
    if (row?.taken) return;
    const holder = await findServeHolder(sql);
    const patienceMs = holder.endsWith(' stopping') ? 30_000 : 2_000;
    if (performance.now() - began > patienceMs) {
      const pid = /pid=(\d+)/.exec(holder)?.[1] ?? 'unknown';
      throw new OperatorError(
        `Another Posthorn (pid ${pid}) already runs on ${dataDir}. ` +
          'Stop it, or set POSTHORN_DATA_DIR to another folder.',
      );
    }
    await delay(50);
  }
}

async function findServeHolder(sql: Sql): Promise<string> {
  const [row] = await sql`
    select a.application_name as name
    from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.classid = ${lockSpace} and l.objid = ${serve} and l.granted`;
  return row?.name ?? '';
}

export async function renameSession(sql: Sql, name: string): Promise<void> {
  await sql`select set_config('application_name', ${name}, false)`;
}

/** Gives up our share of the server. True when nobody else has one; newcomers then wait for what we do next. */
export async function isLastOut(sql: Sql): Promise<boolean> {
  await sql`select pg_advisory_unlock_shared(${lockSpace}::int, ${users}::int)`;
  const [row] = await sql`select pg_try_advisory_lock(${lockSpace}::int, ${users}::int) as alone`;
  return row?.alone === true;
}

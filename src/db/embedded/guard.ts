/**
 * The guard: one connection per process that holds advisory locks, so that PostgreSQL itself knows who uses the
 * server and forgets the dead. `users` is shared by all; who can have it alone is the last one. `serve` is held
 * by the one service of a data folder.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Sql } from 'postgres';
import { OperatorError } from '../../lib/operator-error.ts';
import { postgres } from '../driver.ts';
import { codeOf } from './cluster.ts';

export interface Guard {
  readonly sql: Sql;
  /** Resolves when the connection is gone, and its locks with it, whoever closed it. */
  readonly gone: Promise<void>;
}

/** The driver (3.4.9) never answers a query that is sent while its connection breaks: the loss is the answer then. */
function ask<T>(guard: Guard, query: Promise<T>): Promise<T> {
  const lost = guard.gone.then(() => Promise.reject(new Error('the connection to PostgreSQL is gone')));
  return Promise.race([query, lost]);
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
  const guard = { sql, gone };
  try {
    await ask(guard, sql`select pg_advisory_lock_shared(${lockSpace}::int, ${users}::int)`);
    await makeDatabase(guard);
    return guard;
  } catch (error) {
    await closeGuard(guard);
    throw error;
  }
}

async function makeDatabase(guard: Guard): Promise<void> {
  const found = await ask(guard, guard.sql`select 1 from pg_database where datname = 'posthorn'`);
  if (found.length > 0) return;
  try {
    await ask(guard, guard.sql`create database posthorn`);
  } catch (error) {
    const madeByAnother = ['42P04', '23505'].includes(codeOf(error) ?? '');
    if (!madeByAnother) throw error;
  }
}

/** A killed holder's lock goes within moments, one who is stopping may take a while; any other stays. */
export async function takeServeLock(guard: Guard, dataDir: string): Promise<void> {
  const began = performance.now();
  while (!(await tryLock(guard, serve))) {
    const holder = await findServeHolder(guard);
    // Nobody: the holder left between the two questions.
    const leaving = holder === '' || holder.endsWith(' stopping');
    const patienceMs = leaving ? 30_000 : 2_000;
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

async function tryLock(guard: Guard, lock: number): Promise<boolean> {
  const [row] = await ask(
    guard,
    guard.sql`select pg_try_advisory_lock(${lockSpace}::int, ${lock}::int) as taken`,
  );
  return row?.taken === true;
}

async function findServeHolder(guard: Guard): Promise<string> {
  const [row] = await ask(
    guard,
    guard.sql`
      select a.application_name as name
      from pg_locks l join pg_stat_activity a on a.pid = l.pid
      where l.locktype = 'advisory' and l.classid = ${lockSpace} and l.objid = ${serve} and l.granted`,
  );
  return row?.name ?? '';
}

export async function renameSession(guard: Guard, name: string): Promise<void> {
  await ask(guard, guard.sql`select set_config('application_name', ${name}, false)`);
}

/** Gives up our share of the server. True when nobody else has one; newcomers then wait for what we do next. */
export async function isLastOut(guard: Guard): Promise<boolean> {
  await ask(guard, guard.sql`select pg_advisory_unlock_shared(${lockSpace}::int, ${users}::int)`);
  return tryLock(guard, users);
}

/** With a limit: without one, the driver waits for ever on a connection that broke under a query. */
export async function closeGuard(guard: Guard): Promise<void> {
  await guard.sql.end({ timeout: 1 }).catch(() => {});
}

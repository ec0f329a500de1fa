/**
 * The guard: one connection per process that has advisory locks, so that PostgreSQL itself knows which processes use the
 * server and forgets dead ones. Every process has a share of the lock `users`; a process that gets `users` exclusively is the
 * last user. The one service of a data folder has the lock `serve`.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { OperatorError } from '../../lib/operator-error.ts';
import type { DatabaseAddress } from '../address.ts';
import { type DedicatedConnection, errorCode, openDedicated } from '../client.ts';

const lockSpace = 0x706f7374;
const users = 1;
const serve = 2;

/** Waits while another process stops the server. The stop closes this connection, and the caller retries. */
export async function joinServer(address: DatabaseAddress, name: string): Promise<DedicatedConnection> {
  const guard = await openDedicated(() => address, { applicationName: name, lockTimeoutMs: 10_000 });
  try {
    await guard.sql`select pg_advisory_lock_shared(${lockSpace}::int, ${users}::int)`;
    await createDatabase(guard);
    return guard;
  } catch (error) {
    await guard.end();
    throw error;
  }
}

async function createDatabase({ sql }: DedicatedConnection): Promise<void> {
  const found = await sql`select 1 from pg_database where datname = 'posthorn'`;
  if (found.length > 0) return;
  try {
    await sql`create database posthorn`;
  } catch (error) {
    const isCreatedMeanwhile = ['42P04', '23505'].includes(errorCode(error) ?? '');
    if (!isCreatedMeanwhile) throw error;
  }
}

/** Waits for the lock of a killed process (released within moments) or of a stopping one (up to 30 s). */
export async function takeServeLock(
  guard: DedicatedConnection,
  dataDir: string,
  patienceMs = 2_000,
): Promise<void> {
  const startedAt = performance.now();
  while (!(await tryLock(guard, serve))) {
    const owner = await findServeLockOwner(guard);
    // Empty: the owner released the lock between the two queries.
    const isStopping = owner === '' || owner.endsWith(' stopping');
    if (performance.now() - startedAt > (isStopping ? 30_000 : patienceMs)) {
      const pid = /pid=(\d+)/.exec(owner)?.[1] ?? 'unknown';
      throw new OperatorError(
        `Another Posthorn (pid ${pid}) already runs on ${dataDir}. ` +
          'Stop it, or set POSTHORN_DATA_DIR to another folder.',
      );
    }
    await delay(50);
  }
}

async function tryLock({ sql }: DedicatedConnection, lock: number): Promise<boolean> {
  const [row] = await sql`select pg_try_advisory_lock(${lockSpace}::int, ${lock}::int) as taken`;
  return row?.taken === true;
}

async function findServeLockOwner({ sql }: DedicatedConnection): Promise<string> {
  const [row] = await sql`
    select a.application_name as name
    from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.classid = ${lockSpace} and l.objid = ${serve} and l.granted`;
  return row?.name ?? '';
}

export async function renameSession({ sql }: DedicatedConnection, name: string): Promise<void> {
  await sql`select set_config('application_name', ${name}, false)`;
}

/** True when no other process uses the server: new processes wait until the guard closes. */
export function isOnlyUser(guard: DedicatedConnection): Promise<boolean> {
  return tryLock(guard, users);
}

/** Releases our share of `users`. True when this was the last user: new processes wait until the guard closes. */
export async function releaseServer(guard: DedicatedConnection): Promise<boolean> {
  await guard.sql`select pg_advisory_unlock_shared(${lockSpace}::int, ${users}::int)`;
  return tryLock(guard, users);
}

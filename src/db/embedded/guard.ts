/**
 * The guard: one connection per process that holds advisory locks, so that PostgreSQL itself knows who uses the
 * server and forgets the dead. `users` is shared by all; who can have it alone is the last one. `serve` is held
 * by the one service of a data folder.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { OperatorError } from '../../lib/operator-error.ts';
import { openSession, type Session } from '../client.ts';
import { codeOf } from './cluster.ts';

const lockSpace = 0x706f7374;
const users = 1;
const serve = 2;

/** Waits behind one who is just stopping the server; that cuts this connection, which is an error to retry. */
export async function joinServer(url: string, name: string): Promise<Session> {
  const guard = await openSession(url, { applicationName: name, lockTimeoutMs: 10_000 });
  try {
    await guard.sql`select pg_advisory_lock_shared(${lockSpace}::int, ${users}::int)`;
    await makeDatabase(guard);
    return guard;
  } catch (error) {
    await guard.end();
    throw error;
  }
}

async function makeDatabase({ sql }: Session): Promise<void> {
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
export async function takeServeLock(guard: Session, dataDir: string): Promise<void> {
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

async function tryLock({ sql }: Session, lock: number): Promise<boolean> {
  const [row] = await sql`select pg_try_advisory_lock(${lockSpace}::int, ${lock}::int) as taken`;
  return row?.taken === true;
}

async function findServeHolder({ sql }: Session): Promise<string> {
  const [row] = await sql`
    select a.application_name as name
    from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.classid = ${lockSpace} and l.objid = ${serve} and l.granted`;
  return row?.name ?? '';
}

export async function renameSession({ sql }: Session, name: string): Promise<void> {
  await sql`select set_config('application_name', ${name}, false)`;
}

/** Gives up our share of the server. True when nobody else has one; newcomers then wait for what we do next. */
export async function isLastOut(guard: Session): Promise<boolean> {
  await guard.sql`select pg_advisory_unlock_shared(${lockSpace}::int, ${users}::int)`;
  return tryLock(guard, users);
}

/**
 * Resource usage of processes, from Linux's /proc: processor time and memory of the service, and processor time of a PostgreSQL
 * server on the same machine.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { only, type Sql } from '../src/db/client.ts';
import { OperatorError } from '../src/lib/operator-error.ts';

/** USER_HZ is 100 on every Linux that Node supports. */
const msPerTick = 10;

interface Stat {
  parent: number;
  /** Of the process itself, and of its ended children. */
  ownMs: number;
  endedChildrenMs: number;
}

/** `thread`: only this thread of the process. */
function readStat(pid: number, thread?: number): Stat | undefined {
  const file = thread === undefined ? `/proc/${pid}/stat` : `/proc/${pid}/task/${thread}/stat`;
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    // The process ended after it was listed.
    if (!existsSync(file)) return undefined;
    throw error;
  }
  // The name in parentheses may contain any character. proc(5) counts fields from 1; the field after the name is number 3.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const field = (number: number) => Number(fields[number - 3]);
  return {
    parent: field(4),
    ownMs: (field(14) + field(15)) * msPerTick,
    endedChildrenMs: (field(16) + field(17)) * msPerTick,
  };
}

/** Processor time of all threads since the start of the process, in milliseconds. */
export function readCpuMs(pid: number): number {
  const stat = readStat(pid);
  if (!stat) throw new Error(`Process ${pid} has ended`);
  return stat.ownMs;
}

/** Processor time of the main thread: the one whose id is that of the process. */
export function readMainThreadCpuMs(pid: number): number {
  const stat = readStat(pid, pid);
  if (!stat) throw new Error(`Process ${pid} has ended`);
  return stat.ownMs;
}

/** Peak and present memory, in MB of a million bytes. */
export function readMemory(pid: number): { peak: number; now: number } {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const read = (key: string) =>
    (Number(new RegExp(`^${key}:\\s+(\\d+) kB`, 'm').exec(status)?.[1]) * 1024) / 1e6;
  return { peak: read('VmHWM'), now: read('VmRSS') };
}

/** proc(5): writing 5 resets the peak to the present size. */
export function resetPeak(pid: number): void {
  writeFileSync(`/proc/${pid}/clear_refs`, '5');
}

/** The pid of the server's main process. Throws when the server's processes are not visible on this machine. */
export async function findPostmaster(sql: Sql): Promise<number> {
  const { pid } = only(await sql<{ pid: number }[]>`select pg_backend_pid() as pid`);
  const name = `/proc/${pid}/comm`;
  const parent =
    existsSync(name) && readFileSync(name, 'utf8').startsWith('postgres') && readStat(pid)?.parent;
  if (parent) return parent;
  throw new OperatorError('What PostgreSQL costs shows only on Linux, and where it runs on this machine.');
}

/** Processor time of the whole server, with its ended processes. */
export function readServerCpuMs(postmaster: number): number {
  const stat = readStat(postmaster);
  if (!stat) throw new Error('PostgreSQL has ended');
  let sum = stat.ownMs + stat.endedChildrenMs;
  for (const name of readdirSync('/proc')) {
    const child = /^\d+$/.test(name) ? readStat(Number(name)) : undefined;
    if (child?.parent === postmaster) sum += child.ownMs;
  }
  return sum;
}

/** Bytes of write-ahead log that the whole server has written. */
export async function readWalBytes(sql: Sql): Promise<number> {
  const { bytes } = only(
    await sql<{ bytes: number }[]>`select (pg_current_wal_lsn() - '0/0'::pg_lsn)::float8 as bytes`,
  );
  return bytes;
}

export interface TableUsage {
  name: string;
  /** With indexes and TOAST. */
  bytes: number;
  dead: number;
  inserted: number;
  updated: number;
}

/** A server process reports its row counts with a delay, and all of them when it ends. */
export async function readTables(sql: Sql): Promise<TableUsage[]> {
  return sql<TableUsage[]>`
    select relname as name, pg_total_relation_size(relid)::float8 as bytes, n_dead_tup::float8 as dead,
      n_tup_ins::float8 as inserted, n_tup_upd::float8 as updated
    from pg_stat_user_tables order by relname`;
}

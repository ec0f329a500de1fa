/**
 * The running processes, as `posthorn reseal` and `posthorn doctor` need them. A process is alive while its row is recent by the clock of the database;
 * the rows of killed processes expire.
 */
import { hostname } from 'node:os';
import type { Sql } from '../db/client.ts';

export interface RunningProcess {
  id: string;
  /** For people. */
  name: string;
  roles: readonly string[];
  version: string;
  /** In hex, as `Sealer.keyIds`. */
  keyIds: readonly string[];
}

const aliveSeconds = 60;

export function nameOfThisProcess(): string {
  return `pid ${process.pid} on ${hostname()}`;
}

/** Call it at the start, and then much more often than every `aliveSeconds`. */
export async function reportProcess(
  sql: Sql,
  { id, name, roles, version, keyIds }: RunningProcess,
): Promise<void> {
  await sql`
    insert into processes (id, name, roles, version, key_ids)
    values (${id}, ${name}, ${roles}::text[], ${version}, ${keyIds}::text[])
    on conflict (id) do update set seen_at = now()`;
  await sql`delete from processes where seen_at < now() - ${aliveSeconds} * interval '1 second'`;
}

export async function removeProcess(sql: Sql, id: string): Promise<void> {
  await sql`delete from processes where id = ${id}`;
}

/** What the running processes on this machine do. */
export async function listLocalRoles(sql: Sql): Promise<string[]> {
  const rows = await sql<{ name: string; roles: string[] }[]>`
    select name, roles from processes where seen_at > now() - ${aliveSeconds} * interval '1 second'`;
  return rows.filter(({ name }) => name.endsWith(` on ${hostname()}`)).flatMap(({ roles }) => roles);
}

/** Processes that cannot decrypt what this key encrypts. */
export async function listProcessesWithoutKey(sql: Sql, keyId: string): Promise<RunningProcess[]> {
  return sql<RunningProcess[]>`
    select id, name, roles, version, key_ids as "keyIds" from processes
    where seen_at > now() - ${aliveSeconds} * interval '1 second' and not key_ids @> array[${keyId}]
    order by started_at, id`;
}

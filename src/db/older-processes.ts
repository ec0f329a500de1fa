/**
 * The processes that a migration would break: those that are connected and do not know its schema. The name of every connection
 * has the schema version that its process knows, so PostgreSQL forgets a process that died together with its connections.
 */
import { OperatorError } from '../lib/operator-error.ts';
import type { Sql } from './client.ts';

/** Versions before schema 12 have names without `schema=`, and are found by that. */
export function nameConnection(purpose: string, schemaVersion: number): string {
  return `posthorn ${purpose} schema=${schemaVersion}`;
}

/** Live processes write their row in `processes` every ten seconds; the row of a killed process stays longer. */
const reportedSeconds = 20;

export async function refuseOlderProcesses(
  sql: Sql,
  migration: { version: number; name: string },
): Promise<void> {
  const connections = await sql<{ command: string; address: string | null; count: number }[]>`
    select command, host(client_addr) as address, count(*)::int as count
    from pg_stat_activity, substring(application_name from '^posthorn (serve|tool)\\M') as command
    where datname = current_database() and command is not null
      and coalesce(substring(application_name from ' schema=(\\d{1,9})$')::int, 0) < ${migration.version}
    group by command, client_addr order by command, client_addr`;
  if (connections.length === 0) return;
  // A process writes its row after it has found the schema up to date: every process in the table is older.
  const processes = await sql<{ name: string; version: string; roles: string[] }[]>`
    select name, version, roles from processes
    where seen_at > now() - ${reportedSeconds} * interval '1 second' order by started_at, id`;
  const lines = [
    ...processes.map(({ name, version, roles }) => `${name}: Posthorn ${version} (${roles.join(', ')})`),
    ...connections.map(
      ({ command, address, count }) =>
        `connections of ${command === 'serve' ? 'posthorn serve' : 'a posthorn command'}` +
        `${address ? ` from ${address}` : ''}: ${count}`,
    ),
  ];
  throw new OperatorError(
    `The migration ${migration.name} cannot run while an older Posthorn is connected to the database:\n` +
      `${lines.map((line) => `  ${line}\n`).join('')}` +
      'It has changed nothing. Stop these processes, then start again.',
  );
}

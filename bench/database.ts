/**
 * The database of a scenario: the embedded one that the service starts, or a new one on the server of `--against`, which is
 * dropped when the scenario ends. Other databases on that server are not changed.
 */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { connect, errorCode, only, type Pool } from '../src/db/client.ts';
import { openEmbedded } from '../src/db/embedded/open.ts';
import { identifier } from '../src/db/sql.ts';
import { makeLog } from '../src/lib/log.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { urlOf } from '../test/own-postgres.ts';
import type { Bench } from './scenario.ts';

const applicationName = 'posthorn bench';

/** Returns the server's version. Throws when the bench cannot work on the server. */
export async function requireServer(url: string): Promise<string> {
  const sql = connect(url, { max: 1, applicationName });
  try {
    const server = only(
      await sql<{ version: string; number: number; standby: boolean; role: string; may: boolean }[]>`
        select current_setting('server_version') as version, current_setting('server_version_num')::int as number,
          pg_is_in_recovery() as standby, rolname as role, rolcreatedb or rolsuper as may
        from pg_roles where rolname = current_user`,
    );
    if (server.number < 150_000)
      throw new OperatorError(`needs PostgreSQL 15 or newer, not ${server.version}.`);
    if (server.standby) throw new OperatorError('needs a server that takes writes; this one is a standby.');
    if (!server.may)
      throw new OperatorError(
        `must allow the bench to create databases, and the role ${server.role} may not. Run as a superuser: ` +
          `alter role ${server.role} createdb`,
      );
    return server.version;
  } catch (error) {
    if (error instanceof OperatorError) throw new OperatorError(`--against ${error.message}`);
    const reason = error instanceof Error ? error.message || errorCode(error) : String(error);
    throw new OperatorError(`--against: cannot connect to PostgreSQL: ${reason}`, {
      cause: error,
    });
  } finally {
    await sql.end({ timeoutMs: 1000 });
  }
}

/** Returns the URL of an empty database on that server. */
export async function makeDatabase(bench: Bench, server: string): Promise<string> {
  const name = `posthorn_bench_${randomBytes(6).toString('hex')}`;
  await asAdmin(server, (sql) => sql`create database ${identifier(name)} template template0`);
  bench.defer(() => asAdmin(server, (sql) => sql`drop database ${identifier(name)} with (force)`));
  const url = new URL(server);
  url.pathname = `/${name}`;
  return url.href;
}

async function asAdmin(server: string, work: (sql: Pool) => Promise<unknown>): Promise<void> {
  const sql = connect(server, { max: 1, applicationName });
  try {
    await work(sql);
  } finally {
    await sql.end({ timeoutMs: 1000 });
  }
}

/** Starts an embedded PostgreSQL in a temporary folder. Returns the URL of a database there. */
export async function startServer(defer: Bench['defer']): Promise<string> {
  const dataDir = mkdtempSync(path.join(tmpdir(), 'posthorn-bench-'));
  defer(() => rmSync(dataDir, { recursive: true, force: true }));
  return joinEmbedded({ defer }, dataDir);
}

/** Returns the URL of the database that a service started in its data folder. The database runs until the scenario ends. */
export async function joinEmbedded(bench: Pick<Bench, 'defer'>, dataDir: string): Promise<string> {
  const log = makeLog({ level: 'warn', json: false, stream: process.stderr });
  const embedded = await openEmbedded({ dataDir, log, purpose: 'tool' });
  bench.defer(() => embedded.stop());
  return urlOf(embedded.address);
}

/** The bench's own connections to the database. */
export function connectBench(bench: Bench, url: string): Pool {
  const sql = connect(url, { max: 2, applicationName });
  bench.defer(() => sql.end({ timeoutMs: 1000 }));
  return sql;
}

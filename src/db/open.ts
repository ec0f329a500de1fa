/** Opens the database: the operator's (DATABASE_URL) or the embedded one. */
import type { Config } from '../config.ts';
import type { Log } from '../lib/log.ts';
import { connect, type Pool } from './client.ts';
import { openEmbedded } from './embedded/open.ts';
import { readOwnSchemaVersion } from './migrate.ts';
import { nameConnection } from './older-processes.ts';
import { waitForDatabase } from './wait.ts';

export interface Database {
  sql: Pool;
  /** Another pool, so that one kind of work does not wait for the queries of another. */
  openAnother(
    use: string,
    options: { max: number; lockTimeoutMs?: number; statementTimeoutMs?: number },
  ): Pool;
  /** Lets the next service on the same data folder wait for this one to stop. */
  announceStop(): Promise<void>;
  /** Closes the pools, then stops the embedded server if nobody else uses it. */
  close(): Promise<void>;
}

export async function openDatabase(
  config: Config,
  options: { purpose: 'serve' | 'tool'; log: Log; max: number; signal?: AbortSignal },
): Promise<Database> {
  const { purpose, log, max } = options;
  const schemaVersion = readOwnSchemaVersion();
  const { databaseUrl } = config;
  const embedded =
    databaseUrl === null ? await openEmbedded({ dataDir: config.dataDir, log, purpose }) : null;
  const target = embedded ? () => embedded.address : (databaseUrl ?? '');
  const sql = connect(target, { max, applicationName: nameConnection(purpose, schemaVersion) });
  const pools = [sql];
  try {
    // The embedded server is ready already.
    if (!embedded) await waitForDatabase(sql, log, options.signal);
  } catch (error) {
    await sql.end({ timeoutMs: 0 });
    throw error;
  }
  return {
    sql,
    openAnother(use, options) {
      const applicationName = nameConnection(`${purpose} ${use}`, schemaVersion);
      const pool = connect(target, { ...options, applicationName });
      pools.push(pool);
      return pool;
    },
    announceStop: async () => embedded?.announceStop(),
    async close() {
      await Promise.all(pools.map((pool) => pool.end({ timeoutMs: 5000 })));
      await embedded?.stop();
    },
  };
}

/** The database of this service: the operator's, or the embedded one. Ready for use when it is handed out. */
import type { Config } from '../config.ts';
import type { Log } from '../lib/log.ts';
import { connect, type Pool, waitForDatabase } from './client.ts';
import { openEmbedded } from './embedded.ts';

export interface Database {
  sql: Pool;
  /** Tells whoever wants to start after us that waiting is worth it. */
  announceStop(): Promise<void>;
  /** Closes the pool and then, being the last one out, the embedded server. */
  close(): Promise<void>;
}

export async function openDatabase(
  config: Config,
  options: { purpose: 'serve' | 'tool'; log: Log; max: number; signal?: AbortSignal },
): Promise<Database> {
  const { purpose, log, max } = options;
  const applicationName = `posthorn ${purpose}`;
  if (config.databaseUrl !== null) {
    const sql = connect(config.databaseUrl, { max, applicationName });
    try {
      await waitForDatabase(sql, log, options.signal);
    } catch (error) {
      await sql.end({ timeout: 0 });
      throw error;
    }
    return { sql, announceStop: async () => {}, close: () => sql.end({ timeout: 5 }) };
  }

  const embedded = await openEmbedded({ dataDir: config.dataDir, log, purpose });
  const sql = connect(embedded.url, { max, applicationName });
  return {
    sql,
    announceStop: () => embedded.announceStop(),
    async close() {
      await sql.end({ timeout: 5 });
      await embedded.stop();
    },
  };
}

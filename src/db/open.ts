/** The database of this service: the operator's, or the embedded one. Ready for use when it is handed out. */
import type { Config } from '../config.ts';
import type { Log } from '../lib/log.ts';
import { connect, type Pool, waitForDatabase } from './client.ts';
import { openEmbedded } from './embedded/open.ts';

export interface Database {
  sql: Pool;
  /** Another pool, for the delivery loop: so that neither it nor the API waits for the other's queries. */
  openAnother(max: number): Pool;
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
  const { databaseUrl } = config;
  const embedded =
    databaseUrl === null ? await openEmbedded({ dataDir: config.dataDir, log, purpose }) : null;
  const url = embedded?.url ?? databaseUrl ?? '';
  const pools = [connect(url, { max, applicationName })];
  const [sql] = pools as [Pool];
  const close = async () => {
    await Promise.all(pools.map((pool) => pool.end({ timeoutMs: 5000 })));
    await embedded?.stop();
  };

  try {
    // The embedded one is handed out ready.
    if (!embedded) await waitForDatabase(sql, log, options.signal);
  } catch (error) {
    await sql.end({ timeoutMs: 0 });
    throw error;
  }
  return {
    sql,
    openAnother(max) {
      const pool = connect(url, { max, applicationName: `${applicationName} delivery` });
      pools.push(pool);
      return pool;
    },
    announceStop: async () => embedded?.announceStop(),
    close,
  };
}

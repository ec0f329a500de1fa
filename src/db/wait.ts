/** Waits at the start until the database answers, and refuses a PostgreSQL that is too old. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { errorCode, isUnavailable, only, type Pool } from './client.ts';

/** Retries with growing pauses until the database answers. Throws when a retry cannot help, as with a wrong password. */
export async function waitForDatabase(sql: Pool, log: Log, signal?: AbortSignal): Promise<void> {
  for (let pauseMs = 250; ; pauseMs = Math.min(pauseMs * 2, 10_000)) {
    try {
      const { version } = only(await sql`select current_setting('server_version_num')::int as version`);
      if (version >= 150_000) return;
      throw new OperatorError(
        `Posthorn needs PostgreSQL 15 or newer. The database is PostgreSQL ${Math.floor(version / 10_000)}.`,
      );
    } catch (error) {
      if (error instanceof OperatorError) throw error;
      const reason = error instanceof Error ? error.message || errorCode(error) : String(error);
      if (!isUnavailable(error)) {
        throw new OperatorError(`The database refused the connection: ${reason}\nCheck DATABASE_URL.`, {
          cause: error,
        });
      }
      log.warn(`the database does not answer (${reason}); retrying in ${pauseMs / 1000} s`);
      await delay(pauseMs, undefined, signal ? { signal } : {}).catch(() => {
        throw new OperatorError('Stopped while waiting for the database.');
      });
    }
  }
}

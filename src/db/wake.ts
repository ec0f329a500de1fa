/**
 * Wakes the delivery loops of all processes on this database. At once in this process; elsewhere by a NOTIFY that stands
 * outside the transactions it tells of, at most 20 times a second, because one in every commit makes commits queue up.
 * A lost one costs no more than the loops' own polling.
 */
import type { Log } from '../lib/log.ts';
import type { Pool } from './client.ts';

const channel = 'posthorn_ready';
const throttleMs = 50;

export interface Waker {
  /** Call it after the commit. */
  wake(): void;
  stop(): Promise<void>;
}

/** `here` is this process's own loop, where it has one: it then also hears the others. */
export async function startWaker(sql: Pool, log: Log, here: (() => void) | null): Promise<Waker> {
  const listening = here ? await sql.listen(channel, here) : null;
  let timer: NodeJS.Timeout | undefined;

  function notify(): void {
    timer = undefined;
    sql`select pg_notify(${channel}, '')`.catch((err: unknown) =>
      log.debug({ err }, 'could not wake other processes; they poll'),
    );
  }

  return {
    wake() {
      here?.();
      timer ??= setTimeout(notify, throttleMs);
    },
    async stop() {
      clearTimeout(timer);
      await listening?.stop();
    },
  };
}

/**
 * Wakes the loops of a queue, or the event streams, in all processes on this database: directly in this process, by NOTIFY in the
 * others. NOTIFY is sent outside of the transactions and at most 20 times a second, because a NOTIFY in every commit makes commits
 * wait for each other. A lost notification costs one poll interval.
 */
import type { Log } from '../lib/log.ts';
import type { Pool } from './client.ts';

/** A channel for each queue (deliveries, outgoing mail), for the event streams, and for mailboxes elsewhere. */
const channels = {
  deliveries: 'posthorn_ready',
  mail: 'posthorn_send',
  mailboxes: 'posthorn_sync',
  streams: 'posthorn_events',
} as const;
const throttleMs = 50;

/** `wakeOwnLoop` is null in a process without a loop of this queue. */
export async function startWaker(
  sql: Pool,
  log: Log,
  queue: keyof typeof channels,
  wakeOwnLoop: ((laneKeys?: readonly string[]) => void) | null,
) {
  const channel = channels[queue];
  const listening = wakeOwnLoop ? await sql.listen(channel, () => wakeOwnLoop()) : null;
  let timer: NodeJS.Timeout | undefined;

  function notify(): void {
    timer = undefined;
    sql`select pg_notify(${channel}, '')`.catch((err: unknown) =>
      log.debug({ err }, 'could not wake the other processes; they poll'),
    );
  }

  return {
    /** To be called after the commit. `laneKeys`: the only lanes that have new jobs, if they are known. */
    wake(laneKeys?: readonly string[]): void {
      wakeOwnLoop?.(laneKeys);
      timer ??= setTimeout(notify, throttleMs);
    },
    async stop(): Promise<void> {
      clearTimeout(timer);
      await listening?.stop();
    },
  };
}

/**
 * One poll for all idle loops: every second one statement asks the database which loops have work, and those are woken. Without it
 * each loop would ask for itself, and an idle process would send many times as many statements.
 */
import { isUnavailable } from '../db/client.ts';
import { type Loop, startLoop } from '../lib/loop.ts';
import { type DueWork, findDueWork } from '../store/due-work.ts';
import type { Parts } from './parts.ts';

const pollMs = 1000;
/** For the loops that the shared poll wakes. They also look for themselves, rarely, in case the shared poll waits for a connection. */
export const wokenBySharedPoll = { idleMs: 30_000 };

/** How to wake each loop; undefined: this process does not run the loop. */
export type WakeFor = Record<keyof DueWork, (() => void) | undefined>;

export function startSharedPoll({ sql, log }: Parts, wakeFor: WakeFor): Loop {
  const work = async () => {
    const due = await findDueWork(sql);
    for (const name of Object.keys(due) as (keyof DueWork)[]) if (due[name]) wakeFor[name]?.();
    return false;
  };
  return startLoop({ name: 'polling for work', pollMs, log, isTransient: isUnavailable, work });
}

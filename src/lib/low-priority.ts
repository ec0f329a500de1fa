/** Gives way to the event loop that serves everyone when there are fewer free cores than threads. */
import { readlinkSync } from 'node:fs';
import { getPriority, setPriority } from 'node:os';

const lowPriority = 10;

/** Of the calling thread alone. Does nothing where threads have no priority of their own: only Linux has. */
export function lowerThreadPriority(): void {
  try {
    // Such as "4711/task/4723".
    const thread = Number(readlinkSync('/proc/thread-self').split('/').at(-1));
    setPriority(thread, Math.max(lowPriority, getPriority(thread)));
  } catch {
    // Not Linux, or not allowed: the thread works with the usual priority.
  }
}

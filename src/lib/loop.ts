/**
 * The loop of every background job: works while there is more to do, then sleeps until it is woken or the poll interval
 * is over. A failure is logged, and the work is retried after the interval, or later after several failures.
 */
import { backoff } from './backoff.ts';
import type { Log } from './log.ts';

export interface Loop {
  /** Works now instead of at the next poll. Does not shorten a rest, after which the loop works anyway. */
  wake(): void;
  /** Waits for the running piece of work. */
  stop(): Promise<void>;
}

export function startLoop(options: {
  name: string;
  pollMs: number;
  /** Instead of `pollMs` while there is no work: for a loop whose caller polls, and wakes it. */
  idleMs?: number;
  /** After failures in a row the next try comes later and later, up to this. Only work that returns true ends the row. */
  maxRetryMs?: number;
  log: Log;
  /** One piece of work; true when there may be more of it. A number: there is more in so many milliseconds. */
  work: () => Promise<boolean | number>;
  /** Rest after a piece of work, as a multiple of its duration: less urgent work must not slow down the rest of the service. */
  restFactor?: number;
  /** Failures that pass by themselves, such as an unavailable database: logged without a stack. */
  isTransient?: (error: unknown) => boolean;
}): Loop {
  let stopped = false;
  let woken = false;
  let isResting = false;
  let idleMs = 0;
  let failures = 0;
  let endSleep = () => {};

  async function run(): Promise<void> {
    while (!stopped) {
      woken = false;
      const startedAt = performance.now();
      const outcome = await workOnce();
      const more = outcome === 'more';
      const workedMs = performance.now() - startedAt;
      const restMs = more ? Math.min(workedMs * (options.restFactor ?? 0), options.pollMs) : idleMs;
      const rests = outcome === 'done' ? !woken : restMs > 0;
      isResting = more;
      if (!stopped && rests) await sleep(restMs);
      isResting = false;
    }
  }

  async function workOnce(): Promise<'more' | 'done' | 'failed'> {
    try {
      const more = await options.work();
      idleMs = Math.min(
        typeof more === 'number' ? more : Number.POSITIVE_INFINITY,
        options.idleMs ?? options.pollMs,
      );
      if (more !== true) return 'done';
      failures = 0;
      return 'more';
    } catch (err) {
      idleMs = backoff(failures, options.pollMs, options.maxRetryMs ?? options.pollMs);
      failures += 1;
      const what = `${options.name} failed; retrying in ${idleMs} ms`;
      if (options.isTransient?.(err)) options.log.warn(`${what}: ${(err as Error).message}`);
      else options.log.error({ err }, what);
      return 'failed';
    }
  }

  function sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      endSleep = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  const ended = run();
  return {
    wake() {
      woken = true;
      if (!isResting) endSleep();
    },
    stop() {
      stopped = true;
      endSleep();
      return ended;
    },
  };
}

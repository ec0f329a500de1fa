/**
 * The one loop behind every background job: does what is due, again at once while there is more, and else sleeps
 * until it is woken or the poll interval is over. Work that fails is logged and tried again after the interval.
 */
import type { Log } from './log.ts';

export interface Loop {
  /** Look now instead of at the next poll. It does not end a rest, after which the loop works anyway. */
  wake(): void;
  /** Ends after the piece of work that is under way. */
  stop(): Promise<void>;
}

export function startLoop(options: {
  name: string;
  pollMs: number;
  log: Log;
  /** One piece of work; true when there may be more of it. */
  work: () => Promise<boolean>;
  /** How many times as long as it worked it rests before the next piece: work that can wait must not slow what cannot. */
  rest?: number;
  /** Failures that pass by themselves, such as a database that is away: told in a line, without a stack. */
  isTransient?: (error: unknown) => boolean;
}): Loop {
  let stopped = false;
  let woken = false;
  let isResting = false;
  let rouse = () => {};

  async function run(): Promise<void> {
    while (!stopped) {
      woken = false;
      const startedAt = performance.now();
      const outcome = await workOnce();
      const more = outcome === 'more';
      const workedMs = performance.now() - startedAt;
      const restMs = more ? Math.min(workedMs * (options.rest ?? 0), options.pollMs) : options.pollMs;
      const rests = outcome === 'done' ? !woken : restMs > 0;
      isResting = more;
      if (!stopped && rests) await sleep(restMs);
      isResting = false;
    }
  }

  async function workOnce(): Promise<'more' | 'done' | 'failed'> {
    try {
      return (await options.work()) ? 'more' : 'done';
    } catch (err) {
      const what = `${options.name} failed; trying again in ${options.pollMs} ms`;
      if (options.isTransient?.(err)) options.log.warn(`${what}: ${(err as Error).message}`);
      else options.log.error({ err }, what);
      return 'failed';
    }
  }

  function sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      rouse = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  const ended = run();
  return {
    wake() {
      woken = true;
      if (!isResting) rouse();
    },
    stop() {
      stopped = true;
      rouse();
      return ended;
    },
  };
}

/**
 * What a scenario is, and how its figures come about: the service and its control take turns, so that whatever else
 * the machine does meanwhile falls on both, and the median of each counts.
 */

export interface Scenario {
  name: string;
  /** The least ratio of the service's rate to the control's. */
  goal: number;
  run(bench: Bench): Promise<Rates>;
}

/** What a scenario is handed while it runs. */
export interface Bench {
  /** Aborted by Ctrl-C. */
  signal: AbortSignal;
  /** A line of progress. */
  tell(text: string): void;
  /** Runs when the scenario ends, however it ends: last deferred, first run. */
  defer(cleanup: () => void | Promise<void>): void;
}

/** A second, one number for each round. */
export interface Rates {
  service: number[];
  control: number[];
}

/** Works for that long and says how much it did a second. */
type Measure = (durationMs: number) => Promise<number>;

/** Connections of a load generator, and inserts under way in a control that has none. */
export const concurrency = 32;

const warmUpMs = 1500;
const roundMs = 1200;
const rounds = 9;

export async function takeTurns(
  bench: Bench,
  measure: { service: Measure; control: Measure },
): Promise<Rates> {
  bench.tell('warming up');
  await measure.service(warmUpMs);
  await measure.control(warmUpMs);
  const rates: Rates = { service: [], control: [] };
  for (let round = 1; round <= rounds; round++) {
    const service = await measure.service(roundMs);
    const control = await measure.control(roundMs);
    rates.service.push(service);
    rates.control.push(control);
    bench.tell(
      `round ${round} of ${rounds}: ${service.toFixed(0)}/s, control ${control.toFixed(0)}/s, ` +
        `ratio ${(service / control).toFixed(2)}`,
    );
  }
  return rates;
}

/** How often a second `work` gets done with `concurrency` of it under way at any moment. */
export async function measureRate(
  work: () => Promise<unknown>,
  durationMs: number,
  signal?: AbortSignal,
): Promise<number> {
  let done = 0;
  const began = performance.now();
  const repeat = async () => {
    while (performance.now() - began < durationMs) {
      signal?.throwIfAborted();
      await work();
      done += 1;
    }
  };
  await Promise.all(Array.from({ length: concurrency }, repeat));
  return done / ((performance.now() - began) / 1000);
}

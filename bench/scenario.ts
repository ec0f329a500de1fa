/**
 * The parts of a scenario, and how its figures are measured. In each round the service and its control run one after the other,
 * so that other load on the machine affects both; the round with the median ratio counts. A scenario without a control compares
 * the median of its rounds with fixed limits.
 */

export type Scenario = ComparedScenario | BoundedScenario;

interface AnyScenario {
  name: string;
  /** A name that runs the scenario together with others. */
  group?: string;
  /** What this machine lacks for the scenario; null: nothing. */
  findMissing?(): string | null;
  /** The scenario that compares this checkout with another commit, for `--against <commit>`. */
  against?(other: Checkout): BoundedScenario;
}

export interface ComparedScenario extends AnyScenario {
  /** The minimum of service rate / control rate. */
  goal: number;
  run(bench: Bench): Promise<Round[]>;
}

export interface BoundedScenario extends AnyScenario {
  /** The maximum of each figure. */
  goal: Figures;
  run(bench: Bench): Promise<Taken>;
}

/** A measurement that runs only when it is named, and has its own output. */
export interface Study {
  name: string;
  run(bench: Bench, options: { minutes: number }): Promise<Finding>;
}

export interface Finding {
  /** Printed as a line of JSON. */
  value: unknown;
  /** Printed as a table. */
  rows: string[][];
  /** Files to save, by name. */
  files: Record<string, string>;
  met: boolean;
}

/** The folder that a service runs from. */
export interface Checkout {
  /** The short hash of the commit; `this` for this checkout. */
  name: string;
  folder: string;
}

/** The names include the unit. */
export type Figures = Record<string, number>;

/** The values of all rounds, for each figure. */
export type Taken = Record<string, number[]>;

/** What a running scenario gets. */
export interface Bench {
  /** Aborted by Ctrl-C. */
  signal: AbortSignal;
  /** Prints a line of progress. */
  log(text: string): void;
  /** Runs `end` when the scenario ends, also after a failure. The last one registered runs first. */
  defer(cleanup: Cleanup): void;
  /** Runs the work that is measured. With `--profile` only this work is profiled. */
  measured<T>(work: () => Promise<T>): Promise<T>;
  /** The amount of work, the number of rounds or the milliseconds: as given, or with `--smoke` a hundredth, rounded up. */
  size(usual: number): number;
  /** The PostgreSQL to use instead of the embedded one. */
  against: string | null;
  /** The service runs from here. */
  checkout: Checkout;
  /** With `--profile`. */
  profiling: Profiling | null;
}

/** Made by profiling.ts. */
export interface Profiling {
  /** Node options for the service. */
  flags: readonly string[];
  /** Includes a service in the profile, until the scenario or its part ends. */
  watch(bench: Bench, child: { ask(question: unknown): Promise<unknown> }): void;
  /** Profiles all included services during the work. */
  during<T>(work: () => Promise<T>): Promise<T>;
  /** Writes the profile and its flame graph; returns their paths. */
  save(scenario: string): string[];
}

type Cleanup = () => void | Promise<void>;

/** Runs all deferred functions when the work ends, also after a failure. */
export async function withCleanup<T>(work: (defer: Bench['defer']) => Promise<T>): Promise<T> {
  const cleanups: Cleanup[] = [];
  try {
    return await work((cleanup) => cleanups.unshift(cleanup));
  } finally {
    for (const cleanup of cleanups) await cleanup();
  }
}

/** Rates per second. */
export interface Round {
  service: number;
  control: number;
  ratio: number;
}

/** Works for the given time, and returns the rate per second. */
type Measure = (durationMs: number) => Promise<number>;

/** Connections of a load generator, or parallel inserts of a control without connections. */
export const concurrency = 32;

/** Until V8 has compiled the hot code: a service runs for months, so its first seconds do not count. */
const warmUpMs = 4000;
const turnMs = 1200;
/** An odd number, so that one round is the median. */
const rounds = 9;

export async function takeTurns(
  bench: Bench,
  measure: { service: Measure; control: Measure },
): Promise<Round[]> {
  bench.log('warming up');
  await measure.service(bench.size(warmUpMs));
  await measure.control(bench.size(warmUpMs));
  return alternate(bench, rounds, {
    service: () => measure.service(bench.size(turnMs)),
    control: () => measure.control(bench.size(turnMs)),
  });
}

/** Runs service and control alternately; each returns its rate per second. */
export async function alternate(
  bench: Bench,
  usualRounds: number,
  measure: { service: () => Promise<number>; control: () => Promise<number> },
): Promise<Round[]> {
  const rounds = bench.size(usualRounds);
  const taken: Round[] = [];
  while (taken.length < rounds) {
    const service = await bench.measured(measure.service);
    const control = await measure.control();
    const ratio = service / control;
    taken.push({ service, control, ratio });
    const rates = `${service.toFixed(0)}/s, control ${control.toFixed(0)}/s, ratio ${ratio.toFixed(2)}`;
    bench.log(`round ${taken.length} of ${rounds}: ${rates}`);
  }
  return taken;
}

/** Runs `concurrency` calls of `work` at all times; returns calls per second. */
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

export function median(numbers: readonly number[]): number {
  return quantile(numbers, 0.5);
}

/** The smallest value that is not exceeded by this share of the values. */
export function quantile(numbers: readonly number[], share: number): number {
  const found = numbers.toSorted((a, b) => a - b)[Math.max(0, Math.ceil(share * numbers.length) - 1)];
  if (found === undefined) throw new Error('Nothing was measured');
  return found;
}

/**
 * What a scenario is, and how its figures come about: in each round the service and its control take a turn, so that
 * whatever else the machine does falls on both, and the round with the median ratio counts. Some have no control: what they
 * measure, the median of the rounds, is held against fixed bounds.
 */

export type Scenario = ComparedScenario | BoundedScenario;

export interface ComparedScenario {
  name: string;
  /** The least ratio of the service's rate to the control's. */
  goal: number;
  run(bench: Bench): Promise<Round[]>;
}

export interface BoundedScenario {
  name: string;
  /** The most of each figure. */
  goal: Figures;
  run(bench: Bench): Promise<Taken>;
}

/** Something that is measured only when it is asked for by name, and tells of it in its own way. */
export interface Study {
  name: string;
  run(bench: Bench, options: { minutes: number }): Promise<Finding>;
}

export interface Finding {
  /** Printed as a line of JSON. */
  value: unknown;
  /** For people. */
  rows: string[][];
  /** To be saved, by name. */
  files: Record<string, string>;
  met: boolean;
}

/** By names that say the unit. */
export type Figures = Record<string, number>;

/** Of each figure, what every round gave. */
export type Taken = Record<string, number[]>;

/** What a scenario is handed while it runs. */
export interface Bench {
  /** Aborted by Ctrl-C. */
  signal: AbortSignal;
  /** A line of progress. */
  tell(text: string): void;
  /** Runs when the scenario ends, however it ends: last deferred, first run. */
  defer(cleanup: Cleanup): void;
  /** Does what is measured; with `--profile`, the profile is of this alone. */
  measured<T>(work: () => Promise<T>): Promise<T>;
  /** The PostgreSQL to work on instead of the embedded one. */
  against: string | null;
  /** With `--profile`. */
  profiling: Profiling | null;
}

/** What profiling.ts makes. */
export interface Profiling {
  /** What the service's Node is to be started with. */
  flags: readonly string[];
  /** From now until the scenario, or its part, ends. */
  watch(bench: Bench, child: { ask(question: unknown): Promise<unknown> }): void;
  /** Profiles all services that are watched while it works. */
  during<T>(work: () => Promise<T>): Promise<T>;
  /** Writes the profile and its flame graph; returns where they are. */
  save(scenario: string): string[];
}

type Cleanup = () => void | Promise<void>;

/** Runs what was deferred when the work ends, however it ends. */
export async function withCleanup<T>(work: (defer: Bench['defer']) => Promise<T>): Promise<T> {
  const cleanups: Cleanup[] = [];
  try {
    return await work((cleanup) => cleanups.unshift(cleanup));
  } finally {
    for (const cleanup of cleanups) await cleanup();
  }
}

/** How much each did a second. */
export interface Round {
  service: number;
  control: number;
  ratio: number;
}

/** Works for that long and says how much it did a second. */
type Measure = (durationMs: number) => Promise<number>;

/** Connections of a load generator, and inserts under way in a control that has none. */
export const concurrency = 32;

/** Until V8 has compiled what is hot: the first seconds of a service that runs for months are not what is asked. */
const warmUpMs = 4000;
const turnMs = 1200;
/** Odd, so that one is in the middle. */
const rounds = 9;

export async function takeTurns(
  bench: Bench,
  measure: { service: Measure; control: Measure },
): Promise<Round[]> {
  bench.tell('warming up');
  await measure.service(warmUpMs);
  await measure.control(warmUpMs);
  return alternate(bench, rounds, {
    service: () => measure.service(turnMs),
    control: () => measure.control(turnMs),
  });
}

/** Service and control by turns; each says how much it did a second. */
export async function alternate(
  bench: Bench,
  rounds: number,
  measure: { service: () => Promise<number>; control: () => Promise<number> },
): Promise<Round[]> {
  const taken: Round[] = [];
  while (taken.length < rounds) {
    const service = await bench.measured(measure.service);
    const control = await measure.control();
    const ratio = service / control;
    taken.push({ service, control, ratio });
    const rates = `${service.toFixed(0)}/s, control ${control.toFixed(0)}/s, ratio ${ratio.toFixed(2)}`;
    bench.tell(`round ${taken.length} of ${rounds}: ${rates}`);
  }
  return taken;
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

export function median(numbers: readonly number[]): number {
  return quantile(numbers, 0.5);
}

/** The least of them that at least this share of them does not exceed. */
export function quantile(numbers: readonly number[], share: number): number {
  const found = numbers.toSorted((a, b) => a - b)[Math.max(0, Math.ceil(share * numbers.length) - 1)];
  if (found === undefined) throw new Error('Nothing was measured');
  return found;
}

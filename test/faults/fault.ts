/** The interfaces of a fault: what it gets from the runner, and what it returns. */

export interface Fault {
  /** A sentence for `--help`. */
  about: string;
  rounds: { usual: number; short: number };
  /** The time limit. */
  boundMs(rounds: number, short: boolean, messages?: number): number;
  /** What is missing on this machine to run the fault; null when nothing is missing. */
  lacks?(): string | null;
  run(lent: FaultRun): Promise<Outcome>;
}

export interface FaultRun {
  rounds: number;
  /** A short run: outages last seconds. */
  short: boolean;
  /** From the command line: how many messages the database of `upgrade` has. */
  messages: number | undefined;
  /** A number from 0 up to 1, the same for the same seed. */
  random(): number;
  /** Prints progress. */
  log(line: string): void;
  /** Called at the end, the last one first. `clean` is false when the files are evidence and must stay. */
  defer(undo: (clean: boolean) => unknown): void;
}

export interface Outcome {
  /** Messages that got a 250 and were checked. */
  acknowledged: number;
  /** A sentence for each acknowledged message that is not stored, not delivered, or not as it was sent. */
  lost: string[];
  /** A sentence for each message that nobody sent, or that is stored or delivered as two. */
  conjured: string[];
  /** A sentence for every other violation. */
  broken: string[];
}

/** A whole number from `least` to `most`, both included. */
export function pick(random: () => number, least: number, most: number): number {
  return least + Math.floor(random() * (most - least + 1));
}

/** mulberry32: small, and good enough to choose moments. */
export function makeRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

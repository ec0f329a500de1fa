/** What a fault is, what the runner lends it, and what it says in the end. */

export interface Fault {
  /** A sentence for `--help`. */
  about: string;
  rounds: { usual: number; short: number };
  /** However it goes, it is over by then. */
  boundMs(rounds: number, short: boolean): number;
  /** What this machine or user lacks for it; null when it can be run. */
  lacks?(): string | null;
  run(lent: FaultRun): Promise<Outcome>;
}

export interface FaultRun {
  rounds: number;
  /** The least that still shows something: outages last seconds. */
  short: boolean;
  /** From 0 up to 1, the same for the same seed. */
  random(): number;
  /** Told as it goes on. */
  tell(line: string): void;
  /** Called at the end, the last first; `clean` is false where what is left is evidence. */
  defer(undo: (clean: boolean) => unknown): void;
}

export interface Outcome {
  /** Messages that got their 250, whose keeping was looked into. */
  acknowledged: number;
  /** A sentence for each that was acknowledged and is not stored, not announced, or not as it was sent. */
  lost: string[];
  /** The same for what nobody sent, and for what is stored or announced as two. */
  conjured: string[];
  /** The same for every other promise that did not hold. */
  broken: string[];
}

/** A whole number from `least` up to and with `most`. */
export function pick(random: () => number, least: number, most: number): number {
  return least + Math.floor(random() * (most - least + 1));
}

/** mulberry32: small, and good enough to choose moments by. */
export function makeRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

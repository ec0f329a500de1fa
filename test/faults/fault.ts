/** What a fault is, and what the runner lends it. */

export interface Fault {
  /** A sentence for `--help`. */
  about: string;
  usualRounds: number;
  /** However it goes, it is over by then. */
  boundMs(rounds: number): number;
  /** Breaks things and returns a sentence for each promise that did not hold. */
  run(lent: FaultRun): Promise<string[]>;
}

export interface FaultRun {
  rounds: number;
  /** From 0 up to 1, the same for the same seed. */
  random(): number;
  /** Told as it goes on. */
  tell(line: string): void;
  /** Called at the end, the last first; `clean` is false where what is left is evidence. */
  defer(undo: (clean: boolean) => unknown): void;
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

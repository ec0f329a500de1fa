/** What a target of the fuzzer is, and what it is lent for each case. */
import type { Random } from './random.ts';

export interface Target {
  /** A sentence for `--help`. */
  about: string;
  /** `settings` say where the database is. */
  open(settings: Record<string, string>): Promise<Fuzzed>;
}

export interface Fuzzed {
  /** Cases that run at once. */
  lanes: number;
  /** Throws where a promise did not hold; else says in a few words how it went, for the variety to be counted. */
  run(one: Case): Promise<string[]>;
  close(): Promise<void>;
}

export interface Case {
  number: number;
  /** All that a case does follows from it. */
  random: Random;
  /** Evidence, which is written down if the case turns out to be a find. */
  keep(name: string, content: string | Buffer): void;
}

/** From the child that fuzzes to the runner. */
export type Report =
  | { kind: 'ready' }
  | { kind: 'begun'; number: number }
  | { kind: 'ended'; number: number; outcomes: string[]; memoryBytes: number }
  | { kind: 'found'; number: number; what: string; folder: string };

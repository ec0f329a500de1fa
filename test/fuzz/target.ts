/** The interfaces of a fuzzing target and of a case. */
import type { Random } from './random.ts';

export interface Target {
  /** A sentence for `--help`. */
  about: string;
  /** `settings` has the DATABASE_URL. */
  open(settings: Record<string, string>): Promise<Fuzzed>;
}

export interface Fuzzed {
  /** Cases that run at the same time. */
  lanes: number;
  /** Throws on a failure; otherwise returns the kind of the result, so that the run can count the variety. */
  run(one: Case): Promise<string[]>;
  close(): Promise<void>;
}

export interface Case {
  number: number;
  /** Determines everything that the case does. */
  random: Random;
  /** Evidence, which is saved when the case fails. */
  keep(name: string, content: string | Buffer): void;
}

/** From the child that fuzzes to the runner. */
export type Report =
  | { kind: 'ready' }
  | { kind: 'begun'; number: number }
  | { kind: 'ended'; number: number; outcomes: string[]; memoryBytes: number }
  | { kind: 'found'; number: number; what: string; folder: string };

/**
 * Writes outcomes to the database, in batches. While the database is away a write is tried again, and no outcome is
 * forgotten. A process that stops gives up at a set time; then the leases run out, and those jobs are tried again.
 */
import { setTimeout as pause } from 'node:timers/promises';
import type { Log } from '../lib/log.ts';

/** A statement costs much the same for one outcome as for many, so it waits a few milliseconds for more of them. */
const gatherMs = 25;
const fullBatch = 512;
const retryMs = 500;

/** Runs a write until it succeeds; false when it was given up because the process stops. */
export type Persist = (what: string, write: () => Promise<unknown>) => Promise<boolean>;

/** How outcomes are recorded. */
export interface Recording<Outcome> {
  /** What the jobs are called in the log. */
  name: string;
  /** Records the outcomes of jobs whose lease is still ours, and returns the ids of those jobs. */
  record: (outcomes: readonly Outcome[]) => Promise<readonly string[]>;
  /** What recorded outcomes lead to. Each write goes through `persist`. */
  afterRecord: (outcomes: readonly Outcome[], persist: Persist) => Promise<void>;
  /** Whether an error says that the database is away, which passes. */
  isUnavailable: (error: unknown) => boolean;
  log: Log;
}

export class Recorder<Outcome extends { id: string }> {
  readonly #recording: Recording<Outcome>;
  readonly #onRecorded: (outcomes: readonly Outcome[]) => void;
  readonly #waiting: Outcome[] = [];
  #underWay: Promise<void> | undefined;
  #giveUpAt = Number.POSITIVE_INFINITY;

  /** `onRecorded` is called with outcomes that were recorded, or given up. */
  constructor(recording: Recording<Outcome>, onRecorded: (outcomes: readonly Outcome[]) => void) {
    this.#recording = recording;
    this.#onRecorded = onRecorded;
  }

  /** Outcomes that are not recorded yet. */
  get waiting(): number {
    return this.#waiting.length;
  }

  add(outcome: Outcome): void {
    this.#waiting.push(outcome);
    this.#underWay ??= this.#record().finally(() => {
      this.#underWay = undefined;
    });
  }

  /** From now on no batch waits for more outcomes, and after that time no write is tried again. */
  finishBy(giveUpAt: number): void {
    this.#giveUpAt = giveUpAt;
  }

  async drained(): Promise<void> {
    await this.#underWay;
  }

  /** While one batch is written, the next one gathers. */
  async #record(): Promise<void> {
    const { name, log, record, afterRecord } = this.#recording;
    while (this.#waiting.length > 0) {
      const isStopping = this.#giveUpAt < Number.POSITIVE_INFINITY;
      if (this.#waiting.length < fullBatch && !isStopping) await pause(gatherMs);
      const batch = this.#waiting.splice(0);
      const recorded = new Set<string>();
      const isDone = await this.persist(`recording ${name}`, async () => {
        for (const id of await record(batch)) recorded.add(id);
      });
      this.#onRecorded(batch);
      if (!isDone) continue;
      const ours = batch.filter(({ id }) => recorded.has(id));
      const lost = batch.length - ours.length;
      if (lost > 0)
        log.warn(`${name}: ${lost} outcomes are not recorded, because another process has claimed the jobs`);
      await afterRecord(ours, this.persist);
    }
  }

  readonly persist: Persist = async (what, write) => {
    for (;;) {
      try {
        await write();
        return true;
      } catch (err) {
        const { isUnavailable, log } = this.#recording;
        const isOver = performance.now() > this.#giveUpAt;
        const next = isOver ? 'leases will run out instead' : 'trying again';
        log[isUnavailable(err) ? 'warn' : 'error']({ err }, `${what} failed; ${next}`);
        if (isOver) return false;
        await pause(retryMs);
      }
    }
  };
}

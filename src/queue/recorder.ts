/**
 * Writes outcomes to the database, in batches. While the database is unavailable the recorder retries and keeps all outcomes.
 * The recorder gives up a batch in two cases: the database rejects the batch again and again, or a write fails after the stop
 * deadline. The leases of such a batch expire, and its jobs are tried again.
 */
import { setTimeout as pause } from 'node:timers/promises';
import type { Log } from '../lib/log.ts';

/** One statement costs about the same for one outcome as for many, so a batch waits a few milliseconds for more outcomes. */
const gatherMs = 25;
const fullBatch = 256;
const retryMs = 500;
/** A write that fails this often while the database is available would fail forever, and every later batch would wait for it. */
const maxRejections = 5;

/** Retries a write until it succeeds; returns false when the write was given up. */
export type Persist = (what: string, write: () => Promise<unknown>) => Promise<boolean>;

/** How outcomes are recorded. */
export interface Recording<Outcome> {
  /** The kind of job, as the log names it. */
  name: string;
  /** Records the outcomes of jobs whose lease is still ours, and returns the ids of those jobs. */
  record: (outcomes: readonly Outcome[]) => Promise<readonly string[]>;
  /** What to write after outcomes were recorded. Each write goes through `persist`. */
  afterRecord: (outcomes: readonly Outcome[], persist: Persist) => Promise<void>;
  /** Whether the error is temporary: the database is unavailable. */
  isUnavailable: (error: unknown) => boolean;
  log: Log;
}

export class Recorder<Outcome extends { id: string }> {
  readonly #recording: Recording<Outcome>;
  readonly #onEnd: (outcomes: readonly Outcome[]) => void;
  readonly #waiting: Outcome[] = [];
  #underWay: Promise<void> | undefined;
  #giveUpAt = Number.POSITIVE_INFINITY;

  /** `onEnd` is called with outcomes that were recorded or given up. */
  constructor(recording: Recording<Outcome>, onEnd: (outcomes: readonly Outcome[]) => void) {
    this.#recording = recording;
    this.#onEnd = onEnd;
  }

  get waitingCount(): number {
    return this.#waiting.length;
  }

  add(outcome: Outcome): void {
    this.#waiting.push(outcome);
    this.#underWay ??= this.#record().finally(() => {
      this.#underWay = undefined;
    });
  }

  /** The process stops: batches no longer wait for more outcomes, and no write is retried after `giveUpAt`. */
  finishBy(giveUpAt: number): void {
    this.#giveUpAt = giveUpAt;
  }

  async drained(): Promise<void> {
    await this.#underWay;
  }

  async #record(): Promise<void> {
    const { name, log, record, afterRecord } = this.#recording;
    while (this.#waiting.length > 0) {
      const isStopping = this.#giveUpAt < Number.POSITIVE_INFINITY;
      if (this.#waiting.length < fullBatch && !isStopping) await pause(gatherMs);
      // Not all of them: after a pause of the database thousands may wait, and the time of a statement can grow with their square.
      const batch = this.#waiting.splice(0, fullBatch);
      const recorded = new Set<string>();
      const isDone = await this.persist(`recording ${name}`, async () => {
        for (const id of await record(batch)) recorded.add(id);
      });
      this.#onEnd(batch);
      if (!isDone) continue;
      const ours = batch.filter(({ id }) => recorded.has(id));
      const lost = batch.length - ours.length;
      if (lost > 0)
        log.warn(`${name}: ${lost} outcomes are not recorded, because another process has claimed the jobs`);
      await afterRecord(ours, this.persist);
    }
  }

  readonly persist: Persist = async (what, write) => {
    const { isUnavailable, log } = this.#recording;
    for (let rejections = 0; ; ) {
      try {
        await write();
        return true;
      } catch (err) {
        const isTemporary = isUnavailable(err);
        if (!isTemporary) rejections += 1;
        const isOver = rejections === maxRejections || performance.now() > this.#giveUpAt;
        const next = isOver
          ? 'giving up; jobs that still have a lease are tried again when the lease expires'
          : `retrying in ${retryMs} ms`;
        log[isTemporary ? 'warn' : 'error']({ err }, `${what} failed; ${next}`);
        if (isOver) return false;
        await pause(retryMs);
      }
    }
  };
}

/**
 * What the loop writes back: tries and what they say about their webhooks, in batches, and deliveries given back untried.
 * A database that is away comes back, and nothing is forgotten meanwhile; but an end is an end.
 */
import { isUnavailable, type Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import {
  cancelDeliveries,
  type Lease,
  recordTries,
  releaseLeases,
  type TriedDelivery,
} from '../store/deliveries.ts';
import { disableGone, noteFailures, noteRecoveries } from '../store/targets.ts';
import type { Decision } from './decide.ts';
import type { SigningTarget } from './try.ts';

/** A statement costs much the same for one try as for many, so a few milliseconds are waited for company. */
const gatherMs = 25;
const fullBatch = 512;
const againMs = 500;
const maxFailing = 10_000;

export interface Tried {
  record: TriedDelivery;
  target: SigningTarget;
  decision: Decision;
}

interface RecorderParts {
  sql: Sql;
  log: Log;
  /** These are no longer ours to care for. */
  onRecorded(ids: readonly string[]): void;
}

export class Recorder {
  readonly #parts: RecorderParts;
  readonly #tried: Tried[] = [];
  /** Webhooks that failed here since they last did well: what was read of them may be a moment older than that. */
  readonly #failing = new Set<string>();
  #recording: Promise<void> | undefined;
  #giveUpAt = Number.POSITIVE_INFINITY;

  constructor(parts: RecorderParts) {
    this.#parts = parts;
  }

  /** Tries that are not written yet. */
  get waiting(): number {
    return this.#tried.length;
  }

  add(tried: Tried): void {
    this.#tried.push(tried);
    this.#recording ??= this.#record().finally(() => {
      this.#recording = undefined;
    });
  }

  /** From now on nothing waits for company, and after that moment nothing is tried again. */
  finishBy(giveUpAt: number): void {
    this.#giveUpAt = giveUpAt;
  }

  async drained(): Promise<void> {
    await this.#recording;
  }

  async release(leases: readonly Lease[]): Promise<void> {
    if (leases.length === 0) return;
    await this.#untilDone('giving back deliveries', () => releaseLeases(this.#parts.sql, leases));
  }

  async cancel(lease: Lease): Promise<void> {
    await this.#untilDone('ending a delivery', () => cancelDeliveries(this.#parts.sql, [lease]));
  }

  /** All there is at a time: while one batch is written, the next one gathers. */
  async #record(): Promise<void> {
    const isEnding = () => this.#giveUpAt < Number.POSITIVE_INFINITY;
    while (this.#tried.length > 0) {
      if (this.#tried.length < fullBatch && !isEnding()) await pause(gatherMs);
      const batch = this.#tried.splice(0);
      const records = batch.map(({ record }) => record);
      const recorded = new Set<string>();
      const done = await this.#untilDone('recording tries', async () => {
        for (const id of await recordTries(this.#parts.sql, records)) recorded.add(id);
      });
      this.#parts.onRecorded(records.map(({ id }) => id));
      if (!done) continue;
      const ours = batch.filter(({ record }) => recorded.has(record.id));
      const lost = batch.length - ours.length;
      if (lost > 0) {
        this.#parts.log.warn(
          `${lost} tries ended after another process had taken over; they are not recorded`,
        );
      }
      await this.#noteHealth(ours);
    }
  }

  /** Keeps count of webhooks that only fail. One that does well costs no write. */
  async #noteHealth(batch: Tried[]): Promise<void> {
    const { sql } = this.#parts;
    // First: of a batch with both, a success is what "nothing but failure" must not overlook.
    const recovered = batch
      .filter(({ decision, target }) => decision.error === null && this.#isFailing(target))
      .map(({ target }) => target.id);
    if (recovered.length > 0) {
      await this.#untilDone('noting recoveries', () => noteRecoveries(sql, recovered));
      for (const id of recovered) this.#failing.delete(id);
    }
    const failed = batch.filter(({ decision }) => decision.error !== null).map(({ target }) => target.id);
    if (failed.length > 0) {
      await this.#untilDone('noting failures', () => noteFailures(sql, failed));
      if (this.#failing.size > maxFailing) this.#failing.clear();
      for (const id of failed) this.#failing.add(id);
    }
    const gone = batch.filter(({ decision }) => decision.gone).map(({ target }) => target);
    if (gone.length > 0) await this.#untilDone('disabling webhooks', () => disableGone(sql, gone));
  }

  #isFailing(target: SigningTarget): boolean {
    return target.failing || this.#failing.has(target.id);
  }

  async #untilDone(what: string, work: () => Promise<unknown>): Promise<boolean> {
    for (;;) {
      try {
        await work();
        return true;
      } catch (err) {
        const ended = performance.now() > this.#giveUpAt;
        const next = ended ? 'leases will run out instead' : 'trying again';
        this.#parts.log[isUnavailable(err) ? 'warn' : 'error']({ err }, `${what} failed; ${next}`);
        if (ended) return false;
        await pause(againMs);
      }
    }
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/**
 * The loop behind a queue, for any kind of job: claim → prepare → attempt → record. Any number of processes may run it on
 * one database. Guarantees:
 * - A job is tried at least once, and has one try at a time: under a lease, which is renewed until the outcome is recorded.
 * - When a process dies, its leases run out and other processes claim its jobs (`Leases`).
 * - A slow or dead receiver holds up its own lane and no other (`Lanes`).
 * - No transaction is open during a try. An outcome is recorded only while the lease is ours (`Recorder`).
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { type Loop, startLoop } from '../lib/loop.ts';
import { type LaneLimits, Lanes } from './lanes.ts';
import { type Lease, Leases, renewMs } from './leases.ts';
import { Recorder, type Recording } from './recorder.ts';

/** What a kind of job is: where its rows are, and how one is tried. */
export interface Queue<Job extends Lease, Prepared extends Preparation, Outcome extends JobOutcome>
  extends Recording<Outcome> {
  limits: LaneLimits;
  /** How long a claim leases a job, and how long a try lasts at most. */
  leaseMs: number;
  maxTryMs: number;
  /** The key of the job's lane: jobs that one slow or dead receiver holds up have the same. */
  laneOf: (job: Job) => string;
  /** Leases jobs that may be tried now, the oldest of each lane first. */
  claim: (request: ClaimRequest) => Promise<readonly Job[]>;
  /** Keys of lanes that are not to be claimed now. */
  skippedLanes: (nowMs: number) => Iterable<string>;
  /** Returns the ids of those that are still ours. */
  renew: (leases: readonly Lease[]) => Promise<ReadonlySet<string>>;
  /** Makes jobs that were not tried claimable again at once. */
  release: (leases: readonly Lease[]) => Promise<unknown>;
  /** Ends jobs that cannot be tried any more. */
  cancel: (leases: readonly Lease[]) => Promise<unknown>;
  /** Makes retries claimable whose time has come, and returns how many. */
  promote: () => Promise<number>;
  /** Reads, for a whole claim at once, what most of its tries need. */
  prefetch: (jobs: readonly Job[], laneKeys: readonly string[]) => Promise<unknown>;
  /**
   * What a try needs; at once when it is in memory. Never throws; a promise may reject, which is a `release`: the lane's
   * jobs are not tried now. The next claim is to leave them out, or they are claimed and released again and again.
   */
  prepare: (job: Job) => Prepared | Promise<Prepared | 'release' | 'cancel'>;
  /** One try. An expected failure is an outcome; null when `abort` ended the try. */
  attempt: (job: Job, prepared: Prepared, claimedAt: number) => Promise<Outcome | null>;
  /** Ends the tries that are under way. */
  abort: () => Promise<void>;
  gauges: Record<'running' | 'parkedLanes', { set(value: number): void }>;
}

interface ClaimRequest {
  /** Of the leases. */
  token: string;
  /** Lanes are claimed in the order of their keys (by code unit), beginning behind this one; null: with the first. */
  after: string | null;
  /** How many jobs each lane may have. A lane that is not listed may have `allowance`; 0 skips a lane. */
  allowances: ReadonlyMap<string, number>;
  allowance: number;
}

export interface Preparation {
  /** Called when the try has ended, or is not made. */
  done?(): void;
}

export interface JobOutcome {
  /** The job's. */
  id: string;
  /** False when this try is one of the failures in a row that open the lane's breaker. */
  isHealthy: boolean;
}

const claimPollMs = 1000;
const promotePollMs = 500;
const drainMs = 10_000;
/** With so many outcomes to record nothing more is claimed: jobs whose outcome is lost are tried again. */
const maxUnrecorded = 5000;

export class QueueWorker<Job extends Lease, Prepared extends Preparation, Outcome extends JobOutcome> {
  readonly #queue: Queue<Job, Prepared, Outcome>;
  readonly #lanes: Lanes<Job>;
  readonly #leases: Leases;
  readonly #recorder: Recorder<Outcome>;
  readonly #claiming: Loop;
  readonly #promoting: Loop;
  readonly #renewing: Loop;
  /** Claims walk over the lanes round-robin; the last one ended here. */
  #after: string | null = null;
  /** The walk stopped because there was no room for more. */
  #isWalkPaused = false;
  #isStopping = false;

  constructor(queue: Queue<Job, Prepared, Outcome>) {
    const { name, log, isUnavailable: isPassing } = queue;
    const start = (what: string, pollMs: number, work: () => Promise<boolean>) =>
      startLoop({ name: `${what} ${name}`, pollMs, log, isPassing, work });
    this.#queue = queue;
    this.#lanes = new Lanes<Job>(queue.limits, queue.laneOf);
    this.#leases = new Leases(queue);
    this.#recorder = new Recorder<Outcome>(queue, (outcomes) => this.#leases.drop(outcomes));
    this.#claiming = start('claiming', claimPollMs, () => this.#claim());
    this.#promoting = start('promoting', promotePollMs, () => this.#promote());
    this.#renewing = start('renewing leases of', renewMs, () => this.#renew());
  }

  /** Jobs may be ready: claim now instead of at the next poll. */
  wake(): void {
    this.#claiming.wake();
  }

  /** Releases what is not tried yet, lets the tries under way end within `drainMs`, and records their outcomes. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    const end = performance.now() + drainMs;
    this.#recorder.finishBy(end);
    await Promise.all([this.#claiming.stop(), this.#promoting.stop()]);
    await this.#release(this.#lanes.removeAllWaiting());
    while (this.#lanes.running > 0 && performance.now() < end) await pause(20);
    // Before their jobs are released: another process may claim them at once, and must not try them beside us.
    await this.#queue.abort();
    await this.#recorder.drained();
    await this.#renewing.stop();
    await this.#release(this.#leases.list());
  }

  async #claim(): Promise<boolean> {
    const { claim, limits, laneOf, prefetch, skippedLanes, gauges } = this.#queue;
    gauges.parkedLanes.set(this.#lanes.parkedCount);
    if (this.#isStopping || this.#recorder.waiting > maxUnrecorded) return false;
    this.#isWalkPaused = !this.#lanes.hasRoom();
    if (this.#isWalkPaused) return false;

    const [after, askedAt] = [this.#after, performance.now()];
    const allowances = this.#lanes.allowances(askedAt);
    for (const key of skippedLanes(askedAt)) allowances.set(key, 0);
    const claimed = await claim({ token: randomUUID(), after, allowances, allowance: limits.perLane });
    const jobs = this.#leases.add(claimed, askedAt);
    const laneKeys = [...new Set(jobs.map(laneOf))].sort();
    this.#after = laneKeys.at(-1) ?? null;
    // The end of the walk; the next one begins with the first lane.
    if (jobs.length === 0) return after !== null;

    await prefetch(jobs, laneKeys).catch((error) => {
      this.#release(jobs);
      throw error;
    });
    this.#release(this.#lanes.fill(jobs, allowances, askedAt, performance.now()));
    if (!this.#isStopping) this.#startTries();
    this.#isWalkPaused = !this.#lanes.hasRoom();
    return !this.#isWalkPaused;
  }

  #startTries(): void {
    for (let job = this.#lanes.take(); job; job = this.#lanes.take()) {
      const prepared = this.#queue.prepare(job);
      if (prepared instanceof Promise) this.#tryWhenPrepared(job, prepared);
      else this.#try(job, prepared);
    }
    this.#queue.gauges.running.set(this.#lanes.running);
  }

  async #tryWhenPrepared(job: Job, preparing: Promise<Prepared | 'release' | 'cancel'>): Promise<void> {
    const { name, log, laneOf } = this.#queue;
    const prepared = await preparing.catch((err) => {
      log.warn({ err, jobId: job.id }, `${name}: what a try needs could not be read; the job is released`);
      return 'release' as const;
    });
    if (prepared === 'release') this.#releaseUntried(job);
    else if (prepared === 'cancel') this.#cancel(job);
    else {
      // The lane may have been parked meanwhile.
      if (this.#lanes.isPaused(laneOf(job), performance.now())) this.#releaseUntried(job);
      else await this.#try(job, prepared);
      prepared.done?.();
    }
    this.#startTries();
  }

  async #try(job: Job, prepared: Prepared): Promise<void> {
    const { name, log, laneOf, attempt } = this.#queue;
    const lease = this.#leases.findSafe(job.id, performance.now());
    if (!lease) {
      // Not renewed for too long: the database was away, or this process was. Another process may have the job.
      this.#lanes.finishUntried(laneOf(job));
      return this.#release([job]);
    }
    let outcome: Outcome | null;
    try {
      outcome = await attempt(job, prepared, lease.claimedAt);
    } catch (err) {
      log.error({ err, jobId: job.id }, `${name}: a try broke off; its lease runs out`);
      this.#leases.drop([job]);
      return this.#leaveLane(job, false);
    }
    // Ended by `stop`, which then releases the job.
    if (outcome === null) return;
    this.#recorder.add(outcome);
    this.#leaveLane(job, outcome.isHealthy);
  }

  #leaveLane(job: Job, isHealthy: boolean): void {
    const laneKey = this.#queue.laneOf(job);
    const nowMs = performance.now();
    const toRelease = this.#lanes.finish(laneKey, isHealthy, nowMs);
    if (toRelease.length > 0) this.#release(toRelease);
    this.#startTries();
    const wantsClaim = this.#isWalkPaused ? this.#lanes.hasRoom() : this.#lanes.wantsMore(laneKey, nowMs);
    if (wantsClaim) this.#claiming.wake();
  }

  /** Neither this job nor the others of its lane can be tried now. */
  #releaseUntried(job: Job): void {
    const laneKey = this.#queue.laneOf(job);
    this.#lanes.finishUntried(laneKey);
    this.#release([job, ...this.#lanes.removeWaiting(laneKey)]);
  }

  #cancel(job: Job): void {
    const { name, laneOf, cancel } = this.#queue;
    this.#lanes.finishUntried(laneOf(job));
    this.#leases.drop([job]);
    this.#recorder.persist(`cancelling ${name}`, () => cancel([job]));
  }

  async #release(leases: readonly Lease[]): Promise<void> {
    if (leases.length === 0) return;
    const { name, release } = this.#queue;
    this.#leases.drop(leases);
    await this.#recorder.persist(`releasing ${name}`, () => release(leases));
  }

  async #promote(): Promise<boolean> {
    const promoted = await this.#queue.promote();
    if (promoted > 0) this.#claiming.wake();
    return promoted > 0;
  }

  async #renew(): Promise<boolean> {
    await this.#leases.renew(this.#queue.renew);
    return false;
  }
}

/**
 * The loop of a queue, for any kind of job: claim → prepare → try → record. Any number of processes can run the loop on one
 * database. A process that creates a job can also lease it from the start, and try it without a claim (`offer`). Guarantees:
 * - A job is tried at least once, and has one try at a time: the process renews the job's lease until the outcome is recorded.
 * - When a process dies, its leases expire and other processes claim its jobs (`Leases`).
 * - A slow or dead receiver slows only its own lane, and one group of lanes does not slow another (`Lanes`).
 * - No transaction is open during a try, and an outcome is recorded only while the lease is ours (`Recorder`).
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { type Loop, startLoop } from '../lib/loop.ts';
import { type LaneKeys, type LaneLimits, Lanes } from './lanes.ts';
import { type Lease, LeaseEnded, Leases, renewMs } from './leases.ts';
import { Recorder, type Recording } from './recorder.ts';
import { type ClaimStart, Rounds } from './rounds.ts';
import type { TryEnd } from './try-limit.ts';

/** One kind of job: where its rows are, and how a job is tried. */
export interface Queue<Job extends Lease, Prepared extends Preparation, Outcome extends JobOutcome>
  extends Recording<Outcome>,
    LaneKeys<Job> {
  limits: LaneLimits;
  leaseMs: number;
  maxTryMs: number;
  /** Leases jobs that are ready, the oldest of each lane first. */
  claim: (request: ClaimRequest) => Promise<readonly Job[]>;
  /** Keys of the lanes to leave out of a claim, because their jobs cannot be prepared. */
  skippedLanes: (nowMs: number) => Iterable<string>;
  /** Returns the ids of the jobs whose lease is still ours. */
  renew: (leases: readonly Lease[]) => Promise<ReadonlySet<string>>;
  /** Ends the leases, so that any process can claim the jobs at once. Also for the jobs of a paused lane (`Breaker`). */
  release: (leases: readonly Lease[]) => Promise<unknown>;
  /** Ends the leases of jobs whose receiver is disabled. No process can claim the jobs until the receiver is enabled again. */
  hold: (leases: readonly Lease[]) => Promise<unknown>;
  /** Ends jobs that can never be tried again. */
  cancel: (leases: readonly Lease[]) => Promise<unknown>;
  /** Makes retries claimable when they are due. */
  promote: () => Promise<Promotion>;
  /** How long an idle process may take to find jobs and retries that it was not told about. */
  pollMs?: number;
  /** Instead of `pollMs` while there is no work: for a worker whose owner polls, and calls `pollNow`. */
  idleMs?: number | undefined;
  /** Reads for all jobs of a claim at once what most of their tries need. */
  prefetch: (jobs: readonly Job[], laneKeys: readonly string[]) => Promise<unknown>;
  /**
   * What a try needs, without a promise when it is in memory. Does not throw. `release` (or a rejected promise) releases all
   * claimed jobs of the lane; the next claim must leave the lane out, or the same jobs are claimed and released endlessly.
   * `hold` holds all claimed jobs of the lane. `leaseEnd` makes a signal that aborts when the job must not be tried any more: its
   * lease is lost, or the process stops. A wait for anything but the database must end then, with the reason of the signal.
   */
  prepare: (
    job: Job,
    leaseEnd: () => AbortSignal,
  ) => Prepared | Promise<Prepared | 'release' | 'hold' | 'cancel'>;
  /**
   * One try. An expected failure is an outcome; null means that `abort` ended the try. `isOurs`: whether the lease is safe at this
   * moment, for a try that may last longer than a lease and has a step that must not be done twice.
   */
  tryOnce: (
    job: Job,
    prepared: Prepared,
    claimedAt: number,
    isOurs: () => boolean,
  ) => Promise<Outcome | null>;
  /** Ends all running tries. */
  abort: () => Promise<void>;
  gauges: Record<'running' | 'pausedLanes', { set(value: number): void }>;
}

export interface ClaimRequest extends ClaimStart {
  /** The token of the new leases. */
  token: string;
  /** How many lanes a claim takes at most: one of each group, then a second one of each, and so on. */
  maxLanes: number;
  /** Groups to leave out. */
  skippedGroups: readonly string[];
  /** How many jobs to claim of each lane. `allowance` is for lanes that are not listed; 0 leaves a lane out. */
  allowances: ReadonlyMap<string, number>;
  allowance: number;
}

export interface Preparation {
  /** Called when the try has ended, or will not be made. */
  done?(): void;
}

export interface JobOutcome extends TryEnd {
  /** The job's id. */
  id: string;
  /** Until the job is tried again; null: never. */
  waitSeconds?: number | null;
}

/**
 * Places for jobs that do not exist yet: the caller creates the jobs under a lease, with this token, and they are tried without a
 * claim. Disposing of the offer gives back the places that no adopted job has taken.
 */
export interface Offer<Job> extends Disposable {
  token: string;
  /** One job of each of these lanes may be created under the lease. */
  laneKeys: readonly string[];
  /** Call this only after the jobs are committed: it starts their tries. */
  adopt(jobs: readonly Job[]): void;
}

export interface Promotion {
  /** How many retries became claimable. */
  promoted: number;
  /** When the next retry is due; null: not soon. Also the retries of other processes, which may have died. */
  nextInMs: number | null;
}

const defaultPollMs = 1000;
const drainMs = 10_000;
const lanesPerClaim = 64;
const triesPerTick = 32;
/** No claims above this number of unrecorded outcomes: if this process dies, those jobs are tried a second time. */
const maxUnrecorded = 5000;

export class QueueWorker<Job extends Lease, Prepared extends Preparation, Outcome extends JobOutcome> {
  readonly #queue: Queue<Job, Prepared, Outcome>;
  readonly #lanes: Lanes<Job>;
  readonly #leases: Leases;
  readonly #recorder: Recorder<Outcome>;
  readonly #claiming: Loop;
  readonly #promoting: Loop;
  readonly #renewing: Loop;
  readonly #rounds: Rounds<Job>;
  /** Groups that the last claim left out, because they had enough claimed jobs (`Lanes.fullGroups`). */
  #fullGroups: ReadonlySet<string> = new Set();
  #moreTries: NodeJS.Immediate | undefined;
  /** Adopted jobs that are not started yet. */
  readonly #adopted: Job[] = [];
  #moreAdopted: NodeJS.Immediate | undefined;
  #isStopping = false;
  /** One for all offers: each is for new jobs, and a claim of the same job has another. So renewing compares with few tokens. */
  readonly #offerToken = randomUUID();

  constructor(queue: Queue<Job, Prepared, Outcome>) {
    const { name, log, isUnavailable: isTransient, pollMs = defaultPollMs, idleMs = pollMs } = queue;
    const start = (
      what: string,
      times: { pollMs: number; idleMs?: number },
      work: () => Promise<boolean | number>,
    ) => startLoop({ name: `${what} ${name}`, ...times, log, isTransient, work });
    const inTurn = makeTurns();
    this.#queue = {
      ...queue,
      record: (outcomes) => inTurn(() => queue.record(outcomes)),
      renew: (leases) => inTurn(() => queue.renew(leases)),
      release: (leases) => inTurn(() => queue.release(leases)),
      hold: (leases) => inTurn(() => queue.hold(leases)),
      cancel: (leases) => inTurn(() => queue.cancel(leases)),
    };
    this.#lanes = new Lanes<Job>(queue.limits, queue);
    this.#rounds = new Rounds<Job>(queue);
    this.#leases = new Leases(queue);
    this.#recorder = new Recorder<Outcome>(this.#queue, (outcomes) => {
      this.#leases.drop(outcomes);
      // The poll finds later retries before they are due.
      if (outcomes.some(({ waitSeconds }) => (waitSeconds ?? Number.POSITIVE_INFINITY) * 1000 < pollMs))
        this.#promoting.wake();
    });
    this.#claiming = start('claiming', { pollMs, idleMs }, () => this.#claim());
    this.#promoting = start('promoting', { pollMs, idleMs }, async () => {
      const { promoted, nextInMs } = await queue.promote();
      if (promoted > 0) this.wake();
      return promoted > 0 || (nextInMs ?? false);
    });
    this.#renewing = start('renewing leases of', { pollMs: renewMs }, async () => {
      await this.#leases.renew(this.#queue.renew);
      return false;
    });
  }

  /** Jobs of these lanes were created, or of any lanes. Claims them now instead of at the next poll, or when their lanes have room. */
  wake(laneKeys?: readonly string[]): void {
    if (this.#lanes.noteNew(laneKeys, performance.now())) this.#claiming.wake();
  }

  /** Does at once what the polls would do: makes due retries claimable, and claims. */
  pollNow(): void {
    this.#promoting.wake();
    this.#claiming.wake();
  }

  /** Releases the waiting jobs, also those whose preparation waits, gives the running tries `drainMs` to end, and records their outcomes. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    const end = performance.now() + drainMs;
    this.#recorder.finishBy(end);
    this.#leases.endWaits();
    await Promise.all([this.#claiming.stop(), this.#promoting.stop()]);
    await this.#endLeases('release', this.#lanes.removeAllWaiting());
    while (this.#lanes.running > 0 && performance.now() < end) await pause(20);
    // Before the release: another process may claim the jobs at once, and a job must not have two tries at a time.
    await this.#queue.abort();
    await this.#recorder.drained();
    await this.#renewing.stop();
    await this.#endLeases('release', this.#leases.list());
  }

  /** Offers a place in each of these lanes that could try a new job at once; undefined if none could. */
  offer(laneKeys: readonly string[]): Offer<Job> | undefined {
    if (this.#isStopping || this.#recorder.waitingCount > maxUnrecorded) return undefined;
    const offeredAt = performance.now();
    const reserved = new Set(laneKeys.filter((key) => this.#lanes.reserve(key, offeredAt)));
    if (reserved.size === 0) return undefined;
    return {
      token: this.#offerToken,
      laneKeys: [...reserved],
      adopt: (jobs) => {
        const adopted = jobs.filter((job) => reserved.has(this.#queue.laneOf(job)));
        for (const job of this.#leases.add(adopted, offeredAt)) {
          reserved.delete(this.#queue.laneOf(job));
          this.#adopted.push(job);
        }
        this.#startAdoptedJobs();
      },
      [Symbol.dispose]: () => {
        for (const key of reserved) this.#leaveUntried(key);
        reserved.clear();
      },
    };
  }

  /** A few at a time, for the reason that `#startTries` gives. Those that wait have their places already. */
  #startAdoptedJobs(): void {
    if (this.#moreAdopted) return;
    for (const job of this.#adopted.splice(0, triesPerTick)) this.#startAdopted(job);
    this.#queue.gauges.running.set(this.#lanes.running);
    if (this.#adopted.length === 0) return;
    this.#moreAdopted = setImmediate(() => {
      this.#moreAdopted = undefined;
      this.#startAdoptedJobs();
    });
  }

  #startAdopted(job: Job): void {
    const laneKey = this.#queue.laneOf(job);
    // The lane may have been paused since the offer.
    if (this.#isStopping || this.#lanes.mustWait(laneKey, performance.now())) {
      this.#leaveUntried(laneKey);
      this.#endLeases('release', [job]);
    } else this.#start(job);
  }

  #leaveUntried(laneKey: string): void {
    this.#lanes.finishUntried(laneKey);
    this.#startTries();
    if (this.#lanes.wantsMore(laneKey, performance.now())) this.#claiming.wake();
  }

  async #claim(): Promise<boolean> {
    const { claim, laneOf, prefetch, skippedLanes, gauges } = this.#queue;
    gauges.pausedLanes.set(this.#lanes.pausedCount);
    if (this.#isStopping || this.#recorder.waitingCount > maxUnrecorded) return false;
    const askedAt = performance.now();
    const skippedGroups = this.#lanes.fullGroups();
    this.#fullGroups = new Set(skippedGroups);
    const allowances = this.#lanes.allowances(askedAt);
    for (const key of skippedLanes(askedAt)) allowances.set(key, 0);
    const allowance = this.#lanes.firstAllowance;
    const { start, isAtFirst } = this.#rounds;
    const claimed = await claim({
      token: randomUUID(),
      ...start,
      maxLanes: lanesPerClaim,
      skippedGroups,
      // Without the idle lanes, of which there may be thousands.
      allowances: new Map([...allowances].filter(([, most]) => most !== allowance)),
      allowance,
    });
    const laneKeys = [...new Set(claimed.map(laneOf))].sort();
    const isCut = laneKeys.length >= lanesPerClaim;
    this.#rounds.advance(claimed, isCut);
    const jobs = this.#leases.add(claimed, askedAt);
    if (jobs.length === 0) {
      this.#lanes.fill([], allowances, askedAt, performance.now());
      // There was nothing to claim from `start` to the end. Groups and lanes before `start` may have jobs: claim again from the first.
      return !isAtFirst;
    }

    await prefetch(jobs, laneKeys).catch((error) => {
      this.#endLeases('release', jobs);
      throw error;
    });
    this.#endLeases('release', this.#lanes.fill(jobs, allowances, askedAt, performance.now()));
    this.#startTries();
    // Otherwise the next claim would find nothing.
    return isCut || !isAtFirst || laneKeys.some((key) => this.#lanes.wantsMore(key, performance.now()));
  }

  /** A few at a time: hundreds of tries in one go would keep everything else in this process waiting. */
  #startTries(): void {
    if (this.#moreTries) return;
    let started = 0;
    for (; started < triesPerTick; started += 1) {
      const job = this.#isStopping ? undefined : this.#lanes.take();
      if (!job) break;
      this.#start(job);
    }
    this.#queue.gauges.running.set(this.#lanes.running);
    if (started < triesPerTick) return;
    this.#moreTries = setImmediate(() => {
      this.#moreTries = undefined;
      this.#startTries();
    });
  }

  #start(job: Job): void {
    const prepared = this.#queue.prepare(job, () => this.#leases.endSignal(job.id));
    if (prepared instanceof Promise) this.#tryWhenPrepared(job, prepared);
    else this.#try(job, prepared);
  }

  async #tryWhenPrepared(
    job: Job,
    preparing: Promise<Prepared | 'release' | 'hold' | 'cancel'>,
  ): Promise<void> {
    const { name, log, laneOf } = this.#queue;
    const prepared = await preparing.catch((err) => {
      if (err instanceof LeaseEnded) return 'lease ended' as const;
      log.warn({ err, jobId: job.id }, `${name}: reading what a try needs failed; the job is released`);
      return 'release' as const;
    });
    const laneKey = laneOf(job);
    if (prepared === 'cancel') {
      this.#lanes.finishUntried(laneKey);
      this.#endLeases('cancel', [job]);
    } else if (prepared === 'lease ended') {
      this.#lanes.finishUntried(laneKey);
      // A lost lease is not ours to release.
      if (this.#isStopping) this.#endLeases('release', [job]);
    } else if (typeof prepared === 'string' || this.#lanes.mustWait(laneKey, performance.now())) {
      this.#lanes.finishUntried(laneKey);
      const how = prepared === 'hold' ? 'hold' : 'release';
      this.#endLeases(how, [job, ...this.#lanes.removeWaiting(laneKey)]);
    } else await this.#try(job, prepared);
    if (typeof prepared === 'object') prepared.done?.();
    this.#startTries();
  }

  async #try(job: Job, prepared: Prepared): Promise<void> {
    const { name, log, laneOf, tryOnce } = this.#queue;
    const lease = this.#leases.findSafe(job.id, performance.now());
    if (!lease) {
      // The lease was not renewed for too long: the database was unavailable, or this process did not run. Another process may
      // have claimed the job.
      this.#lanes.finishUntried(laneOf(job));
      return this.#endLeases('release', [job]);
    }
    let outcome: Outcome | null;
    try {
      const isOurs = () => this.#leases.findSafe(job.id, performance.now()) !== undefined;
      outcome = await tryOnce(job, prepared, lease.claimedAt, isOurs);
    } catch (err) {
      log.error({ err, jobId: job.id }, `${name}: a try threw an error; retrying when the lease expires`);
      this.#leases.drop([job]);
      return this.#leaveLane(job, { isHealthy: false });
    }
    // `stop` ended the try, and will release the job.
    if (outcome === null) return;
    this.#recorder.add(outcome);
    this.#leaveLane(job, outcome);
  }

  #leaveLane(job: Job, end: TryEnd): void {
    const [laneKey, groupKey] = [this.#queue.laneOf(job), this.#queue.groupOf(job)];
    const nowMs = performance.now();
    const toRelease = this.#lanes.finish(laneKey, end, nowMs);
    if (toRelease.length > 0) this.#endLeases('release', toRelease);
    this.#startTries();
    const wantsClaim = this.#fullGroups.has(groupKey)
      ? this.#lanes.isAtMostHalfFull(groupKey)
      : this.#lanes.wantsMore(laneKey, nowMs);
    if (wantsClaim) this.#claiming.wake();
  }

  async #endLeases(how: 'release' | 'hold' | 'cancel', leases: readonly Lease[]): Promise<void> {
    if (leases.length === 0) return;
    const { name, [how]: end } = this.#queue;
    this.#leases.drop(leases);
    await this.#recorder.persist(`${how} of ${name}`, () => end(leases));
  }
}

/**
 * One write at a time to the rows of leased jobs. Two statements that change the same rows in a different order wait for each other:
 * PostgreSQL ends one of them, but only after a second, in which no outcome is recorded.
 */
function makeTurns() {
  let last: Promise<unknown> = Promise.resolve();
  return <T>(write: () => Promise<T>): Promise<T> => {
    const written = last.then(write);
    last = written.catch(() => {});
    return written;
  };
}

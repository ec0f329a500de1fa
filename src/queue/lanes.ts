/**
 * Lanes keep a slow or dead receiver apart from the others. All jobs for one receiver share one lane; the lane key of a delivery
 * is the id of its webhook. A bad receiver slows only its own lane:
 * - Turns: a lane runs at most `perLane` tries at once, out of `perProcess` for the process. Lanes take turns, so a lane with
 *   many jobs gets no more turns than a lane with few.
 * - Window: the number of jobs that a lane may claim ahead. The window is small while the receiver is slow, and the lane claims
 *   again only when half of the window is free.
 * - Breaker: a lane whose tries all fail is parked. Its waiting jobs are released to the database, and after each pause the lane
 *   tries a single job, until a try succeeds.
 * Pure: no input or output, and time is an argument.
 */
import { Breaker, type BreakerLimits } from './breaker.ts';

export interface LaneLimits extends BreakerLimits {
  /** Tries at once: in one lane, and in this process. */
  perLane: number;
  perProcess: number;
  /** Jobs claimed ahead: the largest window of one lane, and about the sum of all windows. */
  maxWindow: number;
  maxAhead: number;
}

interface Lane<Job> {
  key: string;
  /** Claimed jobs that are not tried yet, the oldest first. */
  waiting: Job[];
  /** Tries that run now. */
  running: number;
  window: number;
  filledAt: number;
  /** The last claim returned as many jobs as it was allowed to, so the database may have more. */
  mayHaveMore: boolean;
  breaker: Breaker;
}

/** A lane that empties its window within this time gets a larger window. */
const quickMs = 500;

function claimedCount(lane: Lane<unknown>): number {
  return lane.waiting.length + lane.running;
}

export class Lanes<Job> {
  readonly #limits: LaneLimits;
  readonly #laneOf: (job: Job) => string;
  readonly #lanes = new Map<string, Lane<Job>>();
  /** Lanes that have a waiting job and fewer than `perLane` tries, in the order of their turns. */
  readonly #runnable = new Set<Lane<Job>>();
  #running = 0;

  constructor(limits: LaneLimits, laneOf: (job: Job) => string) {
    this.#limits = limits;
    this.#laneOf = laneOf;
  }

  get running(): number {
    return this.#running;
  }

  get parkedCount(): number {
    return [...this.#lanes.values()].filter(({ breaker }) => breaker.isOpen).length;
  }

  /** False when the lanes that wait for a turn can fill the whole process: more claimed jobs would only wait longer. */
  hasCapacity(): boolean {
    return this.#runnable.size < this.#limits.perProcess;
  }

  /** How many jobs each lane may claim now. A key that is not listed has no lane yet, and may claim `perLane`. */
  allowances(nowMs: number): Map<string, number> {
    for (const lane of this.#lanes.values())
      if (this.#isForgettable(lane, nowMs)) this.#lanes.delete(lane.key);
    const maxWindow = this.#maxWindow();
    return new Map(
      [...this.#lanes.values()].map((lane) => [lane.key, this.#allowance(lane, maxWindow, nowMs)]),
    );
  }

  /** An idle lane is kept while its speed or its failures still matter. */
  #isForgettable(lane: Lane<Job>, nowMs: number): boolean {
    return claimedCount(lane) === 0 && Math.max(lane.filledAt + quickMs, lane.breaker.rememberUntil) < nowMs;
  }

  /** The busy lanes share `maxAhead`. A parked lane is not busy, so dead receivers do not shrink the windows of others. */
  #maxWindow(): number {
    const { perLane, maxWindow, maxAhead } = this.#limits;
    let busy = 0;
    for (const lane of this.#lanes.values())
      if (!lane.breaker.isOpen && (lane.mayHaveMore || claimedCount(lane) > 0)) busy += 1;
    return Math.max(perLane, Math.min(maxWindow, Math.floor(maxAhead / Math.max(1, busy))));
  }

  #allowance(lane: Lane<Job>, maxWindow: number, nowMs: number): number {
    if (!this.#mayClaim(lane, nowMs)) return 0;
    return lane.breaker.isOpen
      ? 1
      : Math.max(0, this.#nextWindow(lane, maxWindow, nowMs) - claimedCount(lane));
  }

  /** Only when half of the window is free: many small claims cost more than a few large ones. */
  #mayClaim(lane: Lane<Job>, nowMs: number): boolean {
    if (lane.breaker.isOpen) return !lane.breaker.isPaused(nowMs) && claimedCount(lane) === 0;
    return claimedCount(lane) * 2 <= lane.window;
  }

  /** Doubles the window of a lane that emptied it quickly; halves it for a slow lane. */
  #nextWindow(lane: Lane<Job>, maxWindow: number, nowMs: number): number {
    const isQuick = nowMs - lane.filledAt < quickMs;
    const wanted = !lane.mayHaveMore ? lane.window : isQuick ? lane.window * 2 : Math.floor(lane.window / 2);
    return Math.max(this.#limits.perLane, Math.min(wanted, maxWindow));
  }

  /** Adds claimed jobs to their lanes. `asked` are the allowances of that claim at `askedAt`. Returns the jobs to release. */
  fill(
    claimed: readonly Job[],
    asked: ReadonlyMap<string, number>,
    askedAt: number,
    nowMs: number,
  ): readonly Job[] {
    const counts = new Map<Lane<Job>, number>();
    const toRelease: Job[] = [];
    const maxWindow = this.#maxWindow();
    for (const job of claimed) {
      const key = this.#laneOf(job);
      const lane = this.#lanes.get(key) ?? this.#addLane(key);
      counts.set(lane, (counts.get(lane) ?? 0) + 1);
      // The lane may have been parked during the claim.
      if (lane.breaker.isPaused(nowMs)) toRelease.push(job);
      else lane.waiting.push(job);
      this.#queueForTurn(lane);
    }
    for (const lane of this.#lanes.values()) {
      const allowance = asked.get(lane.key) ?? this.#limits.perLane;
      if (allowance === 0) continue;
      const count = counts.get(lane) ?? 0;
      if (count > 0 && !lane.breaker.isOpen) lane.window = this.#nextWindow(lane, maxWindow, askedAt);
      if (count > 0) lane.filledAt = nowMs;
      lane.mayHaveMore = count >= allowance;
    }
    return toRelease;
  }

  /** Whether a new claim would probably return jobs for this lane. */
  wantsMore(key: string, nowMs: number): boolean {
    const lane = this.#lanes.get(key);
    return lane?.mayHaveMore === true && this.hasCapacity() && this.#mayClaim(lane, nowMs);
  }

  #addLane(key: string): Lane<Job> {
    const lane: Lane<Job> = {
      key,
      waiting: [],
      running: 0,
      window: this.#limits.perLane,
      filledAt: Number.NEGATIVE_INFINITY,
      mayHaveMore: false,
      breaker: new Breaker(this.#limits),
    };
    this.#lanes.set(key, lane);
    return lane;
  }

  #queueForTurn(lane: Lane<Job>): void {
    if (lane.waiting.length > 0 && lane.running < this.#limits.perLane) this.#runnable.add(lane);
  }

  /** The next job to try; undefined when no job may be tried now. */
  take(): Job | undefined {
    if (this.#running >= this.#limits.perProcess) return undefined;
    const [lane] = this.#runnable;
    const job = lane?.waiting.shift();
    if (!lane || !job) return undefined;
    this.#runnable.delete(lane);
    lane.running += 1;
    this.#running += 1;
    this.#queueForTurn(lane);
    return job;
  }

  /** A try has ended. Returns the jobs to release: all waiting jobs of the lane, when this failure starts a pause. */
  finish(key: string, isHealthy: boolean, nowMs: number): readonly Job[] {
    const lane = this.#lanes.get(key);
    if (!lane) return [];
    if (isHealthy) lane.breaker.succeed();
    else lane.window = this.#limits.perLane;
    const toRelease = !isHealthy && lane.breaker.fail(nowMs) ? this.removeWaiting(key) : [];
    this.#endTry(lane);
    return toRelease;
  }

  /** A taken job was not tried: neither a success nor a failure. */
  finishUntried(key: string): void {
    const lane = this.#lanes.get(key);
    if (lane) this.#endTry(lane);
  }

  #endTry(lane: Lane<Job>): void {
    lane.running -= 1;
    this.#running -= 1;
    this.#queueForTurn(lane);
  }

  isPaused(key: string, nowMs: number): boolean {
    return this.#lanes.get(key)?.breaker.isPaused(nowMs) === true;
  }

  /** Removes the jobs of a lane that are not tried yet, and returns them. */
  removeWaiting(key: string): Job[] {
    const lane = this.#lanes.get(key);
    if (!lane) return [];
    const { waiting } = lane;
    lane.waiting = [];
    this.#runnable.delete(lane);
    return waiting;
  }

  removeAllWaiting(): Job[] {
    return [...this.#lanes.keys()].flatMap((key) => this.removeWaiting(key));
  }
}

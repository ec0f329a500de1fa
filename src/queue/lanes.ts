/**
 * Keeps a slow or dead receiver apart from the others. Jobs for one receiver have one lane key (a webhook's id, say) and so
 * share a lane. What a receiver does wrong costs only its own lane:
 * - it holds at most `perLane` of the `perProcess` tries, and lanes take turns, however long their queues are;
 * - a lane that empties slowly may claim little ahead, and nothing until half of that is tried;
 * - a lane that only fails is parked by its breaker: its jobs go back to the database, and one at a time probes.
 * Pure: no input or output, and time is an argument.
 */
import { Breaker, type BreakerLimits } from './breaker.ts';

export interface LaneLimits extends BreakerLimits {
  /** Tries under way at once: in one lane, and in this process. */
  perLane: number;
  perProcess: number;
  /** Jobs claimed ahead: at most for one lane, and about so many for all lanes. */
  maxWindow: number;
  maxAhead: number;
}

interface Lane<Job> {
  key: string;
  /** Claimed and not tried yet, in order. */
  waiting: Job[];
  running: number;
  /** How many jobs the lane may have claimed. */
  window: number;
  filledAt: number;
  /** The last claim took all that it was allowed, so the database may have more. */
  mayHaveMore: boolean;
  breaker: Breaker;
}

/** A lane that empties its window within this time may claim further ahead. */
const quickMs = 500;

function claimedCount(lane: Lane<unknown>): number {
  return lane.waiting.length + lane.running;
}

export class Lanes<Job> {
  readonly #limits: LaneLimits;
  readonly #laneOf: (job: Job) => string;
  readonly #lanes = new Map<string, Lane<Job>>();
  /** Lanes with a job to try and room to try it, in the order of their turns. */
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

  /** Whether to claim more: not while every place for a try has a lane that waits for it. */
  hasRoom(): boolean {
    return this.#runnable.size < this.#limits.perProcess;
  }

  /** How many jobs each lane may claim now. A key that is missing here has no lane, and may claim `perLane`. */
  allowances(nowMs: number): Map<string, number> {
    for (const lane of this.#lanes.values())
      if (this.#isForgettable(lane, nowMs)) this.#lanes.delete(lane.key);
    const bound = this.#windowBound();
    return new Map([...this.#lanes.values()].map((lane) => [lane.key, this.#allowance(lane, bound, nowMs)]));
  }

  /** The lanes that have work, or had a moment ago, share `maxAhead`; parked lanes take no part. */
  #windowBound(): number {
    const { perLane, maxWindow, maxAhead } = this.#limits;
    let busy = 0;
    for (const lane of this.#lanes.values())
      if (!lane.breaker.isOpen && (lane.mayHaveMore || claimedCount(lane) > 0)) busy += 1;
    return Math.max(perLane, Math.min(maxWindow, Math.floor(maxAhead / Math.max(1, busy))));
  }

  /** An idle lane is kept while it matters how quick it was, or how it failed. */
  #isForgettable(lane: Lane<Job>, nowMs: number): boolean {
    return claimedCount(lane) === 0 && Math.max(lane.filledAt + quickMs, lane.breaker.rememberUntil) < nowMs;
  }

  #allowance(lane: Lane<Job>, bound: number, nowMs: number): number {
    if (!this.#mayClaim(lane, nowMs)) return 0;
    return lane.breaker.isOpen ? 1 : Math.max(0, this.#nextWindow(lane, bound, nowMs) - claimedCount(lane));
  }

  /** Half a window at least: many small claims cost more than few large ones. A parked lane claims one job, as a probe. */
  #mayClaim(lane: Lane<Job>, nowMs: number): boolean {
    if (lane.breaker.isOpen) return !lane.breaker.isPaused(nowMs) && claimedCount(lane) === 0;
    return claimedCount(lane) * 2 <= lane.window;
  }

  /** Twice as far ahead for a lane that was quick to empty its window, half as far for a slow one. */
  #nextWindow(lane: Lane<Job>, bound: number, nowMs: number): number {
    const isQuick = nowMs - lane.filledAt < quickMs;
    const wanted = !lane.mayHaveMore ? lane.window : isQuick ? lane.window * 2 : Math.floor(lane.window / 2);
    return Math.max(this.#limits.perLane, Math.min(wanted, bound));
  }

  /** Takes in the jobs of a claim, which asked for these allowances at `askedAt`. Returns the jobs to release. */
  fill(
    claimed: readonly Job[],
    asked: ReadonlyMap<string, number>,
    askedAt: number,
    nowMs: number,
  ): readonly Job[] {
    const counts = new Map<Lane<Job>, number>();
    const toRelease: Job[] = [];
    const bound = this.#windowBound();
    for (const job of claimed) {
      const key = this.#laneOf(job);
      const lane = this.#lanes.get(key) ?? this.#open(key);
      counts.set(lane, (counts.get(lane) ?? 0) + 1);
      // The lane may have been parked while the claim was under way.
      if (lane.breaker.isPaused(nowMs)) toRelease.push(job);
      else lane.waiting.push(job);
      this.#enlist(lane);
    }
    for (const lane of this.#lanes.values()) {
      const allowance = asked.get(lane.key) ?? this.#limits.perLane;
      if (allowance === 0) continue;
      const count = counts.get(lane) ?? 0;
      if (count > 0 && !lane.breaker.isOpen) lane.window = this.#nextWindow(lane, bound, askedAt);
      if (count > 0) lane.filledAt = nowMs;
      lane.mayHaveMore = count >= allowance;
    }
    return toRelease;
  }

  /** Whether a claim now is worth its cost to this lane. */
  wantsMore(key: string, nowMs: number): boolean {
    const lane = this.#lanes.get(key);
    return lane?.mayHaveMore === true && this.hasRoom() && this.#mayClaim(lane, nowMs);
  }

  #open(key: string): Lane<Job> {
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

  #enlist(lane: Lane<Job>): void {
    if (lane.waiting.length > 0 && lane.running < this.#limits.perLane) this.#runnable.add(lane);
  }

  /** The next job to try; undefined when none waits or there is no room. */
  take(): Job | undefined {
    if (this.#running >= this.#limits.perProcess) return undefined;
    const [lane] = this.#runnable;
    const job = lane?.waiting.shift();
    if (!lane || !job) return undefined;
    this.#runnable.delete(lane);
    lane.running += 1;
    this.#running += 1;
    this.#enlist(lane);
    return job;
  }

  /** A try in this lane has ended. Returns the jobs to release: all that wait, when this failure parks the lane. */
  finish(key: string, isHealthy: boolean, nowMs: number): readonly Job[] {
    const lane = this.#lanes.get(key);
    if (!lane) return [];
    if (isHealthy) lane.breaker.succeed();
    else lane.window = this.#limits.perLane;
    const toRelease = !isHealthy && lane.breaker.fail(nowMs) ? this.#removeWaiting(lane) : [];
    this.#leave(lane);
    return toRelease;
  }

  /** A job that was taken is not tried after all: that is neither a success nor a failure. */
  finishUntried(key: string): void {
    const lane = this.#lanes.get(key);
    if (lane) this.#leave(lane);
  }

  #leave(lane: Lane<Job>): void {
    lane.running -= 1;
    this.#running -= 1;
    this.#enlist(lane);
  }

  isPaused(key: string, nowMs: number): boolean {
    return this.#lanes.get(key)?.breaker.isPaused(nowMs) === true;
  }

  /** Removes and returns the jobs of this lane that were not tried. */
  removeWaiting(key: string): Job[] {
    const lane = this.#lanes.get(key);
    return lane ? this.#removeWaiting(lane) : [];
  }

  #removeWaiting(lane: Lane<Job>): Job[] {
    const { waiting } = lane;
    lane.waiting = [];
    this.#runnable.delete(lane);
    return waiting;
  }

  removeAllWaiting(): Job[] {
    return [...this.#lanes.values()].flatMap((lane) => this.#removeWaiting(lane));
  }
}

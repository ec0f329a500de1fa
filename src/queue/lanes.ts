/**
 * Lanes keep a slow or dead receiver apart from the others, and groups keep the users of the service apart. All jobs for one
 * receiver are in one lane; all lanes of one user are a group. (The lane of a delivery is its webhook, the group its owner.)
 * - Turns: the process has `perProcess` places, and every running try takes one. A lane has as many of them as its receiver bears
 *   (`TryLimit`). Groups take turns, and within a group its lanes. So every group gets the same number of places, whatever the
 *   number of its lanes and jobs, and some places stay free for a group that has no try yet (`triesPerFreePlace`).
 * - Window: the number of jobs that a lane may have claimed. The window is small while the receiver is slow, but has a waiting job for
 *   each try at once. The lane claims again only when half of the window is free.
 * - Reserved: a place that a lane keeps for a job which does not exist yet. It counts as a try.
 * - Breaker: a lane whose tries all fail is paused. Its waiting jobs are released to the database, and after each wait the lane
 *   tries a single job, until a try succeeds.
 * Pure: no input or output, and time is an argument.
 */
import { Breaker, type BreakerLimits } from './breaker.ts';
import { type TryEnd, TryLimit, type TryLimits } from './try-limit.ts';

export interface LaneLimits extends BreakerLimits, TryLimits {
  /** Tries at once in this process. */
  perProcess: number;
  /** The largest window of a lane. */
  maxWindow: number;
  /** About how many jobs the process may have claimed: the windows of the busy lanes divide this number, groups first. */
  maxAhead: number;
}

interface Group {
  key: string;
  /** Tries that run now, in all its lanes. */
  running: number;
  /** Its lanes that have a waiting job and fewer than `perLane` tries, in the order of their turns. */
  runnable: Set<Lane<unknown>>;
  /** Its lanes that have a waiting job, `perLane` tries or more, and a limit that allows more, in the order of their turns. */
  growing: Set<Lane<unknown>>;
  /** How many lanes it has. A group without lanes is forgotten. */
  lanes: number;
  /** The largest window of each of its lanes, by the last claim. */
  maxWindow: number;
}

interface Lane<Job> {
  key: string;
  group: Group;
  /** Claimed jobs that are not tried yet, the oldest first. */
  waiting: Job[];
  /** Tries that run now. */
  running: number;
  limit: TryLimit;
  window: number;
  /** When the lane last got jobs. */
  filledAt: number;
  /** When jobs of this lane were last created (`noteNew`). */
  newAt: number;
  /** The last claim returned as many jobs as it was allowed to, or new jobs found no room here: the database may have more. */
  mayHaveMore: boolean;
  breaker: Breaker;
}

/** The keys of a job: its lane, and the group of that lane. */
export interface LaneKeys<Job> {
  laneOf: (job: Job) => string;
  groupOf: (job: Job) => string;
}

/** A lane that empties its window within this time gets a larger window. */
const quickMs = 500;
const maxFirstAllowance = 4;
/** An idle lane is kept for this time, because only a job of a known lane can be tried without a claim. */
const keptMs = 60_000;

/**
 * A group may run this many tries for each free place. So one group alone gets three quarters of the places, two groups get
 * three sevenths each, and n groups 3 / (3n + 1): however slow the tries of all others are, a new group finds a free place.
 */
const triesPerFreePlace = 3;

/**
 * A lane gets a place above `perLane` only while its group has less than half a try for each free place. So tries above `perLane`
 * take a group alone to a third of the places at most: when these receivers stop answering, more than half of the group's share
 * is left for its other lanes.
 */
const growthPerFreePlace = 0.5;

function claimedCount(lane: Lane<unknown>): number {
  return lane.waiting.length + lane.running;
}

export class Lanes<Job> {
  readonly #limits: LaneLimits;
  readonly #keys: LaneKeys<Job>;
  readonly #lanes = new Map<string, Lane<Job>>();
  readonly #groups = new Map<string, Group>();
  /** Groups with a runnable lane, in the order of their turns. */
  readonly #turns = new Set<Group>();
  #running = 0;

  constructor(limits: LaneLimits, keys: LaneKeys<Job>) {
    this.#limits = limits;
    this.#keys = keys;
  }

  get running(): number {
    return this.#running;
  }

  get pausedCount(): number {
    return [...this.#lanes.values()].filter(({ breaker }) => breaker.isPaused).length;
  }

  /** The groups that have a runnable lane for each of their places. Jobs of further lanes would only wait. */
  fullGroups(): string[] {
    const placesOfGroup = this.#limits.perProcess / Math.max(1, this.#turns.size);
    return [...this.#turns].filter(({ runnable }) => runnable.size >= placesOfGroup).map(({ key }) => key);
  }

  /** Whether a group that was full should claim again. Not as soon as it is not full: a few large claims cost less than many. */
  isAtMostHalfFull(groupKey: string): boolean {
    const runnable = this.#groups.get(groupKey)?.runnable.size ?? 0;
    return runnable * 2 * Math.max(1, this.#turns.size) <= this.#limits.perProcess;
  }

  /**
   * How many jobs a lane may claim of which nothing is known. Few: a group with hundreds of such lanes would claim thousands of
   * jobs at once, and the claims of others would wait meanwhile. The next claim of a lane with more jobs is larger.
   */
  get firstAllowance(): number {
    return Math.min(maxFirstAllowance, this.#limits.perLane);
  }

  /** How many jobs each lane may claim now. A key that is not listed has no lane yet, and may claim `firstAllowance`. */
  allowances(nowMs: number): Map<string, number> {
    for (const lane of this.#lanes.values()) {
      if (this.#isForgettable(lane, nowMs)) this.#forget(lane);
      else if (claimedCount(lane) === 0 && lane.limit.rememberUntil < nowMs)
        lane.limit = new TryLimit(this.#limits);
    }
    this.#divideAhead();
    return new Map([...this.#lanes.values()].map((lane) => [lane.key, this.#allowance(lane, nowMs)]));
  }

  /** A lane without jobs is kept while its speed or its failures still matter. */
  #isForgettable(lane: Lane<Job>, nowMs: number): boolean {
    return claimedCount(lane) === 0 && Math.max(lane.filledAt + keptMs, lane.breaker.rememberUntil) < nowMs;
  }

  #forget({ key, group }: Lane<Job>): void {
    this.#lanes.delete(key);
    group.lanes -= 1;
    if (group.lanes === 0) this.#groups.delete(group.key);
  }

  /** Sets the largest window of the lanes of each group. A paused lane does not count: dead receivers do not shrink other windows. */
  #divideAhead(): void {
    const { perLane, maxWindow, maxAhead } = this.#limits;
    const busy = new Map<Group, number>();
    for (const lane of this.#lanes.values())
      if (!lane.breaker.isPaused && (lane.mayHaveMore || claimedCount(lane) > 0))
        busy.set(lane.group, (busy.get(lane.group) ?? 0) + 1);
    const windowOf = (lanes: number) => Math.min(maxWindow, Math.floor(maxAhead / busy.size / lanes));
    for (const group of this.#groups.values()) {
      const lanes = busy.get(group);
      group.maxWindow = lanes === undefined ? maxWindow : Math.max(perLane, windowOf(lanes));
    }
  }

  #allowance(lane: Lane<Job>, nowMs: number): number {
    if (!this.#mayClaim(lane, nowMs)) return 0;
    if (lane.breaker.isPaused) return 1;
    const isIdle = claimedCount(lane) === 0 && !lane.mayHaveMore && lane.window <= 2 * this.#limits.perLane;
    if (isIdle) return this.firstAllowance;
    return Math.max(0, this.#nextWindow(lane, nowMs) - claimedCount(lane));
  }

  /** Only when half of the window is free: many small claims cost more than a few large ones. A paused lane: only for its probe. */
  #mayClaim(lane: Lane<Job>, nowMs: number): boolean {
    if (lane.breaker.isPaused) return !lane.breaker.mustWait(nowMs) && claimedCount(lane) === 0;
    return claimedCount(lane) * 2 <= this.#atLeastTwice(lane, lane.window);
  }

  /** Doubles the window of a lane that emptied it quickly; halves it for a slow lane. */
  #nextWindow(lane: Lane<Job>, nowMs: number): number {
    const isQuick = nowMs - lane.filledAt < quickMs;
    const wanted = !lane.mayHaveMore ? lane.window : isQuick ? lane.window * 2 : Math.floor(lane.window / 2);
    return this.#atLeastTwice(lane, wanted);
  }

  /** At least two jobs for each try at once: when half of the window is free, every try still has its job while the lane claims. */
  #atLeastTwice({ limit, group }: Lane<Job>, window: number): number {
    return Math.max(this.#limits.perLane, Math.min(Math.max(window, 2 * limit.value), group.maxWindow));
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
    this.#divideAhead();
    for (const job of claimed) {
      const lane = this.#laneFor(job);
      counts.set(lane, (counts.get(lane) ?? 0) + 1);
      // The lane may have been paused during the claim.
      if (lane.breaker.mustWait(nowMs)) toRelease.push(job);
      else lane.waiting.push(job);
      this.#queueForTurn(lane);
    }
    for (const lane of this.#lanes.values()) {
      const allowance = asked.get(lane.key) ?? this.firstAllowance;
      if (allowance === 0) continue;
      const count = counts.get(lane) ?? 0;
      if (count > 0 && !lane.breaker.isPaused) lane.window = this.#nextWindow(lane, askedAt);
      if (count > 0) lane.filledAt = nowMs;
      // Jobs that were created during the claim find no room now.
      const hasMissed = lane.newAt >= askedAt && !this.#mayClaim(lane, nowMs);
      lane.mayHaveMore = count >= allowance || hasMissed;
    }
    return toRelease;
  }

  /**
   * Jobs of these lanes were created; undefined: of any lanes. Returns whether to claim now. A lane that has no room for more jobs
   * wants a claim when it has (`wantsMore`).
   */
  noteNew(keys: readonly string[] | undefined, nowMs: number): boolean {
    // Without keys the jobs may be of a lane that is not known here.
    let mayClaim = !keys;
    for (const key of keys ?? this.#lanes.keys()) {
      const lane = this.#lanes.get(key);
      if (lane) lane.newAt = nowMs;
      if (!lane || this.#mayClaim(lane, nowMs)) mayClaim = true;
      else lane.mayHaveMore = true;
    }
    return mayClaim;
  }

  /** Whether a new claim would probably return jobs for this lane. */
  wantsMore(key: string, nowMs: number): boolean {
    const lane = this.#lanes.get(key);
    return lane?.mayHaveMore === true && this.#mayClaim(lane, nowMs);
  }

  #laneFor(job: Job): Lane<Job> {
    const key = this.#keys.laneOf(job);
    const known = this.#lanes.get(key);
    if (known) return known;
    const lane: Lane<Job> = {
      key,
      group: this.#groupFor(job),
      waiting: [],
      running: 0,
      limit: new TryLimit(this.#limits),
      window: this.#limits.perLane,
      filledAt: Number.NEGATIVE_INFINITY,
      newAt: Number.NEGATIVE_INFINITY,
      mayHaveMore: false,
      breaker: new Breaker(this.#limits),
    };
    lane.group.lanes += 1;
    this.#lanes.set(key, lane);
    return lane;
  }

  #groupFor(job: Job): Group {
    const key = this.#keys.groupOf(job);
    const group = this.#groups.get(key) ?? {
      ...{ key, running: 0, lanes: 0, maxWindow: this.#limits.maxWindow },
      ...{ runnable: new Set<Lane<unknown>>(), growing: new Set<Lane<unknown>>() },
    };
    this.#groups.set(key, group);
    return group;
  }

  /** To be called after every change of the lane's tries, waiting jobs or limit. A lane that waits for its turn keeps its place. */
  #queueForTurn(lane: Lane<Job>): void {
    const { runnable, growing } = lane.group;
    const hasRoom = lane.waiting.length > 0 && lane.running < lane.limit.value;
    const line = !hasRoom ? null : lane.running < this.#limits.perLane ? runnable : growing;
    if (line !== runnable) runnable.delete(lane);
    if (line !== growing) growing.delete(lane);
    line?.add(lane);
    if (runnable.size + growing.size > 0) this.#turns.add(lane.group);
    else this.#turns.delete(lane.group);
  }

  /** The next job to try; undefined when no job may be tried now. */
  take(): Job | undefined {
    for (const group of this.#turns) {
      if (this.#isShareUsed(group)) continue;
      const isGrowing = group.runnable.size === 0 && this.#mayGrow(group);
      const [lane] = (isGrowing ? group.growing : group.runnable) as Set<Lane<Job>>;
      const job = lane?.waiting.shift();
      if (!lane || !job) continue;
      this.#startTry(lane);
      // The lane goes to the end of the turns of its group, and the group to the end of the turns of all groups.
      group.runnable.delete(lane);
      group.growing.delete(lane);
      this.#turns.delete(group);
      this.#queueForTurn(lane);
      return job;
    }
    return undefined;
  }

  /**
   * Takes a place for a job that does not exist yet, if the job could be tried at once and would overtake no job that waits here
   * or in the database. `finish` and `finishUntried` give the place back, as for any job that was taken.
   */
  reserve(key: string, nowMs: number): boolean {
    const lane = this.#lanes.get(key);
    if (!lane || lane.mayHaveMore || lane.waiting.length > 0 || lane.breaker.isPaused) return false;
    if (lane.running >= lane.limit.value || this.#isShareUsed(lane.group)) return false;
    if (lane.running >= this.#limits.perLane && !this.#mayGrow(lane.group)) return false;
    lane.filledAt = nowMs;
    this.#startTry(lane);
    return true;
  }

  #isShareUsed({ running }: Group): boolean {
    return running >= (this.#limits.perProcess - this.#running) * triesPerFreePlace;
  }

  #mayGrow({ running }: Group): boolean {
    return running < (this.#limits.perProcess - this.#running) * growthPerFreePlace;
  }

  #startTry(lane: Lane<Job>): void {
    lane.running += 1;
    lane.group.running += 1;
    this.#running += 1;
  }

  /** A try has ended. Returns the jobs to release: all waiting jobs of the lane, when this failure pauses it. */
  finish(key: string, end: TryEnd, nowMs: number): readonly Job[] {
    const lane = this.#lanes.get(key);
    if (!lane) return [];
    lane.limit.end(end, lane.running, nowMs);
    if (end.isHealthy) lane.breaker.succeed();
    else lane.window = this.#limits.perLane;
    const toRelease = !end.isHealthy && lane.breaker.fail(nowMs) ? this.removeWaiting(key) : [];
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
    lane.group.running -= 1;
    this.#running -= 1;
    this.#queueForTurn(lane);
  }

  /** Whether the lane is paused and it is too early for a probe. */
  mustWait(key: string, nowMs: number): boolean {
    return this.#lanes.get(key)?.breaker.mustWait(nowMs) === true;
  }

  /** Removes the jobs of a lane that are not tried yet, and returns them. */
  removeWaiting(key: string): Job[] {
    const lane = this.#lanes.get(key);
    if (!lane) return [];
    const { waiting } = lane;
    lane.waiting = [];
    this.#queueForTurn(lane);
    return waiting;
  }

  removeAllWaiting(): Job[] {
    return [...this.#lanes.keys()].flatMap((key) => this.removeWaiting(key));
  }
}

/**
 * Fairness. Every webhook with work in this process has a lane of its own: a cap on tries under way, a window of what may
 * be claimed ahead, and a breaker. One slow or dead webhook fills its own lane and no other. No input or output here; time
 * comes in as an argument.
 */
import type { ClaimedDelivery } from '../store/deliveries.ts';

export interface LaneLimits {
  /** Tries under way at once, for one webhook and in all. */
  perWebhook: number;
  perProcess: number;
  /** Most that is claimed ahead for one webhook that keeps up, and about how much for all of them. */
  maxWindow: number;
  maxAhead: number;
  /** Failures in a row that open the breaker; it is then tried again after a pause that doubles each time. */
  breakerFailures: number;
  breakerPauseMs: number;
  maxBreakerPauseMs: number;
}

export const defaultLimits: LaneLimits = {
  perWebhook: 16,
  perProcess: 1024,
  maxWindow: 512,
  maxAhead: 2048,
  breakerFailures: 10,
  breakerPauseMs: 1000,
  maxBreakerPauseMs: 60_000,
};

interface Lane {
  webhookId: string;
  queue: ClaimedDelivery[];
  running: number;
  window: number;
  filledAt: number;
  /** The last claim took all it might, so there may be more to claim. */
  more: boolean;
  /** Failures in a row, and when the last one was. */
  failures: number;
  failedAt: number;
  /** How often it was parked since the last success, and until when it is. */
  parks: number;
  parkedUntil: number;
}

/** A lane that takes this long or less to empty its window may claim further ahead. */
const quickMs = 500;

/** Claimed and not yet tried to its end. */
function here(lane: Lane): number {
  return lane.queue.length + lane.running;
}

export class Lanes {
  readonly #limits: LaneLimits;
  readonly #lanes = new Map<string, Lane>();
  /** Lanes with something to try and room to try it, in turn. */
  readonly #runnable = new Set<Lane>();
  #running = 0;

  constructor(limits: LaneLimits) {
    this.#limits = limits;
  }

  get running(): number {
    return this.#running;
  }

  get parked(): number {
    return [...this.#lanes.values()].filter((lane) => lane.parks > 0).length;
  }

  /** Whether to claim more: not while as many lanes as there are places have something to try at once. */
  hasRoom(): boolean {
    return this.#runnable.size < this.#limits.perProcess;
  }

  /** How many each webhook may claim now; one that has no lane may claim `perWebhook`. */
  allowances(nowMs: number): Map<string, number> {
    for (const lane of this.#lanes.values())
      if (this.#isForgettable(lane, nowMs)) this.#lanes.delete(lane.webhookId);
    const bound = this.#windowBound();
    return new Map(
      [...this.#lanes.values()].map((lane) => [lane.webhookId, this.#allowance(lane, bound, nowMs)]),
    );
  }

  /** What is claimed ahead in all is shared out among the lanes that have work, or had a moment ago; parked ones take no part. */
  #windowBound(): number {
    const { perWebhook, maxWindow, maxAhead } = this.#limits;
    let busy = 0;
    for (const lane of this.#lanes.values()) if (lane.parks === 0 && (lane.more || here(lane) > 0)) busy += 1;
    return Math.max(perWebhook, Math.min(maxWindow, Math.floor(maxAhead / Math.max(1, busy))));
  }

  /** An idle lane needs no memory, but of how quick it was a moment ago or how badly it did a while ago. */
  #isForgettable(lane: Lane, nowMs: number): boolean {
    if (here(lane) > 0) return false;
    const keptUntil =
      lane.failures > 0
        ? Math.max(lane.parkedUntil, lane.failedAt) + this.#limits.maxBreakerPauseMs
        : lane.filledAt + quickMs;
    return keptUntil < nowMs;
  }

  #allowance(lane: Lane, bound: number, nowMs: number): number {
    if (!this.#mayClaim(lane, nowMs)) return 0;
    return lane.parks > 0 ? 1 : Math.max(0, this.#nextWindow(lane, bound, nowMs) - here(lane));
  }

  /** In halves of a window at least: many small claims cost more than few large ones. A parked lane gets one, to probe with. */
  #mayClaim(lane: Lane, nowMs: number): boolean {
    if (lane.parks > 0) return lane.parkedUntil <= nowMs && here(lane) === 0;
    return here(lane) * 2 <= lane.window;
  }

  /** A lane that was quick to empty what it was given may claim further ahead, and a slow one less far. */
  #nextWindow(lane: Lane, bound: number, nowMs: number): number {
    const isQuick = nowMs - lane.filledAt < quickMs;
    const wanted = !lane.more ? lane.window : isQuick ? lane.window * 2 : Math.floor(lane.window / 2);
    return Math.max(this.#limits.perWebhook, Math.min(wanted, bound));
  }

  /** Takes in what a claim gave, which asked for these allowances at that moment. Returns what is to be given back. */
  fill(
    claimed: readonly ClaimedDelivery[],
    asked: ReadonlyMap<string, number>,
    askedAt: number,
    nowMs: number,
  ): ClaimedDelivery[] {
    const got = new Map<string, number>();
    const back: ClaimedDelivery[] = [];
    const bound = this.#windowBound();
    for (const delivery of claimed) {
      const lane = this.#lanes.get(delivery.webhookId) ?? this.#open(delivery.webhookId);
      got.set(lane.webhookId, (got.get(lane.webhookId) ?? 0) + 1);
      // Parked while the claim was under way.
      if (this.isParked(lane.webhookId, nowMs)) back.push(delivery);
      else lane.queue.push(delivery);
      this.#enlist(lane);
    }
    for (const lane of this.#lanes.values()) {
      const allowance = asked.get(lane.webhookId) ?? this.#limits.perWebhook;
      if (allowance === 0) continue;
      const count = got.get(lane.webhookId) ?? 0;
      if (count > 0 && lane.parks === 0) lane.window = this.#nextWindow(lane, bound, askedAt);
      if (count > 0) lane.filledAt = nowMs;
      lane.more = count >= allowance;
    }
    return back;
  }

  /** Whether a claim for this webhook is worth its while now. */
  wantsMore(webhookId: string, nowMs: number): boolean {
    const lane = this.#lanes.get(webhookId);
    return lane?.more === true && this.hasRoom() && this.#mayClaim(lane, nowMs);
  }

  #open(webhookId: string): Lane {
    const lane = {
      webhookId,
      queue: [],
      running: 0,
      window: this.#limits.perWebhook,
      filledAt: Number.NEGATIVE_INFINITY,
      more: false,
      failures: 0,
      failedAt: 0,
      parks: 0,
      parkedUntil: 0,
    };
    this.#lanes.set(webhookId, lane);
    return lane;
  }

  #enlist(lane: Lane): void {
    if (lane.queue.length > 0 && lane.running < this.#limits.perWebhook) this.#runnable.add(lane);
  }

  /** The next delivery to try, lanes taking turns; undefined when there is none or no room. */
  take(): ClaimedDelivery | undefined {
    if (this.#running >= this.#limits.perProcess) return undefined;
    const [lane] = this.#runnable;
    const delivery = lane?.queue.shift();
    if (!lane || !delivery) return undefined;
    this.#runnable.delete(lane);
    lane.running += 1;
    this.#running += 1;
    this.#enlist(lane);
    return delivery;
  }

  /** A try has ended. Returns what was claimed ahead and is to be given back, when that parks the lane. */
  settle(webhookId: string, ok: boolean, nowMs: number): ClaimedDelivery[] {
    const lane = this.#lanes.get(webhookId);
    if (!lane) return [];
    lane.running -= 1;
    this.#running -= 1;
    if (ok) {
      lane.failures = 0;
      lane.parks = 0;
    }
    const back = ok ? [] : this.#fail(lane, nowMs);
    this.#enlist(lane);
    return back;
  }

  /** What was taken is not tried after all. */
  skip(webhookId: string): void {
    const lane = this.#lanes.get(webhookId);
    if (!lane) return;
    lane.running -= 1;
    this.#running -= 1;
    this.#enlist(lane);
  }

  #fail(lane: Lane, nowMs: number): ClaimedDelivery[] {
    lane.failures += 1;
    lane.failedAt = nowMs;
    lane.window = this.#limits.perWebhook;
    const probeFailed = lane.parks > 0 && lane.parkedUntil <= nowMs;
    if (!probeFailed && (lane.parks > 0 || lane.failures < this.#limits.breakerFailures)) return [];
    lane.parkedUntil =
      nowMs + Math.min(this.#limits.breakerPauseMs * 2 ** lane.parks, this.#limits.maxBreakerPauseMs);
    lane.parks += 1;
    return this.#empty(lane);
  }

  /** Whether its breaker is open: nothing is to be tried but the probe. */
  isParked(webhookId: string, nowMs: number): boolean {
    const lane = this.#lanes.get(webhookId);
    return lane !== undefined && lane.parks > 0 && lane.parkedUntil > nowMs;
  }

  /** What was claimed for this webhook and not tried, to be given back. */
  empty(webhookId: string): ClaimedDelivery[] {
    const lane = this.#lanes.get(webhookId);
    return lane ? this.#empty(lane) : [];
  }

  #empty(lane: Lane): ClaimedDelivery[] {
    const back = lane.queue;
    lane.queue = [];
    this.#runnable.delete(lane);
    return back;
  }

  /** Everything that was claimed and not tried, to be given back at the end. */
  emptyAll(): ClaimedDelivery[] {
    return [...this.#lanes.values()].flatMap((lane) => this.#empty(lane));
  }
}

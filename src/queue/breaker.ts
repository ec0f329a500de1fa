/**
 * Pauses a lane whose tries all fail. After `breakerFailures` failures in a row the breaker opens: the lane is paused. After a
 * wait the lane tries one job, the probe. A successful probe closes the breaker; a failed probe starts a wait twice as long.
 * Pure: time is an argument.
 */
import { backoff } from '../lib/backoff.ts';

export interface BreakerLimits {
  breakerFailures: number;
  breakerPauseMs: number;
  maxBreakerPauseMs: number;
}

export class Breaker {
  readonly #limits: BreakerLimits;
  #failuresInRow = 0;
  #lastFailureAt = 0;
  #waitsSinceSuccess = 0;
  #probeAt = 0;

  constructor(limits: BreakerLimits) {
    this.#limits = limits;
  }

  /** The breaker is open. */
  get isPaused(): boolean {
    return this.#waitsSinceSuccess > 0;
  }

  /** The lane is paused, and it is too early for a probe. */
  mustWait(nowMs: number): boolean {
    return this.isPaused && this.#probeAt > nowMs;
  }

  succeed(): void {
    this.#failuresInRow = 0;
    this.#waitsSinceSuccess = 0;
  }

  /** Returns true when this failure starts a wait. */
  fail(nowMs: number): boolean {
    this.#failuresInRow += 1;
    this.#lastFailureAt = nowMs;
    // Tries that were already running when the breaker opened do not make the wait longer; only a failed probe does.
    if (this.isPaused ? this.mustWait(nowMs) : this.#failuresInRow < this.#limits.breakerFailures)
      return false;
    const { breakerPauseMs, maxBreakerPauseMs } = this.#limits;
    this.#probeAt = nowMs + backoff(this.#waitsSinceSuccess, breakerPauseMs, maxBreakerPauseMs);
    this.#waitsSinceSuccess += 1;
    return true;
  }

  /** Failures count for as long as the longest wait, so that a lane with few jobs is paused too. */
  get rememberUntil(): number {
    if (this.#failuresInRow === 0) return Number.NEGATIVE_INFINITY;
    return Math.max(this.#probeAt, this.#lastFailureAt) + this.#limits.maxBreakerPauseMs;
  }
}

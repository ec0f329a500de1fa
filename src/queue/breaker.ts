/**
 * Pauses a lane whose tries all fail. After `breakerFailures` failures in a row the breaker opens and a pause begins. After the
 * pause the lane tries one job, the probe. A successful probe closes the breaker; a failed probe starts a pause twice as long.
 * Pure: time is an argument.
 */
export interface BreakerLimits {
  breakerFailures: number;
  breakerPauseMs: number;
  maxBreakerPauseMs: number;
}

export class Breaker {
  readonly #limits: BreakerLimits;
  #failuresInRow = 0;
  #lastFailureAt = 0;
  #pausesSinceSuccess = 0;
  #pausedUntil = 0;

  constructor(limits: BreakerLimits) {
    this.#limits = limits;
  }

  get isOpen(): boolean {
    return this.#pausesSinceSuccess > 0;
  }

  /** The breaker is open, and it is too early for a probe. */
  isPaused(nowMs: number): boolean {
    return this.isOpen && this.#pausedUntil > nowMs;
  }

  succeed(): void {
    this.#failuresInRow = 0;
    this.#pausesSinceSuccess = 0;
  }

  /** Returns true when this failure starts a pause. */
  fail(nowMs: number): boolean {
    this.#failuresInRow += 1;
    this.#lastFailureAt = nowMs;
    // Tries that were already running when the breaker opened do not make the pause longer; only a failed probe does.
    if (this.isOpen ? this.isPaused(nowMs) : this.#failuresInRow < this.#limits.breakerFailures) return false;
    const { breakerPauseMs, maxBreakerPauseMs } = this.#limits;
    this.#pausedUntil = nowMs + Math.min(breakerPauseMs * 2 ** this.#pausesSinceSuccess, maxBreakerPauseMs);
    this.#pausesSinceSuccess += 1;
    return true;
  }

  /** Failures count for as long as the longest pause, so that a lane with few jobs is paused too. */
  get rememberUntil(): number {
    if (this.#failuresInRow === 0) return Number.NEGATIVE_INFINITY;
    return Math.max(this.#pausedUntil, this.#lastFailureAt) + this.#limits.maxBreakerPauseMs;
  }
}

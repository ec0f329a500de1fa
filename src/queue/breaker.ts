/**
 * Pauses a lane that only fails. After `breakerFailures` failures in a row the breaker opens and a pause begins. After the
 * pause one job is tried as a probe: a success closes the breaker, a failure begins a pause twice as long. Pure: time is an
 * argument.
 */
export interface BreakerLimits {
  breakerFailures: number;
  breakerPauseMs: number;
  maxBreakerPauseMs: number;
}

export class Breaker {
  readonly #limits: BreakerLimits;
  /** Failures in a row, and when the last one was. */
  #failures = 0;
  #failedAt = 0;
  /** Pauses since the last success, and when the last one ends. */
  #pauses = 0;
  #pausedUntil = 0;

  constructor(limits: BreakerLimits) {
    this.#limits = limits;
  }

  get isOpen(): boolean {
    return this.#pauses > 0;
  }

  /** Open, and it is too early for a probe. */
  isPaused(nowMs: number): boolean {
    return this.isOpen && this.#pausedUntil > nowMs;
  }

  succeed(): void {
    this.#failures = 0;
    this.#pauses = 0;
  }

  /** Returns true when this failure begins a pause. */
  fail(nowMs: number): boolean {
    this.#failures += 1;
    this.#failedAt = nowMs;
    // Tries that were under way when the breaker opened do not lengthen its pause; only a failed probe begins the next.
    if (this.isOpen ? this.isPaused(nowMs) : this.#failures < this.#limits.breakerFailures) return false;
    const pauseMs = Math.min(this.#limits.breakerPauseMs * 2 ** this.#pauses, this.#limits.maxBreakerPauseMs);
    this.#pausedUntil = nowMs + pauseMs;
    this.#pauses += 1;
    return true;
  }

  /** Failures count for as long as a pause can last: they open the breaker of a lane that has little to do, too. */
  get rememberUntil(): number {
    if (this.#failures === 0) return Number.NEGATIVE_INFINITY;
    return Math.max(this.#pausedUntil, this.#failedAt) + this.#limits.maxBreakerPauseMs;
  }
}

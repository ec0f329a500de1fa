/** How fast a client sends a message. Only a whole portion gets it more time: single bytes gain nothing. */
export interface PaceLimits {
  /** For each `dataPortionBytes` of a message: the slowest rate that is allowed. */
  dataTimeoutMs: number;
  dataPortionBytes: number;
  /** For the whole message. */
  messageTimeoutMs: number;
}

export class Pace {
  readonly #limits: PaceLimits;
  readonly #messageEndsBy: number;
  #portionSince: number;
  #portionEndsAt: number;

  constructor(limits: PaceLimits, now: number) {
    this.#limits = limits;
    this.#messageEndsBy = now + limits.messageTimeoutMs;
    this.#portionSince = now;
    this.#portionEndsAt = limits.dataPortionBytes;
  }

  /** Whether the bytes so far complete a portion, so that the next one begins. */
  advance(size: number, now: number): boolean {
    if (size < this.#portionEndsAt) return false;
    this.#portionSince = now;
    this.#portionEndsAt = size + this.#limits.dataPortionBytes;
    return true;
  }

  leftMs(now: number): number {
    const endsBy = Math.min(this.#messageEndsBy, this.#portionSince + this.#limits.dataTimeoutMs);
    return Math.max(0, Math.ceil(endsBy - now));
  }

  /** How long the client has needed for the current portion. */
  slownessMs(now: number): number {
    return now - this.#portionSince;
  }
}

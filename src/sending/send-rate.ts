/** Limits the recipients to which each owner sends in a minute, counted in this process. */
import { Problem } from '../problems.ts';

const windowMs = 60_000;

export class SendRate {
  readonly #perMinute: number;
  #windowStart = performance.now();
  #used = new Map<string, number>();

  /** 0: no limit. */
  constructor(perMinute: number) {
    this.#perMinute = perMinute;
  }

  /** Counts the recipients of one message. Throws 429, and counts nothing, when they are too many. */
  take(ownerId: string, recipients: number, nowMs = performance.now()): void {
    if (this.#perMinute === 0) return;
    if (nowMs - this.#windowStart >= windowMs) {
      this.#windowStart = nowMs;
      this.#used = new Map();
    }
    const used = this.#used.get(ownerId) ?? 0;
    // One message is always possible: with more recipients than the limit it could never be sent.
    if (used > 0 && used + recipients > this.#perMinute) {
      const waitSeconds = Math.ceil((this.#windowStart + windowMs - nowMs) / 1000);
      throw new Problem('rate_limited', {
        detail: `The limit is ${this.#perMinute} recipients a minute. Retry in ${waitSeconds} s.`,
        headers: { 'retry-after': String(waitSeconds) },
      });
    }
    this.#used.set(ownerId, used + recipients);
  }
}

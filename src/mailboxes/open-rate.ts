/** How many connections may be opened now, so that a start does not open thousands at once. */
export class OpenRate {
  readonly #perSecond: number;
  #allowed: number;
  #atMs: number | null = null;

  constructor(perSecond: number) {
    this.#perSecond = perSecond;
    this.#allowed = perSecond;
  }

  available(nowMs: number): number {
    const elapsedMs = nowMs - (this.#atMs ?? nowMs);
    this.#atMs = nowMs;
    this.#allowed = Math.min(this.#perSecond, this.#allowed + (elapsedMs * this.#perSecond) / 1000);
    return Math.floor(this.#allowed);
  }

  take(count: number): void {
    this.#allowed -= count;
  }
}

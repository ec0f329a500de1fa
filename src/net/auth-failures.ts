/** Counts the failures to sign in of each client network (`clientNetwork`) in a minute, so that nobody can try many keys. */
const windowMs = 60_000;
const maxPerWindow = 20;

export class AuthFailures {
  #windowStart = Number.NEGATIVE_INFINITY;
  #counts = new Map<string, number>();

  add(network: string, nowMs: number): void {
    this.#counts.set(network, this.#count(network, nowMs) + 1);
  }

  isBlocked(network: string, nowMs: number): boolean {
    return this.#count(network, nowMs) >= maxPerWindow;
  }

  #count(network: string, nowMs: number): number {
    if (nowMs - this.#windowStart >= windowMs) {
      this.#windowStart = nowMs;
      this.#counts = new Map();
    }
    return this.#counts.get(network) ?? 0;
  }
}

/** A few places that many wait for, in order of asking; no key holds more than its share of them. */
export class Slots {
  readonly #perKey: number;
  readonly #taken = new Map<string, number>();
  readonly #waiting: { key: string; enter: () => void }[] = [];
  #free: number;

  constructor(limits: { inAll: number; perKey: number }) {
    this.#free = limits.inAll;
    this.#perKey = limits.perKey;
  }

  take(key: string): Promise<void> {
    return new Promise((enter) => {
      this.#waiting.push({ key, enter });
      this.#admit();
    });
  }

  release(key: string): void {
    this.#free += 1;
    const left = (this.#taken.get(key) ?? 1) - 1;
    if (left === 0) this.#taken.delete(key);
    else this.#taken.set(key, left);
    this.#admit();
  }

  #admit(): void {
    while (this.#free > 0) {
      const next = this.#waiting.findIndex(({ key }) => (this.#taken.get(key) ?? 0) < this.#perKey);
      const [admitted] = next === -1 ? [] : this.#waiting.splice(next, 1);
      if (!admitted) return;
      this.#free -= 1;
      this.#taken.set(admitted.key, (this.#taken.get(admitted.key) ?? 0) + 1);
      admitted.enter();
    }
  }
}

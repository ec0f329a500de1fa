/**
 * A limited resource, such as bytes of memory, that many callers wait for. No key has more than its share, and the waiting key
 * that has least comes first: a few slow keys cannot block the others.
 */
interface Waiter {
  key: string;
  weight: number;
  admit(): void;
}

export class Slots {
  readonly #limits: { inAll: number; perKey: number };
  readonly #taken = new Map<string, number>();
  /** Oldest first. */
  readonly #waiting: Waiter[] = [];
  #takenInAll = 0;

  constructor(limits: { inAll: number; perKey: number }) {
    this.#limits = limits;
  }

  take(key: string, weight = 1): Promise<void> {
    return new Promise((admit) => {
      this.#waiting.push({ key, weight, admit });
      this.#admit();
    });
  }

  release(key: string, weight = 1): void {
    this.#takenInAll -= weight;
    const left = this.#takenBy(key) - weight;
    if (left > 0) this.#taken.set(key, left);
    else this.#taken.delete(key);
    this.#admit();
  }

  #takenBy(key: string): number {
    return this.#taken.get(key) ?? 0;
  }

  #admit(): void {
    for (let next = this.#chooseNext(); next; next = this.#chooseNext()) {
      this.#waiting.splice(this.#waiting.indexOf(next), 1);
      this.#takenInAll += next.weight;
      this.#taken.set(next.key, this.#takenBy(next.key) + next.weight);
      next.admit();
    }
  }

  #chooseNext(): Waiter | undefined {
    const fitting = this.#waiting.filter((waiter) => this.#fits(waiter));
    return fitting.reduce<Waiter | undefined>(
      (least, waiter) => (least && this.#takenBy(least.key) <= this.#takenBy(waiter.key) ? least : waiter),
      undefined,
    );
  }

  /** A weight above the share, or above the whole limit, is admitted when nothing else is taken. */
  #fits({ key, weight }: Waiter): boolean {
    const taken = this.#takenBy(key);
    const inShare = taken === 0 || taken + weight <= this.#limits.perKey;
    return inShare && (this.#takenInAll === 0 || this.#takenInAll + weight <= this.#limits.inAll);
  }
}

/**
 * Room that many wait for, such as bytes of memory. No key holds more than its share, and of those that wait the one who
 * holds least comes first: a few that hold on for long cannot keep the others out.
 */
interface Waiting {
  key: string;
  weight: number;
  enter(): void;
}

export class Slots {
  readonly #limits: { inAll: number; perKey: number };
  readonly #held = new Map<string, number>();
  /** In order of asking. */
  readonly #waiting: Waiting[] = [];
  #heldInAll = 0;

  constructor(limits: { inAll: number; perKey: number }) {
    this.#limits = limits;
  }

  take(key: string, weight = 1): Promise<void> {
    return new Promise((enter) => {
      this.#waiting.push({ key, weight, enter });
      this.#admit();
    });
  }

  release(key: string, weight = 1): void {
    this.#heldInAll -= weight;
    const left = this.#heldBy(key) - weight;
    if (left > 0) this.#held.set(key, left);
    else this.#held.delete(key);
    this.#admit();
  }

  #heldBy(key: string): number {
    return this.#held.get(key) ?? 0;
  }

  #admit(): void {
    for (let next = this.#choose(); next; next = this.#choose()) {
      this.#waiting.splice(this.#waiting.indexOf(next), 1);
      this.#heldInAll += next.weight;
      this.#held.set(next.key, this.#heldBy(next.key) + next.weight);
      next.enter();
    }
  }

  #choose(): Waiting | undefined {
    const fitting = this.#waiting.filter((one) => this.#fits(one));
    return fitting.reduce<Waiting | undefined>(
      (least, one) => (least && this.#heldBy(least.key) <= this.#heldBy(one.key) ? least : one),
      undefined,
    );
  }

  /** Something larger than a share, or than all there is, still gets its turn: alone. */
  #fits({ key, weight }: Waiting): boolean {
    const held = this.#heldBy(key);
    const inShare = held === 0 || held + weight <= this.#limits.perKey;
    return inShare && (this.#heldInAll === 0 || this.#heldInAll + weight <= this.#limits.inAll);
  }
}

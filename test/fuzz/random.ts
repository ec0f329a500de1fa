/** Random choices that are the same for the same seed. */
import { makeRandom } from '../faults/fault.ts';

export class Random {
  readonly #next: () => number;

  constructor(seed: number) {
    this.#next = makeRandom(seed);
  }

  /** One of its own for each case of a run, so that a case can be had again without those before it. */
  static ofCase(seed: number, number: number): Random {
    return new Random(Math.imul(seed, 0x9e3779b1) ^ Math.imul(number + 1, 0x85ebca6b));
  }

  /** A whole number from 0 on. */
  below(limit: number): number {
    return Math.floor(this.#next() * limit);
  }

  between(least: number, most: number): number {
    return least + this.below(most - least + 1);
  }

  chance(share: number): boolean {
    return this.#next() < share;
  }

  pick<T>(items: readonly T[]): T {
    if (items.length === 0) throw new Error('There is nothing to pick from.');
    return items[this.below(items.length)] as T;
  }

  /** From none up to `most` of them. */
  some<T>(most: number, make: () => T): T[] {
    return this.times(this.below(most + 1), make);
  }

  times<T>(count: number, make: () => T): T[] {
    return Array.from({ length: count }, make);
  }

  bytes(length: number): Buffer {
    return Buffer.from(this.times(length, () => this.below(256)));
  }

  /** Small ones often, and large ones now and then. */
  size(most: number): number {
    return Math.floor(most ** this.#next()) - 1;
  }
}

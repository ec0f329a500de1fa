/** What was read of recipients that were claimed together, until each of them is tried. */
import type { SendFacts } from '../store/send-queue.ts';

/** A recipient that waited longer than this for its turn may have been cancelled or suppressed meanwhile. */
const freshMs = 1000;

export class FreshFacts {
  /** The oldest first. */
  readonly #kept = new Map<string, { facts: SendFacts; at: number }>();

  keep(read: readonly SendFacts[], nowMs: number): void {
    for (const [id, { at }] of this.#kept) {
      if (nowMs - at <= freshMs) break;
      this.#kept.delete(id);
    }
    for (const facts of read) {
      this.#kept.delete(facts.id);
      this.#kept.set(facts.id, { facts, at: nowMs });
    }
  }

  take(id: string, nowMs: number): SendFacts | undefined {
    const kept = this.#kept.get(id);
    this.#kept.delete(id);
    return kept && nowMs - kept.at <= freshMs ? kept.facts : undefined;
  }
}

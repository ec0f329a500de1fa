/**
 * Limits how many accounts and providers are verified at the same time. Guarantees: an owner has few checks at once, because the
 * servers may belong to strangers, and nobody should scan their ports fast. A check ends after `withinMs`, whatever the server does,
 * so the checks of others wait no longer than that.
 */
import { Slots } from '../lib/slots.ts';
import { Problem } from '../problems.ts';

const usualLimits = { inAll: 50, perOwner: 3, withinMs: 30_000 };

export class Verifications {
  readonly #limits: typeof usualLimits;
  readonly #places: Slots;
  /** By owner: checks that run or wait for a place. */
  readonly #open = new Map<string, number>();

  constructor(limits: Partial<typeof usualLimits> = {}) {
    this.#limits = { ...usualLimits, ...limits };
    this.#places = new Slots(this.#limits);
  }

  /** `signal`: the client has gone. `check` must end soon after the signal that it gets: of the client, or of its time (`isLate`). */
  async run(
    ownerId: string,
    signal: AbortSignal,
    check: (signal: AbortSignal) => Promise<void>,
  ): Promise<void> {
    const { perOwner, withinMs } = this.#limits;
    const open = this.#open.get(ownerId) ?? 0;
    if (open >= perOwner) throw new Problem('too_many_verifications', { headers: { 'retry-after': '5' } });
    this.#open.set(ownerId, open + 1);
    try {
      const error = () => new Problem('verifications_busy', { headers: { 'retry-after': '5' } });
      // The checks that have the places began earlier, so they end within `withinMs`. Twice that leaves a margin.
      const timeout = { ms: 2 * withinMs, error };
      using _place = await this.#places.take(ownerId, 1, { signal, timeout });
      await check(AbortSignal.any([signal, AbortSignal.timeout(withinMs)]));
    } finally {
      const left = (this.#open.get(ownerId) ?? 1) - 1;
      if (left > 0) this.#open.set(ownerId, left);
      else this.#open.delete(ownerId);
    }
  }
}

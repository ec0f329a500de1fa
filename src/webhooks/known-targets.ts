/**
 * The webhooks that the loop has to do with, as they were a moment ago: a delivery that waited in line goes to where its
 * webhook points when it is tried, and not at all once that is off or deleted.
 */
import type { Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import type { Sealer } from '../lib/secrets.ts';
import { readTargets, type Target } from '../store/targets.ts';
import { openTarget, type SigningTarget } from './try.ts';

const recentMs = 1000;
const unopenedPauseMs = 60_000;

export class KnownTargets {
  readonly #parts: { sql: Sql; sealer: Sealer; log: Log };
  readonly #known = new Map<string, { target: SigningTarget | undefined; readAt: number }>();
  /** Webhooks whose secret does not open, and until when they are passed over. */
  readonly #unopened = new Map<string, number>();
  /** Those to be read next, together, and the reading of them. */
  #wanted = new Set<string>();
  #reading: Promise<void> | undefined;

  constructor(parts: { sql: Sql; sealer: Sealer; log: Log }) {
    this.#parts = parts;
  }

  /** As it was less than a second ago; null when that is not known. Undefined: it is not to be called. */
  recent(id: string, nowMs: number): SigningTarget | undefined | null {
    const known = this.#known.get(id);
    return known && known.readAt > nowMs - recentMs ? known.target : null;
  }

  /** Asked one by one, read together. */
  async read(id: string): Promise<SigningTarget | undefined> {
    this.#wanted.add(id);
    this.#reading ??= new Promise((resolve) => setImmediate(resolve)).then(() => {
      const ids = [...this.#wanted];
      this.#wanted = new Set();
      this.#reading = undefined;
      return this.readAll(ids, performance.now());
    });
    await this.#reading;
    return this.#known.get(id)?.target;
  }

  async readAll(ids: readonly string[], nowMs: number): Promise<void> {
    const targets = await readTargets(this.#parts.sql, ids);
    const open = new Map(targets.filter(({ enabled }) => enabled).map((target) => [target.id, target]));
    for (const id of ids) {
      const target = open.get(id);
      this.#known.set(id, { target: target && this.#open(target, nowMs), readAt: nowMs });
    }
  }

  /** Those that a claim is to pass over. */
  passedOver(nowMs: number): string[] {
    for (const [id, until] of this.#unopened) if (until <= nowMs) this.#unopened.delete(id);
    for (const [id, { readAt }] of this.#known) if (readAt < nowMs - unopenedPauseMs) this.#known.delete(id);
    return [...this.#unopened.keys()];
  }

  /** A secret under a key that the operator no longer gives keeps its own webhook waiting, and no other. */
  #open(target: Target, nowMs: number): SigningTarget | undefined {
    const known = this.#known.get(target.id)?.target;
    if (known && isSame(known, target)) return { ...known, failing: target.failing };
    try {
      return openTarget(
        { ...target, sealedSecrets: target.sealedSecrets.map(copyAlone) },
        this.#parts.sealer,
      );
    } catch (err) {
      this.#parts.log.error(
        { err, webhookId: target.id },
        'the secret of a webhook cannot be opened; its deliveries wait',
      );
      this.#unopened.set(target.id, nowMs + unopenedPauseMs);
      return undefined;
    }
  }
}

/** A slice of Node's pool, which is what the driver gives, would keep all of its 64 KiB for as long as the secret is kept. */
function copyAlone(bytes: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.length);
  bytes.copy(copy);
  return copy;
}

/** Opening secrets costs more than comparing them. */
function isSame(known: Target, now: Target): boolean {
  return (
    known.url === now.url &&
    known.sealedSecrets.length === now.sealedSecrets.length &&
    known.sealedSecrets.every((sealed, n) => now.sealedSecrets[n]?.equals(sealed))
  );
}

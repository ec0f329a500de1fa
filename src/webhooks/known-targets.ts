/**
 * The webhooks that are being called, each at most a second old: a delivery goes to the URL that its webhook has when it is
 * tried, however long it waited, and to none once the webhook is disabled or deleted.
 */
import type { Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import type { Sealer } from '../lib/secrets.ts';
import { readTargets, type Target } from '../store/targets.ts';
import { openTarget, type SigningTarget } from './try.ts';

const recentMs = 1000;
const keptMs = 60_000;

export class KnownTargets {
  readonly #parts: { sql: Sql; sealer: Sealer; log: Log };
  /** A webhook without a target is not to be called; `isUnopened`: because its secret cannot be opened. */
  readonly #known = new Map<
    string,
    { target: SigningTarget | undefined; isUnopened: boolean; readAt: number }
  >();
  /** The webhooks that are read together next, and that read. */
  #wanted = new Set<string>();
  #reading: Promise<void> | undefined;

  constructor(parts: { sql: Sql; sealer: Sealer; log: Log }) {
    this.#parts = parts;
  }

  /** A webhook as it was less than a second ago; undefined when it was not read since, or is not to be called. */
  recent(id: string, nowMs: number): SigningTarget | undefined {
    return this.#recent(id, nowMs)?.target;
  }

  #recent(id: string, nowMs: number) {
    const known = this.#known.get(id);
    return known && known.readAt > nowMs - recentMs ? known : undefined;
  }

  /** The same, read now if need be; undefined when it is not to be called. Webhooks asked for one by one are read together. */
  async find(id: string): Promise<SigningTarget | undefined> {
    const recent = this.#recent(id, performance.now());
    if (recent) return recent.target;
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
    const enabled = new Map(targets.filter((target) => target.enabled).map((target) => [target.id, target]));
    for (const id of ids) {
      const found = enabled.get(id);
      const target = found && this.#open(found);
      this.#known.set(id, { target, isUnopened: found !== undefined && target === undefined, readAt: nowMs });
    }
  }

  /** Webhooks whose deliveries are not to be claimed now. */
  skipped(nowMs: number): string[] {
    const skipped: string[] = [];
    for (const [id, { isUnopened, readAt }] of this.#known) {
      if (readAt < nowMs - keptMs) this.#known.delete(id);
      else if (isUnopened) skipped.push(id);
    }
    return skipped;
  }

  /** A secret under a key that the operator no longer gives holds up its own webhook, and no other. */
  #open(target: Target): SigningTarget | undefined {
    const known = this.#known.get(target.id)?.target;
    if (known && isSame(known, target)) return { ...known, failing: target.failing };
    const { log, sealer } = this.#parts;
    try {
      return openTarget({ ...target, sealedSecrets: target.sealedSecrets.map(copyAlone) }, sealer);
    } catch (err) {
      log.error(
        { err, webhookId: target.id },
        'the secret of a webhook cannot be opened; its deliveries wait',
      );
      return undefined;
    }
  }
}

/** The driver gives slices of Node's pool; a slice that is kept keeps all 64 KiB of it. */
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

/**
 * A cache of webhooks, at most one second old. So a delivery goes to the URL that the webhook has at the time of the try, and a
 * disabled or deleted webhook gets no more deliveries after that second.
 */
import type { Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import type { Sealer } from '../lib/secrets.ts';
import { readTargets, type WebhookTarget } from '../store/targets.ts';
import { openTarget, type SigningTarget } from './try.ts';

const recentMs = 1000;
const keptMs = 60_000;

/** What is needed to call the webhook, or why it must not be called. A deleted webhook counts as `disabled`. */
type FoundTarget = SigningTarget | 'disabled' | 'secret unreadable';

interface KnownTarget {
  target: FoundTarget;
  readAt: number;
}

export class KnownTargets {
  readonly #parts: { sql: Sql; sealer: Sealer; log: Log };
  readonly #known = new Map<string, KnownTarget>();
  /** The webhooks of the next read. */
  #wanted = new Set<string>();
  #reading: Promise<void> | undefined;

  constructor(parts: { sql: Sql; sealer: Sealer; log: Log }) {
    this.#parts = parts;
  }

  /** Undefined when the webhook was last read more than a second ago. */
  recent(id: string, nowMs: number): KnownTarget | undefined {
    const known = this.#known.get(id);
    return known && known.readAt > nowMs - recentMs ? known : undefined;
  }

  /** Whether a delivery could be tried now, as far as is known. If that is older than a second, it is read again. */
  isCallable(id: string, nowMs: number): boolean {
    const isCallable = typeof this.#known.get(id)?.target === 'object';
    // A failed read is the concern of the try, which reads again.
    if (isCallable && !this.recent(id, nowMs)) this.find(id).catch(() => {});
    return isCallable;
  }

  /** Calls of the same moment share one read. */
  async find(id: string): Promise<FoundTarget> {
    const recent = this.recent(id, performance.now());
    if (recent) return recent.target;
    this.#wanted.add(id);
    this.#reading ??= new Promise((resolve) => setImmediate(resolve)).then(() => {
      const ids = [...this.#wanted];
      this.#wanted = new Set();
      this.#reading = undefined;
      return this.readAll(ids, performance.now());
    });
    await this.#reading;
    return this.#known.get(id)?.target ?? 'disabled';
  }

  async readAll(ids: readonly string[], nowMs: number): Promise<void> {
    const targets = await readTargets(this.#parts.sql, ids);
    const enabled = new Map(targets.filter((target) => target.enabled).map((target) => [target.id, target]));
    for (const id of ids) {
      const found = enabled.get(id);
      this.#known.set(id, { target: found ? this.#open(found) : 'disabled', readAt: nowMs });
    }
  }

  /** Webhooks whose deliveries must not be claimed, because their secret cannot be decrypted. */
  skipped(nowMs: number): string[] {
    const skipped: string[] = [];
    for (const [id, { target, readAt }] of this.#known) {
      if (readAt < nowMs - keptMs) this.#known.delete(id);
      else if (target === 'secret unreadable') skipped.push(id);
    }
    return skipped;
  }

  /** A secret that was encrypted with a key which is no longer configured stops its own webhook only. */
  #open(target: WebhookTarget): FoundTarget {
    const known = this.#known.get(target.id)?.target;
    if (typeof known === 'object' && isSame(known, target))
      return { ...known, failing: target.failing, updatedAt: target.updatedAt };
    const { log, sealer } = this.#parts;
    try {
      return openTarget({ ...target, sealedSecrets: target.sealedSecrets.map(copyOutOfPool) }, sealer);
    } catch (err) {
      log.error(
        { err, webhookId: target.id },
        'the secret of a webhook cannot be decrypted; its deliveries wait',
      );
      return 'secret unreadable';
    }
  }
}

/** The driver returns slices of Node's pool, and a slice that is kept keeps the whole 64 KiB in memory. */
function copyOutOfPool(bytes: Buffer): Buffer {
  return Buffer.alloc(bytes.length, bytes);
}

/** Comparing secrets is cheaper than decrypting them. */
function isSame(known: WebhookTarget, now: WebhookTarget): boolean {
  return (
    known.url === now.url &&
    known.sealedSecrets.length === now.sealedSecrets.length &&
    known.sealedSecrets.every((sealed, n) => now.sealedSecrets[n]?.equals(sealed))
  );
}

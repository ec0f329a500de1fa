/** Notes in the database which webhooks only fail, and disables the ones that are gone. One that does well costs no write. */
import type { Sql } from '../db/client.ts';
import type { Persist } from '../queue/recorder.ts';
import { disableGone, noteFailures, noteRecoveries, type Target } from '../store/targets.ts';

export interface TriedWebhook {
  target: Target;
  error: string | null;
  gone: boolean;
}

const maxFailing = 10_000;

export class WebhookHealth {
  readonly #sql: Sql;
  /** Webhooks that failed here since their last success: `target.failing` may have been read before that failure. */
  readonly #failing = new Set<string>();

  constructor(sql: Sql) {
    this.#sql = sql;
  }

  async note(tried: readonly TriedWebhook[], persist: Persist): Promise<void> {
    // Recoveries first: a batch with a success and a failure is not "nothing but failure".
    const recovered = tried
      .filter(({ error, target }) => error === null && this.#isFailing(target))
      .map(idOf);
    if (recovered.length > 0) {
      await persist('noting recoveries', () => noteRecoveries(this.#sql, recovered));
      for (const id of recovered) this.#failing.delete(id);
    }
    const failed = tried.filter(({ error }) => error !== null).map(idOf);
    if (failed.length > 0) {
      await persist('noting failures', () => noteFailures(this.#sql, failed));
      if (this.#failing.size > maxFailing) this.#failing.clear();
      for (const id of failed) this.#failing.add(id);
    }
    const gone = tried.filter((one) => one.gone).map(({ target }) => target);
    if (gone.length > 0) await persist('disabling webhooks', () => disableGone(this.#sql, gone));
  }

  #isFailing(target: Target): boolean {
    return target.failing || this.#failing.has(target.id);
  }
}

function idOf({ target }: TriedWebhook): string {
  return target.id;
}

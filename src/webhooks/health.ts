/** Records in the database which webhooks fail, and disables webhooks that responded 410. A healthy webhook costs no write. */
import type { Sql } from '../db/client.ts';
import type { Persist } from '../queue/recorder.ts';
import { disableGone, noteFailures, noteRecoveries, type WebhookTarget } from '../store/targets.ts';

export interface TriedWebhook {
  target: WebhookTarget;
  error: string | null;
  gone: boolean;
}

type OnDisabled = (reason: 'gone' | 'failing', webhookIds: readonly string[]) => void;

const maxFailing = 10_000;

export class WebhookHealth {
  readonly #sql: Sql;
  readonly #onDisabled: OnDisabled;
  /** Webhooks that failed in this process since their last success. `target.failing` may be older than that failure. */
  readonly #failing = new Set<string>();

  constructor(sql: Sql, onDisabled: OnDisabled) {
    this.#sql = sql;
    this.#onDisabled = onDisabled;
  }

  async note(tried: readonly TriedWebhook[], persist: Persist): Promise<void> {
    // Recoveries first: a webhook with a success and a failure in one batch still counts as failing only since that failure.
    const recovered = tried.filter((one) => one.error === null && this.#isFailing(one.target)).map(idOf);
    if (recovered.length > 0) {
      await persist('recording recovered webhooks', () => noteRecoveries(this.#sql, recovered));
      for (const id of recovered) this.#failing.delete(id);
    }
    const failed = tried.filter(({ error }) => error !== null).map(idOf);
    if (failed.length > 0) {
      await persist('recording failed webhooks', async () =>
        this.#onDisabled('failing', await noteFailures(this.#sql, failed)),
      );
      if (this.#failing.size > maxFailing) this.#failing.clear();
      for (const id of failed) this.#failing.add(id);
    }
    const gone = tried.filter((one) => one.gone).map(({ target }) => target);
    if (gone.length === 0) return;
    await persist('disabling webhooks', async () =>
      this.#onDisabled('gone', await disableGone(this.#sql, gone)),
    );
  }

  #isFailing(target: WebhookTarget): boolean {
    return target.failing || this.#failing.has(target.id);
  }
}

function idOf({ target }: TriedWebhook): string {
  return target.id;
}

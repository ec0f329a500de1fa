/**
 * Destinations that cannot be reached or hang before MAIL. After a few such failures in a row, their mail is put off without another
 * try, for a short time. So ten thousand recipients at a dead server are put off in seconds, each by its own schedule, instead of
 * waiting for one timeout after the other. A destination is what mail waits for (`Way`); on the direct way also the addresses of a
 * host, because ten thousand domains may have the same server.
 */
import { earlyPhases, type TryReply } from './try-reply.ts';

const maxFailures = 5;
const restMs = 30_000;
const maxKnown = 10_000;
const notTried = 'Not tried, because the last connections failed: ';

export class DeadDestinations {
  readonly #failures = new Map<string, { count: number; at: number; reply: TryReply }>();

  /** The failure to repeat; null: try. After the rest one caller may try, and one more every 30 s until a try has noted its result. */
  find(destination: string, nowMs: number): TryReply | null {
    const known = this.#failures.get(destination);
    if (!known || known.count < maxFailures) return null;
    if (nowMs - known.at > restMs) {
      known.at = nowMs;
      return null;
    }
    const reason = known.reply.detail ?? known.reply.response?.text ?? '';
    return { ...known.reply, detail: reason.startsWith(notTried) ? reason : `${notTried}${reason}` };
  }

  /** `reply` null: the destination was reached. */
  note(destination: string, reply: TryReply | null, nowMs: number): void {
    if (!reply || !isDead(reply)) {
      this.#failures.delete(destination);
      return;
    }
    if (this.#failures.size >= maxKnown) this.#failures.clear();
    const count = (this.#failures.get(destination)?.count ?? 0) + 1;
    this.#failures.set(destination, { count, at: nowMs, reply });
  }
}

/** Not failures of the server. If the host is wrong, each recipient gets its own DNS lookup before it bounces. */
const otherErrors = new Set<TryReply['error']>([
  'stopped',
  'no_such_host',
  'target_refused',
  'auth_unsupported',
]);

/**
 * The conversation ended before MAIL. A server that accepts the connection and then hangs is worse than one that refuses it: each
 * try has a place for up to 5 minutes (RFC 5321 §4.5.3.2).
 */
function isDead({ kind, phase, error }: TryReply): boolean {
  return kind === 'failed' && !otherErrors.has(error) && earlyPhases.includes(phase);
}

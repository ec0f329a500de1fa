/**
 * What becomes of a delivery after a try. Pure: time and chance come in as arguments. docs/delivery-states.md draws it.
 */
import type { PostErrorCode, PostOutcome } from './post.ts';

/** Why a try failed, as the delivery log shows it; null for a success. */
export type TryError = PostErrorCode | 'redirect' | 'gone' | 'rate_limited' | 'http_error';

export interface Verdict {
  status: 'pending' | 'delivered' | 'failed';
  /** Until the next try; null when there is none. */
  waitSeconds: number | null;
  error: TryError | null;
  /** The receiver said that it is gone for good (410): the webhook is to be disabled. */
  gone: boolean;
}

const maxRetryAfterSeconds = 24 * 60 * 60;

export function decide(
  outcome: PostOutcome,
  /** Tries since the schedule began, before this one. */
  delivery: { tries: number },
  scheduleSeconds: readonly number[],
  now: Date,
  random: () => number,
): Verdict {
  const error = outcome.kind === 'failure' ? outcome.error : errorOf(outcome.status);
  if (error === null) return { status: 'delivered', waitSeconds: null, error, gone: false };
  if (error === 'gone') return { status: 'failed', waitSeconds: null, error, gone: true };

  const scheduled = scheduleSeconds[delivery.tries];
  if (scheduled === undefined) return { status: 'failed', waitSeconds: null, error, gone: false };
  // ±10 %, so that what failed together does not come back together.
  const jittered = scheduled * (0.9 + 0.2 * random());
  const asked =
    outcome.kind === 'answer' && [429, 503].includes(outcome.status)
      ? readRetryAfter(outcome.retryAfter, readDate(outcome.headers.date) ?? now)
      : 0;
  return { status: 'pending', waitSeconds: Math.max(jittered, asked), error, gone: false };
}

function errorOf(status: number): TryError | null {
  if (status >= 200 && status < 300) return null;
  if (status >= 300 && status < 400) return 'redirect';
  if (status === 410) return 'gone';
  return status === 429 ? 'rate_limited' : 'http_error';
}

/**
 * Seconds or a date (RFC 9110 §10.2.3), up to a day; 0 when it says nothing of use. A date is one of the receiver's clock, so
 * it is held against what that clock showed when it answered, where it says: ours may be off.
 */
function readRetryAfter(text: string | null, now: Date): number {
  if (text === null) return 0;
  const given = text.trim();
  const date = readDate(given);
  const seconds = /^\d+$/.test(given) ? Number(given) : date ? (date.getTime() - now.getTime()) / 1000 : 0;
  return Math.min(Math.max(seconds, 0), maxRetryAfterSeconds);
}

/** A date has the name of its month; what Date.parse makes of other things is nobody's meaning. */
function readDate(text: string | undefined): Date | null {
  const time = text !== undefined && /[a-z]{3}/i.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(time) ? null : new Date(time);
}

/** What happens to a delivery after a try. Pure: time and chance are arguments. docs/delivery-states.md draws it. */

import { nextWaitSeconds } from '../queue/schedule.ts';
import type { PostErrorCode, PostOutcome } from './post.ts';

/** Why a try failed, as the delivery log shows it; null for a success. */
export type TryError = PostErrorCode | 'redirect' | 'gone' | 'rate_limited' | 'http_error';

export interface Decision {
  status: 'pending' | 'delivered' | 'failed';
  /** Until the next try; null when there is none. */
  waitSeconds: number | null;
  error: TryError | null;
  /** The receiver answered 410: the webhook is to be disabled. */
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
): Decision {
  const error = outcome.kind === 'failure' ? outcome.error : errorOf(outcome.status);
  if (error === null) return { status: 'delivered', waitSeconds: null, error, gone: false };
  if (error === 'gone') return { status: 'failed', waitSeconds: null, error, gone: true };

  const scheduled = nextWaitSeconds(scheduleSeconds, delivery.tries, random);
  if (scheduled === null) return { status: 'failed', waitSeconds: null, error, gone: false };
  const asked =
    outcome.kind === 'answer' && [429, 503].includes(outcome.status)
      ? readRetryAfter(outcome.retryAfter, readDate(outcome.headers.date) ?? now)
      : 0;
  return { status: 'pending', waitSeconds: Math.max(scheduled, asked), error, gone: false };
}

function errorOf(status: number): TryError | null {
  if (status >= 200 && status < 300) return null;
  if (status >= 300 && status < 400) return 'redirect';
  if (status === 410) return 'gone';
  return status === 429 ? 'rate_limited' : 'http_error';
}

/**
 * `Retry-After` is seconds or a date (RFC 9110 §10.2.3). Returns seconds, a day at most; 0 when the field is missing or
 * unusable. The date is by the receiver's clock, so it is compared with the answer's `Date` where there is one.
 */
function readRetryAfter(text: string | null, now: Date): number {
  if (text === null) return 0;
  const given = text.trim();
  const date = readDate(given);
  const seconds = /^\d+$/.test(given) ? Number(given) : date ? (date.getTime() - now.getTime()) / 1000 : 0;
  return Math.min(Math.max(seconds, 0), maxRetryAfterSeconds);
}

/** Only text with a month's name: Date.parse also accepts text that nobody means as a date. */
function readDate(text: string | undefined): Date | null {
  const time = text !== undefined && /[a-z]{3}/i.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(time) ? null : new Date(time);
}

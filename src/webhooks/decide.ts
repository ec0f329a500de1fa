/** What happens to a delivery after a try (docs/delivery-states.md). Pure: time and randomness are arguments. */

import { nextWaitSeconds } from '../queue/schedule.ts';
import type { PostErrorCode, PostOutcome } from './post.ts';

/** Why a try failed, as the API shows it in `error` of an attempt. Not a `ProblemCode`, though `rate_limited` is the name of both. */
export type TryError = PostErrorCode | 'redirect' | 'gone' | 'rate_limited' | 'http_error';

export interface Decision {
  status: 'pending' | 'delivered' | 'failed';
  /** Until the next try; null when there is no next try. */
  waitSeconds: number | null;
  error: TryError | null;
  /** The receiver responded 410: disable the webhook. */
  gone: boolean;
}

const maxRetryAfterSeconds = 24 * 60 * 60;

export function decide(
  outcome: PostOutcome,
  /** Tries since the schedule began, without this one. */
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
    outcome.kind === 'response' && [429, 503].includes(outcome.status)
      ? readRetryAfter(outcome.headers['retry-after'], readDate(outcome.headers.date) ?? now)
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
 * `Retry-After` has seconds or a date (RFC 9110 §10.2.3). Returns seconds, at most a day; 0 when the header is missing or invalid.
 * `now` is the response's own `Date` if it has one, because the date in `Retry-After` is by the receiver's clock.
 */
function readRetryAfter(text: string | undefined, now: Date): number {
  if (text === undefined) return 0;
  const given = text.trim();
  const date = readDate(given);
  const seconds = /^\d+$/.test(given) ? Number(given) : date ? (date.getTime() - now.getTime()) / 1000 : 0;
  return Math.min(Math.max(seconds, 0), maxRetryAfterSeconds);
}

/** Only text with the name of a month: Date.parse also accepts text that is not meant as a date, such as "1". */
function readDate(text: string | undefined): Date | null {
  const time = text !== undefined && /[a-z]{3}/i.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(time) ? null : new Date(time);
}

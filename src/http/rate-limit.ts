/**
 * Limits the requests of each owner in a minute, counted in this process. Not by API key, because a key can create keys. Headers:
 * draft-ietf-httpapi-ratelimit-headers.
 */
import type { FastifyReply } from 'fastify';
import { Problem } from '../problems.ts';

const windowMs = 60_000;

/** The limiter counts one request of the caller, and throws when the limit is exceeded. */
export function makeRateLimiter(perMinute: number): (caller: string, reply: FastifyReply) => void {
  if (perMinute === 0) return () => {};
  const policy = `"default";q=${perMinute};w=60`;
  let windowStart = performance.now();
  let used = new Map<string, number>();

  return (caller, reply) => {
    const now = performance.now();
    if (now - windowStart >= windowMs) {
      windowStart = now;
      used = new Map();
    }
    const count = (used.get(caller) ?? 0) + 1;
    used.set(caller, count);
    const resetSeconds = Math.ceil((windowStart + windowMs - now) / 1000);
    reply.header('ratelimit-policy', policy);
    reply.header('ratelimit', `"default";r=${Math.max(0, perMinute - count)};t=${resetSeconds}`);
    if (count > perMinute) throw rateLimited(resetSeconds, `The limit is ${perMinute} requests a minute.`);
  };
}

export function rateLimited(waitSeconds: number, reason: string): Problem {
  const detail = `${reason} Retry in ${waitSeconds} s.`;
  return new Problem('rate_limited', { detail, headers: { 'retry-after': String(waitSeconds) } });
}

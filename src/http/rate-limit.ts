/** Requests a minute for each key, counted in this process, told in the headers of draft-ietf-httpapi-ratelimit-headers. */
import type { FastifyReply } from 'fastify';
import { Problem } from '../problems.ts';

const windowMs = 60_000;

/** Counts one request of that key, and refuses it when the minute's share is used up. */
export type RateLimiter = (keyId: string, reply: FastifyReply) => void;

export function makeRateLimiter(perMinute: number): RateLimiter {
  if (perMinute === 0) return () => {};
  const policy = `"default";q=${perMinute};w=60`;
  let windowStart = performance.now();
  let used = new Map<string, number>();

  return (keyId, reply) => {
    const now = performance.now();
    if (now - windowStart >= windowMs) {
      windowStart = now;
      used = new Map();
    }
    const count = (used.get(keyId) ?? 0) + 1;
    used.set(keyId, count);
    const resetSeconds = Math.ceil((windowStart + windowMs - now) / 1000);
    reply.header('ratelimit-policy', policy);
    reply.header('ratelimit', `"default";r=${Math.max(0, perMinute - count)};t=${resetSeconds}`);
    if (count > perMinute) {
      throw new Problem('rate_limited', {
        detail: `This key may make ${perMinute} requests a minute. Wait ${resetSeconds} s.`,
        headers: { 'retry-after': String(resetSeconds) },
      });
    }
  };
}

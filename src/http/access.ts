/**
 * Who may call a route. Every route declares its access rule in its config; one without does not register.
 *   key       the owner of an API key, who is then `request.ownerId`
 *   key or link  the same, or the bearer of a signed link to the message in the path, who has no `keyId` then
 *   operator  the bearer of POSTHORN_ADMIN_TOKEN
 *   metrics   the bearer of POSTHORN_METRICS_TOKEN, where one is set
 *   public    anyone
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import type { Config } from '../config.ts';
import type { Links } from '../contract/links.ts';
import type { Pool } from '../db/client.ts';
import { hashApiKey, isApiKey } from '../lib/api-key.ts';
import type { Log } from '../lib/log.ts';
import { Problem, type ProblemCode } from '../problems.ts';
import { findActiveKey, touchApiKey } from '../store/api-keys.ts';
import type { App } from './fastify.ts';

export type Access = 'key' | 'key or link' | 'operator' | 'metrics' | 'public';

/** Stands for the operator wherever an owner is asked for; no user has this id. */
const operatorId = '00000000-0000-0000-0000-000000000000';

declare module 'fastify' {
  interface FastifyContextConfig {
    access?: Access;
    /** The type of a body that is not JSON, for the documentation. */
    takes?: string;
  }
  interface FastifyRequest {
    /** The user whose key it is (access `key`), or `operatorId`. Every query carries it. */
    ownerId: string;
    keyId: string;
  }
}

interface Caller {
  ownerId: string;
  keyId: string;
}

export interface Gate {
  /** Answers at once, without a promise, for a key that was checked a moment ago. */
  admit(request: FastifyRequest): Caller | Promise<Caller>;
  /** A key that was revoked here stops working now; in other processes when their cache ends (`cacheMs`). */
  forget(keyId: string): void;
}

const cacheMs = 3000;
const cacheSize = 10_000;

const nobody: Caller = { ownerId: '', keyId: '' };

export function requireAccessRule(app: App): void {
  app.addHook('onRoute', (route) => {
    if (!route.config?.access) throw new Error(`${route.method} ${route.url} declares no access rule`);
  });
}

export function makeGate(parts: {
  sql: Pool;
  log: Log;
  links: Links;
  config: Pick<Config, 'adminToken' | 'metricsToken'>;
}): Gate {
  const { sql, log, links, config } = parts;
  const cache = new Map<string, Caller & { until: number }>();

  function admit(request: FastifyRequest): Caller | Promise<Caller> {
    switch (request.routeOptions.config.access) {
      case 'key':
        return admitKey(readBearer(request, 'missing_api_key', 'invalid_api_key'));
      case 'key or link':
        return isLink(request)
          ? admitLink(request)
          : admitKey(readBearer(request, 'missing_api_key', 'invalid_api_key'));
      case 'operator':
        return admitToken(request, config.adminToken);
      case 'metrics':
        return config.metricsToken ? admitToken(request, config.metricsToken) : nobody;
      default:
        return nobody;
    }
  }

  function admitLink(request: FastifyRequest): Caller {
    const { id = '' } = request.params as { id?: string };
    const { expires = '', signature = '' } = request.query as { expires?: unknown; signature?: unknown };
    const good = links.isGood(id.toLowerCase(), String(expires), String(signature), Date.now());
    if (!good) throw new Problem('invalid_link');
    return nobody;
  }

  function admitKey(key: string): Caller | Promise<Caller> {
    const known = cache.get(key);
    if (known && known.until > performance.now()) return known;
    cache.delete(key);
    // The checksum refuses a mistyped key without asking the database.
    if (!isApiKey(key)) throw refusal('invalid_api_key');
    return lookUp(key);
  }

  async function lookUp(key: string): Promise<Caller> {
    const found = await findActiveKey(sql, hashApiKey(key));
    if (!found) throw refusal('invalid_api_key');
    if (found.stale) {
      touchApiKey(sql, found.ownerId, found.id).catch((err) =>
        log.warn({ err }, 'last_used_at could not be written'),
      );
    }
    const lifeMs = Math.min(cacheMs, found.expiresIn === null ? cacheMs : found.expiresIn * 1000);
    const caller = { ownerId: found.ownerId, keyId: found.id, until: performance.now() + lifeMs };
    if (cache.size >= cacheSize) cache.delete(cache.keys().next().value as string);
    cache.set(key, caller);
    return caller;
  }

  function forget(keyId: string): void {
    for (const [key, caller] of cache) if (caller.keyId === keyId) cache.delete(key);
  }

  return { admit, forget };
}

function isLink(request: FastifyRequest): boolean {
  return (request.query as { signature?: unknown }).signature !== undefined;
}

function admitToken(request: FastifyRequest, token: string | null): Caller {
  const given = readBearer(request, 'missing_token', 'invalid_token');
  if (token === null || !isSame(given, token)) throw refusal('invalid_token');
  return { ownerId: operatorId, keyId: operatorId };
}

function readBearer(request: FastifyRequest, missing: ProblemCode, malformed: ProblemCode): string {
  const header = request.headers.authorization;
  if (header === undefined || header === '') throw refusal(missing);
  const match = /^bearer +([^\s]+) *$/i.exec(header);
  if (!match?.[1]) throw refusal(malformed, 'The header must read `Authorization: Bearer <key or token>`.');
  return match[1];
}

/** In constant time, whatever the lengths. */
function isSame(given: string, token: string): boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(given), digest(token));
}

function refusal(code: ProblemCode, detail?: string): Problem {
  return new Problem(code, { ...(detail ? { detail } : {}), headers: { 'www-authenticate': 'Bearer' } });
}

/**
 * Authentication. Every route declares its access rule in its config; a route without a rule cannot be registered.
 *   key          an API key with a scope that the route accepts (`allowedScopes`), or the cookie of a session, which has the scope of
 *                its key; `request.ownerId` is the owner of the key
 *   key or link  an API key, or a signed link to the message in the path: `request.ownerId` is then the owner of the message, and
 *                `request.keyId` is empty
 *   hook         the secret in the path of a provider's hook: `request.provider` is the provider, `request.ownerId` its owner, and
 *                the route checks that the call is the provider's
 *   operator     POSTHORN_ADMIN_TOKEN
 *   metrics      POSTHORN_METRICS_TOKEN, if it is set; otherwise anyone
 *   public       anyone
 */
import type { FastifyContextConfig, FastifyRequest, FastifySchema } from 'fastify';
import type { Config } from '../config.ts';
import type { Links } from '../contract/links.ts';
import type { Pool } from '../db/client.ts';
import { hashApiKey, isApiKey } from '../lib/api-key.ts';
import { posthorn } from '../lib/command-line.ts';
import { areEqualSecrets } from '../lib/equal-secrets.ts';
import type { Log } from '../lib/log.ts';
import { hashToken, isHookSecret, isToken } from '../lib/tokens.ts';
import { Problem, type ProblemCode, problems } from '../problems.ts';
import { findActiveKey, type KeyScope, touchApiKey } from '../store/api-keys.ts';
import { findMessageOwner } from '../store/messages.ts';
import { findHookProvider, type SealedProvider } from '../store/providers.ts';
import { findActiveSession, touchSession } from '../store/sessions.ts';
import { orNotFound } from './errors.ts';
import type { App } from './fastify.ts';
import { requireCsrfToken, type SessionCookie } from './session-cookie.ts';

export type Access = 'key' | 'key or link' | 'hook' | 'operator' | 'metrics' | 'public';

/** The `ownerId` and `keyId` of a request with the operator's token; no user has this id. */
const operatorId = '00000000-0000-0000-0000-000000000000';

declare module 'fastify' {
  interface FastifyContextConfig {
    access?: Access;
    /** The scopes that may use the route, if they are not those of its method: see `allowedScopes`. */
    scopes?: readonly KeyScope[];
    /** The content type of a body that is not JSON, for the OpenAPI document. */
    consumes?: string;
  }
  interface FastifyRequest extends Caller {
    /** Of a request to a hook; otherwise null. */
    provider: SealedProvider | null;
  }
}

export interface Caller {
  /** The owner of the API key or of the linked message, or `operatorId`. Every query filters by it. */
  ownerId: string;
  /** Of a session: its key; if it was started by a sign-in link, the session itself. */
  keyId: string;
  /** Null for a caller without an API key: a link, the operator. */
  keyScope: KeyScope | null;
  /** Null for a caller without a session. */
  sessionId: string | null;
}

export interface Authenticator {
  /** Returns without a promise when the key is cached: this runs for every request. */
  authenticate(request: FastifyRequest): Caller | Promise<Caller>;
  /**
   * Drops a revoked key, with its sessions, or a session from the cache. Other processes accept it until their own entry expires
   * (`cacheMs`).
   */
  forget(id: string): void;
}

interface CachedCaller extends Caller {
  /** By `performance.now()`. */
  expiresAtMs: number;
}

const cacheMs = 3000;
const cacheSize = 10_000;

const refusedKey =
  `${problems.invalid_api_key.remedy} ` +
  `On the machine of the service, run: ${posthorn} keys create --user <address>`;

const anonymous: Caller = { ownerId: '', keyId: '', keyScope: null, sessionId: null };

/** The options of a route that needs no other config. */
export function withAccess<Schema extends FastifySchema>(access: Access, tags: string[], schema: Schema) {
  return { config: { access }, schema: { ...schema, tags } };
}

export function requireAccessRule(app: App): void {
  app.addHook('onRoute', (route) => {
    if (!route.config?.access) throw new Error(`${route.method} ${route.url} has no access rule`);
  });
}

/**
 * The scopes of the API keys that may use a route. `read` is for GET; anything else needs `full`, unless the route has `scopes`.
 * To open a route to `send` keys, add `scopes: ['full', 'send']` to its config (a GET: `['full', 'read', 'send']`). If
 * `request.keyScope` is `send`, its query must find only what was made with `request.keyId`.
 */
export function allowedScopes(config: FastifyContextConfig | undefined, method: string): readonly KeyScope[] {
  return config?.scopes ?? (method === 'GET' || method === 'HEAD' ? ['full', 'read'] : ['full']);
}

/** Before the handler, so that a stored response of an Idempotency-Key is not repeated to a key that may not request it. */
export function requireScope({ keyScope, method, routeOptions }: FastifyRequest): void {
  if (keyScope === null) return;
  const scopes = allowedScopes(routeOptions.config, method);
  if (!scopes.includes(keyScope)) throw refuseScope(keyScope, scopes);
}

export function refuseScope(keyScope: KeyScope, accepted: readonly KeyScope[]): Problem {
  const wanted = accepted.map((scope) => `\`${scope}\``).join(' or ');
  return new Problem('scope_insufficient', {
    detail: `The API key has the scope \`${keyScope}\`. Use a key with the scope ${wanted}.`,
  });
}

export function makeAuthenticator(parts: {
  sql: Pool;
  log: Log;
  links: Links;
  cookie: SessionCookie;
  config: Pick<Config, 'adminToken' | 'metricsToken'>;
}): Authenticator {
  const { sql, log, links, cookie, config } = parts;
  /** By key, or by the token of the session. */
  const cache = new Map<string, CachedCaller>();
  /** Many requests with one key or session come at once: one query serves them all. */
  const finding = new Map<string, Promise<Caller>>();

  function authenticate(request: FastifyRequest): Caller | Promise<Caller> {
    const { access } = request.routeOptions.config;
    switch (access) {
      case 'key':
      case 'key or link':
        if (access === 'key or link' && hasSignature(request)) return checkLink(request);
        return checkSession(request) ?? checkKey(request);
      case 'hook':
        return checkHook(request);
      case 'operator':
        return checkToken(request, config.adminToken);
      case 'metrics':
        return config.metricsToken ? checkToken(request, config.metricsToken) : anonymous;
      default:
        return anonymous;
    }
  }

  async function checkLink(request: FastifyRequest): Promise<Caller> {
    const { id = '' } = request.params as { id?: string };
    const { expires = '', signature = '' } = request.query as { expires?: unknown; signature?: unknown };
    if (typeof signature === 'string' && /[^\w-]/.test(signature)) {
      const message = '"signature" has a character that no signature has. Use the link as it was given.';
      throw new Problem('invalid_query', {
        errors: [{ pointer: '/signature', code: 'invalid_value', message }],
      });
    }
    if (!links.isValid(id.toLowerCase(), String(expires), String(signature), Date.now()))
      throw new Problem('invalid_link');
    return { ...anonymous, ownerId: await orNotFound(findMessageOwner(sql, id)) };
  }

  async function checkHook(request: FastifyRequest): Promise<Caller> {
    const { secret = '' } = request.params as { secret?: string };
    const provider = isHookSecret(secret) ? await findHookProvider(sql, hashToken(secret)) : undefined;
    if (!provider) throw new Problem('hook_refused');
    request.provider = provider;
    return { ...anonymous, ownerId: provider.ownerId };
  }

  function checkKey(request: FastifyRequest): Caller | Promise<Caller> {
    const key = readBearer(request, 'missing_api_key', 'invalid_api_key');
    // The checksum refuses a mistyped key without a database query.
    return findOnce(key, isApiKey, findKey, () => unauthorized('invalid_api_key', refusedKey));
  }

  /** Undefined for a request without a session. */
  function checkSession(request: FastifyRequest): Caller | Promise<Caller> | undefined {
    const token = cookie.read(request);
    if (token === undefined) return undefined;
    requireCsrfToken(request, token);
    return findOnce(token, isToken, findSession, () => unauthorized('invalid_session'));
  }

  function findOnce(
    secret: string,
    isWellFormed: (secret: string) => boolean,
    find: (secret: string) => Promise<CachedCaller | undefined>,
    refusal: () => Problem,
  ): Caller | Promise<Caller> {
    const cached = cache.get(secret);
    if (cached && cached.expiresAtMs > performance.now()) return cached;
    cache.delete(secret);
    if (!isWellFormed(secret)) throw refusal();
    const found = finding.get(secret) ?? findAndCache().finally(() => finding.delete(secret));
    finding.set(secret, found);
    return found;

    async function findAndCache(): Promise<Caller> {
      const caller = await find(secret);
      if (!caller) throw refusal();
      if (cache.size >= cacheSize) cache.delete(cache.keys().next().value as string);
      cache.set(secret, caller);
      return caller;
    }
  }

  async function findSession(token: string): Promise<CachedCaller | undefined> {
    const found = await findActiveSession(sql, token);
    if (!found) return undefined;
    const { id: sessionId, ownerId, scope: keyScope } = found;
    if (found.stale) {
      touchSession(sql, ownerId, sessionId).catch((err) =>
        log.warn({ err, sessionId }, 'last_used_at of a session was not updated'),
      );
    }
    const caller = { ownerId, keyId: found.keyId ?? sessionId, keyScope, sessionId };
    return { ...caller, expiresAtMs: cacheUntil(found.expiresIn) };
  }

  async function findKey(key: string): Promise<CachedCaller | undefined> {
    const found = await findActiveKey(sql, hashApiKey(key));
    if (!found) return undefined;
    if (found.stale) {
      touchApiKey(sql, found.ownerId, found.id).catch((err) =>
        log.warn({ err, keyId: found.id }, 'last_used_at of an API key was not updated'),
      );
    }
    const { id: keyId, ownerId, scope: keyScope } = found;
    return { ownerId, keyId, keyScope, sessionId: null, expiresAtMs: cacheUntil(found.expiresIn) };
  }

  function forget(id: string): void {
    for (const [secret, { keyId, sessionId }] of cache) {
      if (keyId === id || sessionId === id) cache.delete(secret);
    }
  }

  return { authenticate, forget };
}

function cacheUntil(expiresInSeconds: number | null): number {
  const lifetimeMs = expiresInSeconds === null ? cacheMs : expiresInSeconds * 1000;
  return performance.now() + Math.min(cacheMs, lifetimeMs);
}

function hasSignature(request: FastifyRequest): boolean {
  return (request.query as { signature?: unknown }).signature !== undefined;
}

function checkToken(request: FastifyRequest, token: string | null): Caller {
  const given = readBearer(request, 'missing_token', 'invalid_token');
  if (token === null || !areEqualSecrets(given, token)) throw unauthorized('invalid_token');
  return { ...anonymous, ownerId: operatorId, keyId: operatorId };
}

function readBearer(request: FastifyRequest, missing: ProblemCode, malformed: ProblemCode): string {
  const header = request.headers.authorization;
  if (header === undefined || header === '') throw unauthorized(missing);
  if (/^bearer *$/i.test(header))
    throw unauthorized(malformed, 'The header has nothing after `Bearer`. Is the shell variable empty?');
  const match = /^bearer +([^\s]+) *$/i.exec(header);
  if (!match?.[1])
    throw unauthorized(malformed, 'Send the header as `Authorization: Bearer <key or token>`.');
  return match[1];
}

function unauthorized(code: ProblemCode, detail?: string): Problem {
  return new Problem(code, { ...(detail ? { detail } : {}), headers: { 'www-authenticate': 'Bearer' } });
}

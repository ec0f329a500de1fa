/**
 * Idempotency-Key on POST: the first 2xx response is repeated for 24 hours. The effect and its stored response are committed
 * in one transaction, so a crash cannot make the effect happen twice. Stored responses are encrypted: some contain a secret.
 */
import { createHash } from 'node:crypto';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { type Pool, type Sql, transaction } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import type { Sealer } from '../lib/secrets.ts';
import { Problem } from '../problems.ts';
import {
  clearInProgress,
  findResponse,
  lockKey,
  markInProgress,
  renewInProgress,
  saveResponse,
} from '../store/idempotency.ts';

export interface PostParts {
  sql: Pool;
  sealer: Sealer;
  log: Log;
  /** Prefix of `Location`: the public URL, if it is set, and the base path. The Host header is never trusted. */
  baseUrl: string;
  /** How often a request in progress says so again. Default: three times before the mark expires. */
  renewMs?: number;
}

const usualRenewMs = 20_000;

export type PostResponse<Body> = {
  status: 200 | 201 | 202;
  /** The path of the created resource, without `baseUrl`. */
  location?: string;
} & ({ body: Body } | { /** JSON, for a route with `jsonText`. */ text: string });

/**
 * Runs the effect of a POST, or repeats the stored response. The effect must use the `sql` it is given: a transaction, or for a
 * request without an Idempotency-Key the pool. With the pool the effect must have committed when it resolves, because the response is
 * sent then.
 */
export async function respondOnce<Body>(
  parts: PostParts,
  request: FastifyRequest,
  reply: FastifyReply,
  effect: (sql: Sql) => Promise<PostResponse<Body>>,
): Promise<void> {
  const record = openRecord(parts, request);
  if (!record) return send(reply, serialize(parts, reply, await effect(parts.sql)));
  const response = await transaction(
    parts.sql,
    async (sql) => (await record.find(sql)) ?? record.save(sql, serialize(parts, reply, await effect(sql))),
  );
  send(reply, response);
}

/**
 * The same for a POST that first does slow work outside the database, such as calling a webhook. No transaction is open
 * during that work; a committed row marks the key as in progress, and is renewed as long as the work lasts.
 */
export async function actAndRespondOnce<Result, Body>(
  parts: PostParts,
  request: FastifyRequest,
  reply: FastifyReply,
  act: () => Promise<Result>,
  effect: (sql: Sql, result: Result) => Promise<PostResponse<Body>>,
): Promise<void> {
  const record = openRecord(parts, request);
  if (!record) {
    const result = await act();
    // The effect has committed when it resolves: the response follows the commit.
    return send(reply, serialize(parts, reply, await effect(parts.sql, result)));
  }

  const stored = await transaction(parts.sql, async (sql) => {
    const found = await record.find(sql);
    if (!found) await record.markInProgress(sql);
    return found;
  });
  if (stored) return send(reply, stored);
  const renewing = setInterval(() => {
    record.renew(parts.sql).catch((err) => parts.log.warn({ err }, 'an Idempotency-Key was not renewed'));
  }, parts.renewMs ?? usualRenewMs);
  try {
    const result = await act();
    const response = await transaction(parts.sql, async (sql) =>
      record.save(sql, serialize(parts, reply, await effect(sql, result))),
    );
    // The transaction is committed: the response follows the commit.
    send(reply, response);
  } catch (error) {
    await record.release(parts.sql).catch((err) => {
      parts.log.warn({ err }, 'an Idempotency-Key was not released: it answers 409 for up to a minute');
    });
    throw error;
  } finally {
    clearInterval(renewing);
  }
}

interface SerializedResponse {
  status: number;
  location: string | null;
  text: string;
  /** An earlier request with the same key stored this response. */
  isStored: boolean;
}

/** The stored response of one Idempotency-Key; undefined for a request without a key. */
function openRecord({ sealer }: PostParts, request: FastifyRequest) {
  const key = request.headers['idempotency-key'];
  if (key === undefined) return undefined;
  if (typeof key !== 'string' || !/^[\x21-\x7e]{1,255}$/.test(key)) {
    throw new Problem('invalid_header', {
      detail:
        'Idempotency-Key must have 1 to 255 printable ASCII characters and no spaces. Use a UUID, for example.',
    });
  }
  // A request line in absolute form (RFC 9112 §3.2.2) has a host too, which must not be part of the scope or the hash.
  const { pathname, search } = new URL(request.url, 'http://localhost');
  // Lower case: the ids in a path are case-insensitive.
  // A key that only sends must not get the response to a request of another key, which it may not read.
  const own = request.keyScope === 'send' ? `${request.keyId} ${key}` : key;
  const scope = { ownerId: request.ownerId, path: pathname.toLowerCase(), key: own };
  const requestHash = hashRequest(request, `${pathname}${search}`);
  const context = `idempotency ${scope.ownerId} ${scope.path} ${scope.key}`;

  /** Locks the key until the transaction ends. */
  async function find(sql: Sql): Promise<SerializedResponse | undefined> {
    if (!(await lockKey(sql, scope))) throw new Problem('idempotency_in_progress');
    const stored = await findResponse(sql, scope);
    if (!stored) return undefined;
    if (!stored.requestHash.equals(requestHash)) throw new Problem('idempotency_mismatch');
    if (stored.status === null) throw new Problem('idempotency_in_progress');
    const { status, location, body } = stored;
    return { status, location, text: sealer.open(body, context), isStored: true };
  }

  async function save(sql: Sql, response: SerializedResponse): Promise<SerializedResponse> {
    const { status, location, text } = response;
    await saveResponse(sql, scope, { requestHash, status, location, body: sealer.seal(text, context) });
    return response;
  }

  return {
    find,
    save,
    markInProgress: (sql: Sql) => markInProgress(sql, scope, requestHash),
    renew: (sql: Sql) => renewInProgress(sql, scope),
    release: (sql: Sql) => clearInProgress(sql, scope),
  };
}

function serialize<Body>(
  { baseUrl }: PostParts,
  reply: FastifyReply,
  response: PostResponse<Body>,
): SerializedResponse {
  const { status, location } = response;
  const text = 'text' in response ? response.text : String(reply.code(status).serialize(response.body));
  return { status, location: location ? `${baseUrl}${location}` : null, text, isStored: false };
}

function send(reply: FastifyReply, { status, location, text, isStored }: SerializedResponse): void {
  if (location) reply.header('location', location);
  if (isStored) reply.header('idempotent-replayed', 'true');
  reply.code(status).type('application/json; charset=utf-8').send(text);
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Of a body that a worker thread parsed: `body` is only a part of it. */
    bodyHash?: Uint8Array;
  }
}

function readBodyHash({ bodyHash, body }: FastifyRequest): Uint8Array | string {
  return bodyHash ?? (Buffer.isBuffer(body) ? body : JSON.stringify(body ?? null));
}

function hashRequest(request: FastifyRequest, pathAndQuery: string): Buffer {
  return (
    createHash('sha256')
      .update(pathAndQuery)
      .update('\n')
      // X-Recipient adds recipients, so another value is another request.
      .update(String(request.headers['x-recipient'] ?? ''))
      .update('\n')
      .update(readBodyHash(request))
      .digest()
  );
}

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
  findAnswer,
  forgetUnderWay,
  holdKey,
  type IdempotencyScope,
  keepAnswer,
  markUnderWay,
} from '../store/idempotency.ts';

export interface PostParts {
  sql: Pool;
  sealer: Sealer;
  log: Log;
  /** Prefix of `Location`: the public URL, if it is set, and the base path. The Host header is never trusted. */
  baseUrl: string;
}

export interface PostResponse<Body> {
  status: 200 | 201 | 202;
  /** The path of the created resource, without `baseUrl`. */
  location?: string;
  body: Body;
}

/** Runs the effect of a POST, or repeats the stored response. The effect must use the `sql` it is given. */
export async function respondOnce<Body>(
  parts: PostParts,
  request: FastifyRequest,
  reply: FastifyReply,
  effect: (sql: Sql) => Promise<PostResponse<Body>>,
): Promise<void> {
  const scope = readScope(request);
  if (!scope) return send(reply, serialize(parts, reply, await effect(parts.sql)));
  const response = await transaction(parts.sql, async (sql) => {
    const stored = await findStored(parts, sql, scope, request);
    return stored ?? store(parts, sql, scope, request, serialize(parts, reply, await effect(sql)));
  });
  send(reply, response);
}

/**
 * The same for a POST that first does slow work outside the database, such as calling a webhook. No transaction is open
 * meanwhile; a committed row marks the key as in progress.
 */
export async function actAndRespondOnce<Result, Body>(
  parts: PostParts,
  request: FastifyRequest,
  reply: FastifyReply,
  act: () => Promise<Result>,
  effect: (sql: Sql, result: Result) => Promise<PostResponse<Body>>,
): Promise<void> {
  const scope = readScope(request);
  if (!scope) {
    const result = await act();
    return respondOnce(parts, request, reply, (sql) => effect(sql, result));
  }

  const stored = await transaction(parts.sql, async (sql) => {
    const found = await findStored(parts, sql, scope, request);
    if (!found) await markUnderWay(sql, scope, hashRequest(request));
    return found;
  });
  if (stored) return send(reply, stored);
  try {
    const result = await act();
    const response = await transaction(parts.sql, async (sql) =>
      store(parts, sql, scope, request, serialize(parts, reply, await effect(sql, result))),
    );
    send(reply, response);
  } catch (error) {
    await forgetUnderWay(parts.sql, scope).catch((err) => {
      parts.log.warn({ err }, 'an Idempotency-Key was not released: it answers 409 for up to a minute');
    });
    throw error;
  }
}

interface SerializedResponse {
  status: number;
  location: string | null;
  text: string;
  replayed: boolean;
}

/** Locks the key until the transaction ends. */
async function findStored(
  { sealer }: PostParts,
  sql: Sql,
  scope: IdempotencyScope,
  request: FastifyRequest,
): Promise<SerializedResponse | undefined> {
  if (!(await holdKey(sql, scope))) throw new Problem('idempotency_in_progress');
  const stored = await findAnswer(sql, scope);
  if (!stored) return undefined;
  if (!stored.requestHash.equals(hashRequest(request))) throw new Problem('idempotency_mismatch');
  if (stored.status === null) throw new Problem('idempotency_in_progress');
  const { status, location, body } = stored;
  return { status, location, text: sealer.open(body, contextOf(scope)), replayed: true };
}

function serialize<Body>(
  { baseUrl }: PostParts,
  reply: FastifyReply,
  { status, location, body }: PostResponse<Body>,
): SerializedResponse {
  const text = String(reply.code(status).serialize(body));
  return { status, location: location ? `${baseUrl}${location}` : null, text, replayed: false };
}

async function store(
  { sealer }: PostParts,
  sql: Sql,
  scope: IdempotencyScope,
  request: FastifyRequest,
  response: SerializedResponse,
): Promise<SerializedResponse> {
  const { status, location, text } = response;
  const body = sealer.seal(text, contextOf(scope));
  await keepAnswer(sql, scope, { requestHash: hashRequest(request), status, location, body });
  return response;
}

function send(reply: FastifyReply, { status, location, text, replayed }: SerializedResponse): void {
  if (location) reply.header('location', location);
  if (replayed) reply.header('idempotent-replayed', 'true');
  reply.code(status).type('application/json; charset=utf-8').send(text);
}

function readScope(request: FastifyRequest): IdempotencyScope | undefined {
  const key = request.headers['idempotency-key'];
  if (key === undefined) return undefined;
  if (typeof key !== 'string' || !/^[\x21-\x7e]{1,255}$/.test(key)) {
    throw new Problem('invalid_header', {
      detail:
        'Idempotency-Key must have 1 to 255 printable ASCII characters and no spaces. Use a UUID, for example.',
    });
  }
  // Lower case: the ids in a path are case-insensitive.
  return { ownerId: request.ownerId, path: parseUrl(request).pathname.toLowerCase(), key };
}

/** A request line in absolute form (RFC 9112 §3.2.2) also has a host; the host must not be part of the scope or the hash. */
function parseUrl(request: FastifyRequest): URL {
  return new URL(request.url, 'http://localhost');
}

function hashRequest(request: FastifyRequest): Buffer {
  const { pathname, search } = parseUrl(request);
  return (
    createHash('sha256')
      .update(`${pathname}${search}`)
      .update('\n')
      // X-Recipient adds recipients, so another value is another request.
      .update(String(request.headers['x-recipient'] ?? ''))
      .update('\n')
      .update(Buffer.isBuffer(request.body) ? request.body : JSON.stringify(request.body ?? null))
      .digest()
  );
}

function contextOf({ ownerId, path, key }: IdempotencyScope): string {
  return `idempotency ${ownerId} ${path} ${key}`;
}

/**
 * Idempotency-Key on POST: the first 2xx answer is replayed for 24 hours. Effect and kept answer are committed in one
 * transaction, so a crash between them cannot make the effect happen twice. Answers are kept encrypted: some hold a
 * secret.
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

export interface AnswerParts {
  sql: Pool;
  sealer: Sealer;
  log: Log;
  /** What `Location` begins with: the public URL, or nothing, and the base path. The Host header is never trusted. */
  baseUrl: string;
}

export interface Answer<Body> {
  status: 200 | 201 | 202;
  /** Where what was made is found: a path of this API. */
  location?: string;
  body: Body;
}

/** Runs the effect of a POST, or answers what it answered before. The effect uses the `sql` it is given. */
export async function answerOnce<Body>(
  parts: AnswerParts,
  request: FastifyRequest,
  reply: FastifyReply,
  effect: (sql: Sql) => Promise<Answer<Body>>,
): Promise<void> {
  const scope = readScope(request);
  if (!scope) {
    const answer = await effect(parts.sql);
    if (answer.location) reply.header('location', `${parts.baseUrl}${answer.location}`);
    reply.code(answer.status).send(answer.body);
    return;
  }

  const kept = await transaction(parts.sql, async (sql) => {
    const earlier = await findEarlier(parts, sql, scope, request);
    return earlier ?? keep(parts, sql, scope, request, reply, await effect(sql));
  });
  send(reply, kept);
}

/**
 * The same for a POST that first acts on the world outside, such as one that calls a webhook: no transaction is open while it
 * does; a committed mark says that it is under way.
 */
export async function actAndAnswerOnce<Result, Body>(
  parts: AnswerParts,
  request: FastifyRequest,
  reply: FastifyReply,
  act: () => Promise<Result>,
  effect: (sql: Sql, result: Result) => Promise<Answer<Body>>,
): Promise<void> {
  const scope = readScope(request);
  if (!scope) {
    const result = await act();
    return answerOnce(parts, request, reply, (sql) => effect(sql, result));
  }

  const earlier = await transaction(parts.sql, async (sql) => {
    const found = await findEarlier(parts, sql, scope, request);
    if (!found) await markUnderWay(sql, scope, hashRequest(request));
    return found;
  });
  if (earlier) return send(reply, earlier);
  try {
    const result = await act();
    const kept = await transaction(parts.sql, async (sql) =>
      keep(parts, sql, scope, request, reply, await effect(sql, result)),
    );
    send(reply, kept);
  } catch (error) {
    await forgetUnderWay(parts.sql, scope).catch((err) => {
      parts.log.warn({ err }, 'a request that failed stays marked as under way for a minute');
    });
    throw error;
  }
}

interface Kept {
  status: number;
  location: string | null;
  text: string;
  replayed: boolean;
}

/** Holds the key until the transaction ends, and opens what is kept under it. */
async function findEarlier(
  { sealer }: AnswerParts,
  sql: Sql,
  scope: IdempotencyScope,
  request: FastifyRequest,
): Promise<Kept | undefined> {
  if (!(await holdKey(sql, scope))) throw new Problem('idempotency_in_progress');
  const earlier = await findAnswer(sql, scope);
  if (!earlier) return undefined;
  if (!earlier.requestHash.equals(hashRequest(request))) throw new Problem('idempotency_mismatch');
  if (earlier.status === null) throw new Problem('idempotency_in_progress');
  const { status, location, body } = earlier;
  return { status, location, text: sealer.open(body, contextOf(scope)), replayed: true };
}

async function keep<Body>(
  { sealer, baseUrl }: AnswerParts,
  sql: Sql,
  scope: IdempotencyScope,
  request: FastifyRequest,
  reply: FastifyReply,
  answer: Answer<Body>,
): Promise<Kept> {
  const { status } = answer;
  const location = answer.location === undefined ? null : `${baseUrl}${answer.location}`;
  const text = String(reply.code(status).serialize(answer.body));
  const body = sealer.seal(text, contextOf(scope));
  await keepAnswer(sql, scope, { requestHash: hashRequest(request), status, location, body });
  return { status, location, text, replayed: false };
}

function send(reply: FastifyReply, { status, location, text, replayed }: Kept): void {
  if (location) reply.header('location', location);
  if (replayed) reply.header('idempotent-replayed', 'true');
  reply.code(status).type('application/json; charset=utf-8').send(text);
}

function readScope(request: FastifyRequest): IdempotencyScope | undefined {
  const key = readKey(request);
  if (key === undefined) return undefined;
  // Ids have one spelling, as everywhere.
  return { ownerId: request.ownerId, path: readTarget(request).pathname.toLowerCase(), key };
}

/** A request line in absolute form names a host besides, of any length, which says nothing here. */
function readTarget(request: FastifyRequest): URL {
  return new URL(request.url, 'http://localhost');
}

function readKey(request: FastifyRequest): string | undefined {
  const key = request.headers['idempotency-key'];
  if (key === undefined) return undefined;
  if (typeof key === 'string' && /^[\x21-\x7e]{1,255}$/.test(key)) return key;
  throw new Problem('invalid_header', {
    detail: 'Idempotency-Key takes 1 to 255 printable ASCII characters without spaces, for example a UUID.',
  });
}

function hashRequest(request: FastifyRequest): Buffer {
  const { pathname, search } = readTarget(request);
  return (
    createHash('sha256')
      .update(`${pathname}${search}`)
      .update('\n')
      // The one header that says what a request is about: to whom a message goes.
      .update(String(request.headers['x-recipient'] ?? ''))
      .update('\n')
      .update(Buffer.isBuffer(request.body) ? request.body : JSON.stringify(request.body ?? null))
      .digest()
  );
}

function contextOf({ ownerId, path, key }: IdempotencyScope): string {
  return `idempotency ${ownerId} ${path} ${key}`;
}

/**
 * Idempotency-Key on POST: the first 2xx answer is replayed for 24 hours. Effect and kept answer are committed in one
 * transaction, so a crash between them cannot make the effect happen twice. Answers are kept encrypted: some hold a
 * secret.
 */
import { createHash } from 'node:crypto';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { type Sql, transaction } from '../db/client.ts';
import { Problem } from '../problems.ts';
import { findAnswer, holdKey, type IdempotencyScope, keepAnswer } from '../store/idempotency.ts';
import type { Services } from './services.ts';

export interface Answer<Body> {
  status: 200 | 201 | 202;
  location?: string;
  body: Body;
}

/** Runs the effect of a POST, or answers what it answered before. The effect uses the `sql` it is given. */
export async function answerOnce<Body>(
  services: Services,
  request: FastifyRequest,
  reply: FastifyReply,
  effect: (sql: Sql) => Promise<Answer<Body>>,
): Promise<void> {
  const key = readKey(request);
  if (key === undefined) {
    const answer = await effect(services.sql);
    if (answer.location) reply.header('location', answer.location);
    reply.code(answer.status).send(answer.body);
    return;
  }

  const [path = ''] = request.url.split('?', 1);
  const scope = { ownerId: request.ownerId, path, key };
  const kept = await transaction(services.sql, async (sql) => {
    if (!(await holdKey(sql, scope))) throw new Problem('idempotency_in_progress');
    const requestHash = hashRequest(request);
    const earlier = await findAnswer(sql, scope);
    if (earlier && !earlier.requestHash.equals(requestHash)) throw new Problem('idempotency_mismatch');
    if (earlier) {
      reply.header('idempotent-replayed', 'true');
      return { ...earlier, text: services.sealer.open(earlier.body, contextOf(scope)) };
    }
    const answer = await effect(sql);
    const text = String(reply.code(answer.status).serialize(answer.body));
    const location = answer.location ?? null;
    const body = services.sealer.seal(text, contextOf(scope));
    await keepAnswer(sql, scope, { requestHash, status: answer.status, location, body });
    return { status: answer.status, location, text };
  });
  if (kept.location) reply.header('location', kept.location);
  reply.code(kept.status).type('application/json; charset=utf-8').send(kept.text);
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
  return createHash('sha256')
    .update(request.url)
    .update('\n')
    .update(JSON.stringify(request.body ?? null))
    .digest();
}

function contextOf({ ownerId, path, key }: IdempotencyScope): string {
  return `idempotency ${ownerId} ${path} ${key}`;
}

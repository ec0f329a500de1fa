/** Sends a sample event to a webhook: one try, by the process that got the request, without retries or replays. */
import type { Span } from '@opentelemetry/api';
import { type SampledEvent, samples } from '../contract/sample.ts';
import type { Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { Tracer } from '../lib/tracing.ts';
import { type Attempt, listAttempts, recordTestTry } from '../store/deliveries.ts';
import type { TryResult } from '../store/delivery-queue.ts';
import { readTargets } from '../store/targets.ts';
import { findWebhook, type Webhook } from '../store/webhooks.ts';
import { buildBody } from './bodies.ts';
import { decide } from './decide.ts';
import type { Poster } from './post.ts';
import { traceTry } from './trace.ts';
import { openTarget, postSigned, toResult } from './try.ts';

interface TestTry {
  webhook: Webhook;
  event: { id: string; event: string; data: string };
  result: TryResult;
}

/** One POST, also to a disabled webhook; undefined when the owner has no webhook with this id. */
export async function tryWebhook(
  parts: { sql: Sql; sealer: Sealer; poster: Poster; userAgent: string; tracer: Tracer | null },
  ownerId: string,
  webhookId: string,
  name: SampledEvent,
  requestSpan?: Span,
): Promise<TestTry | undefined> {
  const webhook = await findWebhook(parts.sql, ownerId, webhookId);
  const [target] = webhook ? await readTargets(parts.sql, [webhookId]) : [];
  if (!webhook || !target) return undefined;
  const event = { id: newId(), event: name, data: JSON.stringify(samples[name]()) };
  const body = buildBody(event.event, event.data);
  const trace = parts.tracer && traceTry(parts.tracer, event.id, requestSpan);
  const signing = openTarget(target, parts.sealer);
  const outcome = await postSigned(parts, { target: signing, eventId: event.id, body }, trace?.headers);
  const decision = decide(outcome, { tries: 0 }, [], new Date(), Math.random);
  trace?.end({ eventId: event.id, tries: 0 }, signing, outcome, decision);
  return { webhook, event, result: toResult(outcome, decision) };
}

/** Writes the event, its delivery and its attempt after the try. */
export async function keepTestTry(
  sql: Sql,
  ownerId: string,
  { webhook, event, result }: TestTry,
): Promise<{ delivered: boolean; attempt: Attempt }> {
  const deliveryId = await recordTestTry(sql, ownerId, webhook, event, result);
  const [attempt] = await listAttempts(sql, ownerId, deliveryId);
  if (!attempt) throw new Error('The attempt of a test was recorded, but cannot be read');
  return { delivered: result.status === 'delivered', attempt };
}

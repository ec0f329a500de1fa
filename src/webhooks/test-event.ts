/**
 * A sample event, tried once by the process that was asked, and kept like any other: an event, a delivery, an attempt,
 * written when the try is over. It is never retried or replayed.
 */
import type { Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Sealer } from '../lib/secrets.ts';
import { type Attempt, listAttempts, recordTestTry } from '../store/deliveries.ts';
import { readTargets } from '../store/targets.ts';
import { findWebhook } from '../store/webhooks.ts';
import { buildBody } from './bodies.ts';
import { decide } from './decide.ts';
import type { Poster } from './post.ts';
import { sampleData } from './sample.ts';
import { openTarget, postSigned, toResult } from './try.ts';

export async function tryWebhook(
  parts: { sql: Sql; sealer: Sealer; poster: Poster; userAgent: string },
  ownerId: string,
  webhookId: string,
): Promise<{ delivered: boolean; attempt: Attempt } | undefined> {
  const { sql } = parts;
  const webhook = await findWebhook(sql, ownerId, webhookId);
  const [target] = webhook ? await readTargets(sql, [webhookId]) : [];
  if (!webhook || !target) return undefined;

  const event = { id: newId(), event: 'message.received', data: JSON.stringify(sampleData()) };
  const body = buildBody(event.event, event.data);
  const outcome = await postSigned(parts, openTarget(target, parts.sealer), { id: event.id, body });
  const verdict = decide(outcome, { tries: 0 }, [], new Date(), Math.random);
  const deliveryId = await recordTestTry(sql, ownerId, webhook, event, toResult(outcome, verdict));
  const [attempt] = await listAttempts(sql, ownerId, deliveryId);
  if (!attempt) throw new Error('A test try was recorded and is not there');
  return { delivered: verdict.status === 'delivered', attempt };
}

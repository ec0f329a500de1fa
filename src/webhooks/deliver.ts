/**
 * The queue of deliveries: claim → sign → post → decide → record. Each webhook is a lane, so a dead webhook delays no other; the
 * webhooks of an owner are a group, so no owner delays another. `queue/worker.ts` has the loop and its guarantees; this
 * file says what a delivery is.
 */
import { isUnavailable, type Pool } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import type { Loop } from '../lib/loop.ts';
import type { Metrics } from '../lib/metrics.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { Tracer } from '../lib/tracing.ts';
import type { LaneLimits } from '../queue/lanes.ts';
import { type JobOutcome, type Preparation, QueueWorker } from '../queue/worker.ts';
import {
  type ClaimedDelivery,
  cancelDeliveries,
  claimDeliveries,
  promoteDue,
  recordTries,
  releaseLeases,
  renewLeases,
  type TriedDelivery,
  type TryResult,
} from '../store/delivery-queue.ts';
import type { ReadEvent } from '../store/events.ts';
import { holdDeliveries } from '../store/held.ts';
import { leaseSeconds } from '../store/queue-rows.ts';
import { Bodies, type CompleteData, maxSmallBytes } from './bodies.ts';
import { decide } from './decide.ts';
import { type TriedWebhook, WebhookHealth } from './health.ts';
import { KnownTargets } from './known-targets.ts';
import { maxTryMs, type Poster } from './post.ts';
import { traceTry } from './trace.ts';
import { postSigned, type SignedPost, toResult } from './try.ts';

export interface DeliveryParts {
  sql: Pool;
  sealer: Sealer;
  poster: Poster;
  completeData: CompleteData;
  scheduleSeconds: readonly number[];
  userAgent: string;
  log: Log;
  metrics: Metrics;
  tracer?: Tracer | null;
  limits?: LaneLimits;
  idleMs?: number | undefined;
}

export const deliveryLimits: LaneLimits = {
  perLane: 16,
  maxPerLane: 256,
  perProcess: 1024,
  maxWindow: 512,
  maxAhead: 2048,
  breakerFailures: 10,
  breakerPauseMs: 1000,
  maxBreakerPauseMs: 60_000,
};

type PreparedPost = SignedPost & Preparation;
type Outcome = TriedDelivery & TriedWebhook & JobOutcome & { eventId: string };

/** Places for deliveries that do not exist yet. Disposing of it gives back those that no adopted delivery has taken. */
interface DeliveryOffer extends Disposable {
  token: string;
  /** The deliveries of the new event to these webhooks may be created under a lease with the token. */
  webhookIds: readonly string[];
  /** Call this only after the event and the deliveries are committed: it starts the tries. */
  adopt(
    event: ReadEvent & { ownerId: string },
    deliveries: readonly { id: string; webhookId: string }[],
  ): void;
}

interface DeliveryLoop extends Loop {
  /** There are new deliveries of these webhooks; undefined: of any webhooks. */
  wake(webhookIds?: readonly string[]): void;
  pollNow(): void;
  /** Which of these webhooks could get a new event with a body of about so many bytes at once; undefined: none. */
  offer(webhookIds: readonly string[], bytes: number): DeliveryOffer | undefined;
}

export function startDelivery(parts: DeliveryParts): DeliveryLoop {
  const { sql, poster, log, metrics, limits = deliveryLimits } = parts;
  const targets = new KnownTargets(parts);
  const bodies = new Bodies(parts);
  const health = new WebhookHealth(sql, (reason, webhookIds) => {
    metrics.webhooksDisabled.inc({ reason }, webhookIds.length);
    for (const webhookId of webhookIds) log.warn({ webhookId, reason }, 'webhook disabled');
  });
  const worker = new QueueWorker<ClaimedDelivery, PreparedPost, Outcome>({
    name: 'deliveries',
    idleMs: parts.idleMs,
    limits,
    leaseMs: leaseSeconds * 1000,
    maxTryMs,
    laneOf: ({ webhookId }) => webhookId,
    groupOf: ({ ownerId }) => ownerId,
    skippedLanes: (nowMs) => targets.skipped(nowMs),
    claim: (request) => claimDeliveries(sql, request),
    renew: (leases) => renewLeases(sql, leases),
    release: (leases) => releaseLeases(sql, leases),
    hold: (leases) => holdDeliveries(sql, leases),
    cancel: (leases) => cancelDeliveries(sql, leases),
    promote: () => promoteDue(sql),
    prefetch: (deliveries, webhookIds) =>
      Promise.all([
        targets.readAll(webhookIds, performance.now()),
        bodies.prefetch(deliveries.map(({ eventId }) => eventId)),
      ]),
    prepare(delivery, leaseEnd) {
      const target = targets.recent(delivery.webhookId, performance.now())?.target;
      const body = bodies.get(delivery.eventId);
      if (typeof target === 'object' && body) return { target, eventId: delivery.eventId, body };
      return readPost(delivery, leaseEnd(), targets, bodies, parts);
    },
    tryOnce: (delivery, post, claimedAt) => signAndPost(parts, delivery, post, claimedAt),
    abort: () => poster.close(),
    record: (tried) => recordTries(sql, tried),
    afterRecord(tried, persist) {
      for (const one of tried) if (one.status !== 'pending') noteEnd(parts, one);
      return health.note(tried, persist);
    },
    gauges: { running: metrics.underWay, pausedLanes: metrics.pausedWebhooks },
    isUnavailable,
    log,
  });

  function offer(webhookIds: readonly string[], bytes: number): DeliveryOffer | undefined {
    // A large body is read when memory is free for it.
    if (bytes > maxSmallBytes) return undefined;
    const nowMs = performance.now();
    const places = worker.offer(webhookIds.filter((id) => targets.isCallable(id, nowMs)));
    if (!places) return undefined;
    const { token, laneKeys } = places;
    return {
      ...{ token, webhookIds: laneKeys },
      adopt(event, deliveries) {
        bodies.add(event);
        const { id: eventId, ownerId } = event;
        const untried = { token, eventId, ownerId, tries: 0, isNew: true, waitedSeconds: 0 };
        places.adopt(deliveries.map((delivery) => ({ ...delivery, ...untried })));
      },
      [Symbol.dispose]: () => places[Symbol.dispose](),
    };
  }

  return {
    wake: (webhookIds) => worker.wake(webhookIds),
    pollNow: () => worker.pollNow(),
    stop: () => worker.stop(),
    offer,
  };
}

/** What happens to the claimed deliveries of a webhook that must not be called. */
const withoutTarget = { disabled: 'hold', 'secret unreadable': 'release' } as const;

/** Reads a webhook that was last read more than a second ago, or a body that is large or not cached. */
async function readPost(
  { id, webhookId, eventId }: ClaimedDelivery,
  leaseEnd: AbortSignal,
  targets: KnownTargets,
  bodies: Bodies,
  { log, metrics }: DeliveryParts,
): Promise<PreparedPost | 'release' | 'hold' | 'cancel'> {
  const found = await targets.find(webhookId);
  if (typeof found === 'string') return withoutTarget[found];
  const loaded = await bodies.load(eventId, webhookId, leaseEnd);
  if (!loaded) {
    metrics.ended.inc({ outcome: 'cancelled' });
    log.info({ deliveryId: id, webhookId, eventId }, 'delivery cancelled: its event was deleted');
    return 'cancel';
  }
  // Again, because the webhook may have changed while a large body waited for memory.
  let target: Awaited<ReturnType<KnownTargets['find']>> | undefined;
  try {
    target = await targets.find(webhookId);
  } finally {
    if (typeof target !== 'object') loaded.done?.();
  }
  return typeof target === 'object' ? { target, eventId, ...loaded } : withoutTarget[target];
}

async function signAndPost(
  parts: DeliveryParts,
  delivery: ClaimedDelivery,
  post: PreparedPost,
  claimedAt: number,
): Promise<Outcome | null> {
  const { poster, metrics, tracer } = parts;
  const { id, token, tries } = delivery;
  const { target } = post;
  const startedAt = performance.now();
  if (delivery.isNew)
    metrics.firstTrySeconds.observe(delivery.waitedSeconds + (startedAt - claimedAt) / 1000);
  const trace = tracer && traceTry(tracer, delivery.eventId);
  const outcome = await postSigned(parts, post, trace?.headers);
  // The stop of this process ended the POST, which says nothing about the receiver.
  if (poster.isClosed) return null;
  const decision = decide(outcome, delivery, parts.scheduleSeconds, new Date(), Math.random);
  trace?.end(delivery, target, outcome, decision);
  const { gone, error } = decision;
  metrics.tries.inc({ outcome: error ?? 'delivered' });
  metrics.trySeconds.observe(outcome.durationMs / 1000);
  const result = toResult(outcome, decision);
  if (decision.waitSeconds !== null) logRetry(parts.log, delivery, result);
  const end = {
    isHealthy: error === null,
    asksForLess: error === 'rate_limited',
    ...(outcome.kind === 'response' ? { answerMs: outcome.answerMs } : {}),
  };
  return { id, token, tries, startedAt, ...result, target, gone, ...end, eventId: delivery.eventId };
}

function logRetry(log: Log, delivery: ClaimedDelivery, { error, errorDetail, waitSeconds }: TryResult): void {
  const { id: deliveryId, webhookId, eventId, tries } = delivery;
  const text = `delivery failed: ${errorDetail}; retry in ${Math.round(waitSeconds ?? 0)} s`;
  log.warn({ deliveryId, webhookId, eventId, tries: tries + 1, error }, text);
}

/** After the outcome is recorded: the mail log has one end for each delivery. */
function noteEnd({ log, metrics }: DeliveryParts, tried: Outcome): void {
  metrics.ended.inc({ outcome: tried.status });
  const { id: deliveryId, target, eventId, responseStatus: status, durationMs, error } = tried;
  const fields = { deliveryId, webhookId: target.id, eventId, tries: tried.tries + 1, status, durationMs };
  if (error === null) log.info(fields, 'delivered');
  else log.warn({ ...fields, error }, `delivery given up: ${tried.errorDetail}`);
}

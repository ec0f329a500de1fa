/**
 * The delivery loop: claim → sign → post → decide → record. Guarantees: at least once; a delivery has one try at a time,
 * under a lease that is renewed while it lasts; no transaction is open during a POST; what a killed process had claimed is
 * claimable again when its lease runs out. Any number of processes may run it on one database.
 */
import { randomUUID } from 'node:crypto';
import { isUnavailable, type Pool } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import { startLoop } from '../lib/loop.ts';
import type { Metrics } from '../lib/metrics.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { Tracer } from '../lib/tracing.ts';
import {
  type ClaimedDelivery,
  cancelDeliveries,
  claimDeliveries,
  type Lease,
  leaseSeconds,
  promoteDue,
  recordTries,
  releaseLeases,
  renewLeases,
  type TriedDelivery,
} from '../store/deliveries.ts';
import { Bodies, type LentBody, type TellData } from './bodies.ts';
import { type Decision, decide } from './decide.ts';
import { type TriedWebhook, WebhookHealth } from './health.ts';
import { KnownTargets } from './known-targets.ts';
import { type LaneLimits, Lanes } from './lanes.ts';
import { maxTryMs, type Poster, type PostOutcome } from './post.ts';
import { Recorder } from './recorder.ts';
import { traceTry } from './trace.ts';
import { postSigned, type SigningTarget, toResult } from './try.ts';

export interface DeliveryParts {
  sql: Pool;
  sealer: Sealer;
  poster: Poster;
  tellData: TellData;
  scheduleSeconds: readonly number[];
  userAgent: string;
  log: Log;
  metrics: Metrics;
  tracer?: Tracer | null;
  limits?: LaneLimits;
}

export const deliveryLimits: LaneLimits = {
  perLane: 16,
  perProcess: 1024,
  maxWindow: 512,
  maxAhead: 2048,
  breakerFailures: 10,
  breakerPauseMs: 1000,
  maxBreakerPauseMs: 60_000,
};

export interface DeliveryLoop {
  /** Something may be ready: look now. */
  wake(): void;
  /** Finishes tries under way, gives back the rest within `drainMs`, and records what is known. */
  stop(): Promise<void>;
}

const claimPollMs = 1000;
const promotePollMs = 500;
const renewMs = 1500;
/** No try begins under a lease that could end before the try does, should it not be renewed. */
const safeLeaseMs = leaseSeconds * 1000 - maxTryMs;
const drainMs = 10_000;
/** Beyond so many that wait to be recorded, nothing more is claimed: what is lost here would be sent again. */
const maxUnrecorded = 5000;
const maxWebhooksPerClaim = 64;
const firstUuid = '00000000-0000-0000-0000-000000000000';

export function startDelivery(parts: DeliveryParts): DeliveryLoop {
  const { sql, poster, log, metrics, tracer = null } = parts;
  const limits = parts.limits ?? deliveryLimits;
  const lanes = new Lanes<ClaimedDelivery>(limits, ({ webhookId }) => webhookId);
  const bodies = new Bodies(parts);
  const targets = new KnownTargets(parts);
  /** Everything claimed here and not yet recorded, and when its lease was last renewed. */
  const leases = new Map<string, Lease & { leasedAt: number }>();
  const health = new WebhookHealth(sql);
  const recorder = new Recorder<TriedDelivery & TriedWebhook>({
    name: 'deliveries',
    record: (tried) => recordTries(sql, tried),
    afterRecord: (tried, persist) => health.note(tried, persist),
    onRecorded: forget,
    isUnavailable,
    log,
  });
  let after = firstUuid;
  /** The last walk over the webhooks ended for want of room. */
  let unfinished = false;
  let stopping = false;
  let cut = false;

  async function claim(): Promise<boolean> {
    metrics.parkedWebhooks.set(lanes.parkedCount);
    if (stopping || recorder.waiting > maxUnrecorded) return false;
    unfinished = !lanes.hasRoom();
    if (unfinished) return false;
    const askedAt = performance.now();
    const allowances = lanes.allowances(askedAt);
    for (const id of targets.passedOver(askedAt)) allowances.set(id, 0);
    const claimed = await claimDeliveries(sql, {
      token: randomUUID(),
      after,
      allowances,
      allowance: limits.perLane,
      maxWebhooks: maxWebhooksPerClaim,
    });
    // Our own lease ran out while its try is still under way: it goes on.
    const fresh = claimed.filter(({ id }) => !leases.has(id));
    for (const { id, token } of fresh) leases.set(id, { id, token, leasedAt: askedAt });
    const webhookIds = [...new Set(fresh.map(({ webhookId }) => webhookId))].sort();
    // The end of the walk: begin again with the first webhook.
    const wrapped = fresh.length === 0 && after !== firstUuid;
    after = webhookIds.at(-1) ?? firstUuid;
    if (fresh.length === 0) return wrapped;
    await fetchAhead(fresh, webhookIds, askedAt);
    if (stopping) {
      await giveBack(fresh);
      return false;
    }
    giveBack(lanes.fill(fresh, allowances, askedAt, performance.now()));
    tryNext();
    unfinished = !lanes.hasRoom();
    return !unfinished;
  }

  /** What most tries will need, each webhook and each event once. What is missing then is read when it is tried. */
  async function fetchAhead(claimed: ClaimedDelivery[], webhookIds: string[], nowMs: number): Promise<void> {
    try {
      await Promise.all([
        targets.readAll(webhookIds, nowMs),
        bodies.prefetch(claimed.map(({ eventId }) => eventId)),
      ]);
    } catch (error) {
      giveBack(claimed);
      throw error;
    }
  }

  function tryNext(): void {
    for (let delivery = lanes.take(); delivery; delivery = lanes.take()) attempt(delivery);
    metrics.underWay.set(lanes.running);
  }

  function attempt(delivery: ClaimedDelivery): void {
    const target = targets.recent(delivery.webhookId, performance.now());
    const body = bodies.get(delivery.eventId);
    const trying = target && body ? send(delivery, target, body) : fetchAndSend(delivery);
    trying.catch((err) => log.error({ err, deliveryId: delivery.id }, 'a try broke off; its lease runs out'));
  }

  async function fetchAndSend(delivery: ClaimedDelivery): Promise<void> {
    const fetched = await fetchFor(delivery);
    if (fetched === 'wait') letWait(delivery);
    else if (fetched === 'gone') cancel(delivery);
    else await send(delivery, fetched.target, fetched.body).finally(fetched.done);
    tryNext();
  }

  /** Target and body, or why there is no try: the webhook is not to be called now, or the event is gone. */
  async function fetchFor(
    delivery: ClaimedDelivery,
  ): Promise<{ target: SigningTarget; body: Buffer; done(): void } | 'wait' | 'gone'> {
    const { webhookId, eventId } = delivery;
    let lent: LentBody | undefined;
    try {
      if (!(await readTarget(webhookId))) return 'wait';
      const kept = bodies.get(eventId);
      lent = kept ? { body: kept, done: () => {} } : await bodies.load(eventId, webhookId);
      if (!lent) return 'gone';
      // Again: a large body may have been waited for.
      const target = await readTarget(webhookId);
      if (target && !lanes.isPaused(webhookId, performance.now())) return { target, ...lent };
    } catch (err) {
      log.warn({ err, deliveryId: delivery.id }, 'what a try needs could not be read; it is given back');
    }
    lent?.done();
    return 'wait';
  }

  async function readTarget(webhookId: string): Promise<SigningTarget | undefined> {
    const recent = targets.recent(webhookId, performance.now());
    return recent === null ? targets.read(webhookId) : recent;
  }

  /** Its webhook was turned off or deleted, or cannot be read: what was claimed for it goes back untried. */
  function letWait(delivery: ClaimedDelivery): void {
    lanes.finishUntried(delivery.webhookId);
    giveBack([delivery, ...lanes.removeWaiting(delivery.webhookId)]);
  }

  function cancel(delivery: ClaimedDelivery): void {
    log.warn({ deliveryId: delivery.id, eventId: delivery.eventId }, 'delivery cancelled: its event is gone');
    lanes.finishUntried(delivery.webhookId);
    leases.delete(delivery.id);
    void recorder.persist('cancelling deliveries', () => cancelDeliveries(sql, [delivery]));
  }

  async function send(delivery: ClaimedDelivery, target: SigningTarget, body: Buffer): Promise<void> {
    const startedAt = performance.now();
    const leasedAt = leases.get(delivery.id)?.leasedAt ?? Number.NEGATIVE_INFINITY;
    if (leasedAt < startedAt - safeLeaseMs) {
      // Not renewed for too long: the database was away, or we were, and another process may have it by now.
      lanes.finishUntried(delivery.webhookId);
      return giveBack([delivery]);
    }
    if (delivery.isNew)
      metrics.firstTrySeconds.observe(delivery.waitedSeconds + (startedAt - leasedAt) / 1000);
    const trace = tracer && traceTry(tracer, delivery.eventId);
    const outcome = await postSigned(parts, target, { id: delivery.eventId, body }, trace?.headers);
    // Cut by our own end: it says nothing about the receiver, and the delivery is given back.
    if (cut) return;
    const decision = decide(outcome, delivery, parts.scheduleSeconds, new Date(), Math.random);
    trace?.end(delivery, target, outcome, decision);
    settle(delivery, target, outcome, decision, startedAt);
  }

  function settle(
    delivery: ClaimedDelivery,
    target: SigningTarget,
    outcome: PostOutcome,
    decision: Decision,
    startedAt: number,
  ): void {
    const { id, token, tries, webhookId } = delivery;
    metrics.tries.inc({ outcome: decision.error ?? 'delivered' });
    metrics.trySeconds.observe(outcome.durationMs / 1000);
    if (decision.error) tell(delivery, outcome, decision);
    const { gone } = decision;
    recorder.add({ id, token, tries, startedAt, ...toResult(outcome, decision), target, gone });
    giveBack(lanes.finish(webhookId, decision.error === null, performance.now()));
    tryNext();
    const more = unfinished ? lanes.hasRoom() : lanes.wantsMore(webhookId, performance.now());
    if (more) claiming.wake();
  }

  function tell({ webhookId, eventId, id }: ClaimedDelivery, outcome: PostOutcome, decision: Decision): void {
    const why = outcome.kind === 'failure' ? outcome.detail : `status ${outcome.status}`;
    const next =
      decision.waitSeconds === null ? 'given up' : `again in ${Math.round(decision.waitSeconds)} s`;
    log.warn(
      { webhookId, eventId, deliveryId: id, error: decision.error },
      `delivery failed: ${why}; ${next}`,
    );
  }

  function forget(held: readonly { id: string }[]): void {
    for (const { id } of held) leases.delete(id);
  }

  async function giveBack(deliveries: readonly Lease[]): Promise<void> {
    forget(deliveries);
    if (deliveries.length > 0)
      await recorder.persist('releasing deliveries', () => releaseLeases(sql, deliveries));
  }

  async function renew(): Promise<boolean> {
    const now = performance.now();
    const due = [...leases.values()].filter(({ leasedAt }) => now - leasedAt >= renewMs);
    if (due.length === 0) return false;
    const ours = await renewLeases(sql, due);
    for (const lease of due) {
      if (ours.has(lease.id)) lease.leasedAt = now;
      // Another process has it now, or it has just been recorded. What waits here is not tried; a try under way ends, and
      // is not recorded.
      else if (leases.get(lease.id) === lease) leases.delete(lease.id);
    }
    return false;
  }

  async function promote(): Promise<boolean> {
    const promoted = await promoteDue(sql);
    if (promoted > 0) claiming.wake();
    return promoted > 0;
  }

  const background = { log, isPassing: isUnavailable };
  const claiming = startLoop({
    ...background,
    name: 'claiming deliveries',
    pollMs: claimPollMs,
    work: claim,
  });
  const promoting = startLoop({
    ...background,
    name: 'promoting retries',
    pollMs: promotePollMs,
    work: promote,
  });
  const renewing = startLoop({ ...background, name: 'renewing leases', pollMs: renewMs, work: renew });

  async function stop(): Promise<void> {
    stopping = true;
    const end = performance.now() + drainMs;
    recorder.finishBy(end);
    await Promise.all([claiming.stop(), promoting.stop()]);
    await giveBack(lanes.removeAllWaiting());
    while (lanes.running > 0 && performance.now() < end)
      await new Promise((resolve) => setTimeout(resolve, 20));
    // Cuts what is still under way, so that it is not tried twice at once when another process claims it.
    cut = true;
    await poster.close();
    await recorder.drained();
    await renewing.stop();
    await giveBack([...leases.values()]);
  }

  return { wake: () => claiming.wake(), stop };
}

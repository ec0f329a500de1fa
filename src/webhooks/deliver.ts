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
import {
  type ClaimedDelivery,
  claimDeliveries,
  leaseSeconds,
  promoteDue,
  recordTries,
  releaseLeases,
  renewLeases,
  type TriedDelivery,
} from '../store/deliveries.ts';
import { readEventData } from '../store/events.ts';
import { disableGone, noteFailures, noteRecoveries, readTargets, type Target } from '../store/targets.ts';
import { Bodies } from './bodies.ts';
import { decide, type Verdict } from './decide.ts';
import { defaultLimits, type LaneLimits, Lanes } from './lanes.ts';
import type { Poster, PostOutcome } from './post.ts';
import { openTarget, postSigned, type SigningTarget, toResult } from './try.ts';

export interface DeliveryParts {
  sql: Pool;
  sealer: Sealer;
  poster: Poster;
  scheduleSeconds: readonly number[];
  userAgent: string;
  log: Log;
  metrics: Metrics;
  limits?: LaneLimits;
}

export interface DeliveryLoop {
  /** Something may be ready: look now. */
  wake(): void;
  /** Finishes tries under way, gives back the rest within `drainMs`, and records what is known. */
  stop(): Promise<void>;
}

const claimPollMs = 1000;
const promotePollMs = 500;
const renewMs = 5000;
/** No try begins under a lease older than this. */
const safeLeaseMs = leaseSeconds * 1000 - renewMs;
const drainMs = 10_000;
/** A statement costs much the same for one try as for many, so a few milliseconds are waited for company. */
const gatherMs = 8;
const fullBatch = 128;
/** Beyond so many that wait to be recorded, nothing more is claimed: what is lost here would be sent again. */
const maxUnrecorded = 5000;
const unopenedPauseMs = 60_000;
const maxWebhooksPerClaim = 64;
const firstUuid = '00000000-0000-0000-0000-000000000000';

/** A delivery with all that its try needs. */
interface Ready extends ClaimedDelivery {
  body: Buffer;
  target: SigningTarget;
}

interface Tried {
  record: TriedDelivery;
  webhookId: string;
  url: string;
  verdict: Verdict;
}

export function startDelivery(parts: DeliveryParts): DeliveryLoop {
  const { sql, poster, log, metrics } = parts;
  const limits = parts.limits ?? defaultLimits;
  const token = randomUUID();
  const lanes = new Lanes(limits);
  const bodies = new Bodies();
  /** Everything claimed here and not yet recorded, and when its lease was last renewed. */
  const held = new Map<string, { ready: Ready; leasedAt: number }>();
  const tried: Tried[] = [];
  const failing = new Set<string>();
  /** Webhooks whose secret does not open, and until when they are passed over. */
  const unopened = new Map<string, number>();
  let after = firstUuid;
  let recording: Promise<void> | undefined;
  /** The last walk over the webhooks ended for want of room. */
  let unfinished = false;
  let stopping = false;
  let cut = false;
  let giveUpAt = Number.POSITIVE_INFINITY;

  async function claim(): Promise<boolean> {
    metrics.parkedWebhooks.set(lanes.parked);
    if (stopping || tried.length > maxUnrecorded) return false;
    unfinished = !lanes.hasRoom();
    if (unfinished) return false;
    const askedAt = performance.now();
    const allowances = lanes.allowances(askedAt);
    for (const [id, until] of unopened) if (until > askedAt) allowances.set(id, 0);
    const claimed = await claimDeliveries(sql, {
      token,
      after,
      allowances,
      allowance: limits.perWebhook,
      maxWebhooks: maxWebhooksPerClaim,
    });
    // Our own lease ran out while its try is still under way: it goes on.
    const fresh = claimed.filter(({ id }) => !held.has(id));
    // The end of the walk: begin again with the first webhook.
    const wrapped = fresh.length === 0 && after !== firstUuid;
    after =
      fresh
        .map(({ webhookId }) => webhookId)
        .sort()
        .at(-1) ?? firstUuid;
    if (fresh.length === 0) return wrapped;
    lanes.fill(await prepare(fresh, askedAt), allowances, performance.now());
    tryNext();
    unfinished = !lanes.hasRoom();
    return !unfinished;
  }

  /** Fetches what the tries need, each webhook and each event once. */
  async function prepare(claimed: ClaimedDelivery[], leasedAt: number): Promise<ClaimedDelivery[]> {
    const missing = new Set(claimed.map(({ eventId }) => eventId).filter((id) => !bodies.get(id)));
    const [targets, data] = await Promise.all([
      readTargets(sql, [...new Set(claimed.map(({ webhookId }) => webhookId))]),
      missing.size > 0 ? readEventData(sql, [...missing]) : [],
    ]);
    const built = new Map(data.map(({ id, event, data }) => [id, bodies.build(id, event, data)]));
    const signed = new Map(targets.map((target) => [target.id, open(target)]));
    return claimed.filter((delivery) => {
      const body = built.get(delivery.eventId) ?? bodies.get(delivery.eventId);
      const target = signed.get(delivery.webhookId);
      // The webhook or the event was deleted this moment, and the purge takes the delivery; or its secret does not open.
      if (!body || !target) return false;
      if (target.failing) failing.add(target.id);
      held.set(delivery.id, { ready: { ...delivery, body, target }, leasedAt });
      return true;
    });
  }

  /** A secret under a key that the operator no longer gives keeps its own webhook waiting, and no other. */
  function open(target: Target): SigningTarget | undefined {
    try {
      return openTarget(target, parts.sealer);
    } catch (err) {
      log.error(
        { err, webhookId: target.id },
        'the secret of a webhook cannot be opened; its deliveries wait',
      );
      unopened.set(target.id, performance.now() + unopenedPauseMs);
      return undefined;
    }
  }

  function tryNext(): void {
    const oldest = performance.now() - safeLeaseMs;
    for (let delivery = lanes.take(); delivery; delivery = lanes.take()) {
      const lease = held.get(delivery.id);
      if (lease && lease.leasedAt > oldest) {
        attempt(lease.ready);
      } else {
        // Not renewed for too long (the database was away, or we were): another process may have it by now.
        held.delete(delivery.id);
        lanes.skip(delivery.webhookId);
      }
    }
    metrics.underWay.set(lanes.running);
  }

  async function attempt(ready: Ready): Promise<void> {
    if (ready.tries === 0) metrics.firstTrySeconds.observe(ready.waited);
    const outcome = await postSigned(parts, ready.target, { id: ready.eventId, body: ready.body });
    // Cut by our own end: it says nothing about the receiver, and the delivery is given back.
    if (!cut) settle(ready, outcome);
  }

  function settle(ready: Ready, outcome: PostOutcome): void {
    const verdict = decide(outcome, ready, parts.scheduleSeconds, new Date(), Math.random);
    metrics.tries.inc({ outcome: verdict.error ?? 'delivered' });
    metrics.trySeconds.observe(outcome.durationMs / 1000);
    if (verdict.error) tell(ready, outcome, verdict);
    tried.push({
      record: { id: ready.id, tries: ready.tries, ...toResult(outcome, verdict) },
      webhookId: ready.webhookId,
      url: ready.target.url,
      verdict,
    });
    const back = lanes.settle(ready.webhookId, verdict.error === null, performance.now());
    if (back.length > 0) giveBack(back);
    recording ??= record().finally(() => {
      recording = undefined;
    });
    tryNext();
    const more = unfinished ? lanes.hasRoom() : lanes.wantsMore(ready.webhookId, performance.now());
    if (more) claiming.wake();
  }

  function tell(ready: Ready, outcome: PostOutcome, verdict: Verdict): void {
    const { webhookId, eventId, id } = ready;
    const why = outcome.kind === 'failure' ? outcome.detail : `status ${outcome.status}`;
    const next = verdict.waitSeconds === null ? 'given up' : `again in ${Math.round(verdict.waitSeconds)} s`;
    log.warn(
      { webhookId, eventId, deliveryId: id, error: verdict.error },
      `delivery failed: ${why}; ${next}`,
    );
  }

  /** Writes what has been tried, all there is at a time: while one batch is written, the next one gathers. */
  async function record(): Promise<void> {
    while (tried.length > 0) {
      if (tried.length < fullBatch && !stopping)
        await new Promise((resolve) => setTimeout(resolve, gatherMs));
      const batch = tried.splice(0);
      const recorded = new Set<string>();
      const records = batch.map(({ record }) => record);
      const done = await untilDone('recording tries', async () => {
        for (const id of await recordTries(sql, token, records)) recorded.add(id);
      });
      for (const { record } of batch) held.delete(record.id);
      if (!done) continue;
      const ours = batch.filter(({ record }) => recorded.has(record.id));
      if (ours.length < batch.length) {
        log.warn(
          `${batch.length - ours.length} tries ended after another process had taken over; they are not recorded`,
        );
      }
      await noteHealth(ours);
    }
  }

  /** Keeps count of webhooks that only fail. One that does well costs no write. */
  async function noteHealth(batch: Tried[]): Promise<void> {
    const failed = batch.filter(({ verdict }) => verdict.error !== null);
    if (failed.length > 0) {
      await untilDone('noting failures', () =>
        noteFailures(
          sql,
          failed.map(({ webhookId }) => webhookId),
        ),
      );
      for (const { webhookId } of failed) failing.add(webhookId);
    }
    const gone = failed
      .filter(({ verdict }) => verdict.gone)
      .map(({ webhookId, url }) => ({ id: webhookId, url }));
    if (gone.length > 0) await untilDone('disabling webhooks', () => disableGone(sql, gone));
    const recovered = batch.filter(
      ({ verdict, webhookId }) => verdict.error === null && failing.has(webhookId),
    );
    if (recovered.length > 0) {
      await untilDone('noting recoveries', () =>
        noteRecoveries(
          sql,
          recovered.map(({ webhookId }) => webhookId),
        ),
      );
      for (const { webhookId } of recovered) failing.delete(webhookId);
    }
  }

  async function giveBack(deliveries: ClaimedDelivery[]): Promise<void> {
    const ids = deliveries.map(({ id }) => id);
    for (const id of ids) held.delete(id);
    if (ids.length === 0) return;
    await untilDone('giving back deliveries', () => releaseLeases(sql, token, ids));
  }

  /** A database that is away comes back, and what has been tried must not be forgotten meanwhile; but an end is an end. */
  async function untilDone(what: string, work: () => Promise<unknown>): Promise<boolean> {
    for (;;) {
      try {
        await work();
        return true;
      } catch (err) {
        const ended = performance.now() > giveUpAt;
        const next = ended ? 'leases will run out instead' : 'trying again';
        log[isUnavailable(err) ? 'warn' : 'error']({ err }, `${what} failed; ${next}`);
        if (ended) return false;
        await new Promise((resolve) => setTimeout(resolve, 500));
      }
    }
  }

  async function renew(): Promise<boolean> {
    const now = performance.now();
    const due = [...held.values()].filter(({ leasedAt }) => now - leasedAt >= renewMs);
    if (due.length === 0) return false;
    const ids = due.map(({ ready }) => ready.id);
    const ours = await renewLeases(sql, token, ids);
    for (const lease of due) {
      if (ours.has(lease.ready.id)) lease.leasedAt = now;
      // Another process has it now. What waits here is not tried; a try under way ends, and is not recorded.
      else held.delete(lease.ready.id);
    }
    return false;
  }

  async function promote(): Promise<boolean> {
    const promoted = await promoteDue(sql);
    if (promoted > 0) claiming.wake();
    return promoted > 0;
  }

  const claiming = startLoop({
    name: 'claiming deliveries',
    pollMs: claimPollMs,
    log,
    isPassing: isUnavailable,
    work: claim,
  });
  const promoting = startLoop({
    name: 'promoting retries',
    pollMs: promotePollMs,
    log,
    isPassing: isUnavailable,
    work: promote,
  });
  const renewing = startLoop({
    name: 'renewing leases',
    pollMs: renewMs,
    log,
    isPassing: isUnavailable,
    work: renew,
  });

  async function stop(): Promise<void> {
    stopping = true;
    giveUpAt = performance.now() + drainMs;
    await Promise.all([claiming.stop(), promoting.stop()]);
    await giveBack(lanes.emptyAll());
    await idleUntil(giveUpAt);
    // Cuts what is still under way, so that it is not tried twice at once when another process claims it.
    cut = true;
    await poster.close();
    await recording;
    await renewing.stop();
    await giveBack([...held.values()].map(({ ready }) => ready));
  }

  async function idleUntil(end: number): Promise<void> {
    while (lanes.running > 0 && performance.now() < end)
      await new Promise((resolve) => setTimeout(resolve, 20));
  }

  return { wake: () => claiming.wake(), stop };
}

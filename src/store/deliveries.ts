/**
 * Deliveries: the queue. A claim leases what is ready; an outcome is recorded only while the lease is ours. Both work on
 * batches, and neither costs more when the backlog grows: see docs/decisions/0005-delivery-queue.md.
 */
import { errorCode, only, type Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Lease } from '../queue/leases.ts';
import { type Page, type PageRequest, pageOf, position, toPage } from './page.ts';

export const leaseSeconds = 20;

export interface ClaimedDelivery extends Lease {
  eventId: string;
  webhookId: string;
  /** Tries since the schedule last began. */
  tries: number;
  /** Never tried before. */
  isNew: boolean;
  /** How long it had been due when it was claimed. */
  waitedSeconds: number;
}

export interface ClaimOptions {
  token: string;
  /** Webhooks are walked round-robin, beginning after this one. */
  after: string;
  /** How many each webhook may have; those not named here have `allowance`. 0 passes a webhook over. */
  allowances: ReadonlyMap<string, number>;
  allowance: number;
  maxWebhooks: number;
}

/**
 * Leases what is ready, a few of each webhook. The walk hops from webhook to webhook along the index of what is ready, so a
 * webhook costs one hop however much waits for it; disabled ones and those without allowance cost no more.
 */
export async function claimDeliveries(sql: Sql, options: ClaimOptions): Promise<ClaimedDelivery[]> {
  const limited = [...options.allowances.keys()];
  const limits = [...options.allowances.values()];
  return sql<ClaimedDelivery[]>`
    with recursive walk as (
      (select webhook_id from deliveries where ready and webhook_id > ${options.after} order by webhook_id limit 1)
      union all
      select next.webhook_id
      from walk cross join lateral (
        select webhook_id from deliveries where ready and webhook_id > walk.webhook_id order by webhook_id limit 1
      ) next
    ), chosen as materialized (
      select walk.webhook_id, coalesce(limits.allowance, ${options.allowance}) as allowance
      from walk
      join webhooks on webhooks.id = walk.webhook_id and webhooks.enabled and webhooks.deleted_at is null
      left join unnest(${limited}::uuid[], ${limits}::int[]) as limits (webhook_id, allowance)
        on limits.webhook_id = walk.webhook_id
      where coalesce(limits.allowance, ${options.allowance}) > 0
        -- Not those whose every delivery is being tried already: they would use up the limit, and others starve.
        and exists (
          select from deliveries
          where ready and webhook_id between walk.webhook_id and walk.webhook_id
            and (lease_until is null or lease_until < now())
        )
      limit ${options.maxWebhooks}
    ), picked as materialized (
      select free.id
      from chosen cross join lateral (
        select id from deliveries
        -- A range of one and an order by both: with an equation the planner may walk the primary key instead of the
        -- index of what is ready, past everything that was ever delivered (18 ms instead of 0.2 at 20,000 rows).
        where ready and webhook_id between chosen.webhook_id and chosen.webhook_id
          and (lease_until is null or lease_until < now())
        order by webhook_id, id limit chosen.allowance
        for update skip locked
      ) free
    )
    update deliveries
    set lease_token = ${options.token}, lease_until = now() + ${leaseSeconds} * interval '1 second'
    where id = any (array(select id from picked))
    returning id, lease_token as token, event_id as "eventId", webhook_id as "webhookId", tries,
      attempt_count = 0 as "isNew", extract(epoch from now() - next_attempt_at)::float8 as "waitedSeconds"`;
}

/** What a try came to. */
export interface TryResult {
  status: 'pending' | 'delivered' | 'failed';
  /** Until the next try, where there is one. */
  waitSeconds: number | null;
  durationMs: number;
  responseStatus: number | null;
  /** JSON text. */
  responseHeaders: string | null;
  responseBody: string | null;
  error: string | null;
}

export interface TriedDelivery extends TryResult, Lease {
  /** As claimed: tries since the schedule last began, before this one. */
  tries: number;
  /** When it began, by `performance.now()`: told to PostgreSQL as an age, since the clocks may differ. */
  startedAt: number;
}

/**
 * Records tries whose lease is still ours, and returns the ids of those; the others were taken over meanwhile. An answer
 * that PostgreSQL will not store must not hold up the rest: then each is recorded alone, and that one without its answer.
 */
export async function recordTries(sql: Sql, tries: readonly TriedDelivery[]): Promise<string[]> {
  try {
    return await recordBatch(sql, tries);
  } catch (error) {
    if (!errorCode(error)?.startsWith('22')) throw error;
    const [first] = tries;
    if (first && tries.length === 1) {
      return recordBatch(sql, [{ ...first, responseHeaders: null, responseBody: null }]);
    }
    const alone: string[] = [];
    for (const tried of tries) alone.push(...(await recordTries(sql, [tried])));
    return alone;
  }
}

async function recordBatch(sql: Sql, tries: readonly TriedDelivery[]): Promise<string[]> {
  // It was asked for again while a late try was under way: the schedule has begun anew, and this is not its end.
  const renewed = sql`(tried.status <> 'delivered' and deliveries.tries < tried.tries)`;
  const column = <Key extends keyof TriedDelivery>(key: Key) => tries.map((tried) => tried[key]);
  const nowMs = performance.now();
  const ages = tries.map(({ startedAt }) => nowMs - startedAt);
  const recorded = await sql<{ id: string }[]>`
    with tried as materialized (
      select * from unnest(
        ${column('id')}::uuid[], ${tries.map(newId)}::uuid[], ${column('status')}::text[], ${column('waitSeconds')}::float8[],
        ${column('durationMs')}::int[], ${column('responseStatus')}::int[], ${column('responseHeaders')}::json[],
        ${column('responseBody')}::text[], ${column('error')}::text[], ${column('tries')}::int[], ${ages}::float8[],
        ${column('token')}::uuid[]
      ) as t (id, attempt_id, status, wait_seconds, duration_ms, response_status, response_headers, response_body, error,
        tries, age_ms, token)
    ), done as (
      update deliveries
      set status = case when ${renewed} then 'pending' else tried.status end, ready = ${renewed},
        attempt_count = attempt_count + 1, tries = deliveries.tries + 1,
        next_attempt_at = case when ${renewed} then now() else now() + tried.wait_seconds * interval '1 second' end,
        completed_at = case when tried.status <> 'pending' and not ${renewed} then now() end,
        lease_token = null, lease_until = null
      from tried where deliveries.id = tried.id and lease_token = tried.token
      returning deliveries.id, owner_id
    )
    insert into attempts (delivery_id, id, owner_id, started_at, duration_ms, response_status, response_headers,
      response_body, error)
    select done.id, tried.attempt_id, done.owner_id, now() - tried.age_ms * interval '1 millisecond',
      tried.duration_ms, tried.response_status, tried.response_headers, tried.response_body, tried.error
    from done join tried using (id)
    returning delivery_id as id`;
  return recorded.map((row) => row.id);
}

/** Those of these leases that are still held; `held` is what they are called in the query. */
function stillHeld(sql: Sql, leases: readonly Lease[]) {
  return sql`
    from unnest(${leases.map(({ id }) => id)}::uuid[], ${leases.map(({ token }) => token)}::uuid[]) as held (id, token)
    where deliveries.id = held.id and deliveries.lease_token = held.token`;
}

/** Returns the ids of those that were still ours. */
export async function renewLeases(sql: Sql, leases: readonly Lease[]): Promise<Set<string>> {
  const renewed = await sql<{ id: string }[]>`
    update deliveries set lease_until = now() + ${leaseSeconds} * interval '1 second'
    ${stillHeld(sql, leases)} returning deliveries.id`;
  return new Set(renewed.map(({ id }) => id));
}

/** Gives back what was claimed and not tried. */
export async function releaseLeases(sql: Sql, leases: readonly Lease[]): Promise<void> {
  await sql`update deliveries set lease_token = null, lease_until = null ${stillHeld(sql, leases)}`;
}

/** Ends deliveries that cannot be made, because their event is gone. */
export async function cancelDeliveries(sql: Sql, leases: readonly Lease[]): Promise<void> {
  await sql`
    update deliveries
    set status = 'cancelled', ready = false, completed_at = now(), next_attempt_at = null, lease_token = null,
      lease_until = null
    ${stillHeld(sql, leases)}`;
}

/** Makes retries ready whose time has come; returns how many. */
export async function promoteDue(sql: Sql, batch = 1000): Promise<number> {
  const promoted = await sql`
    update deliveries set ready = true
    where id = any (array(
      select id from deliveries
      where status = 'pending' and not ready and next_attempt_at <= now()
      order by next_attempt_at limit ${batch} for update skip locked
    ))`;
  return promoted.count;
}

export const deliveryStatuses = ['pending', 'delivered', 'failed', 'cancelled'] as const;

/** A delivery as the interface shows it. */
export interface Delivery {
  id: string;
  eventId: string;
  webhookId: string;
  event: string;
  status: (typeof deliveryStatuses)[number];
  attemptCount: number;
  nextAttemptAt: string | null;
  createdAt: string;
  completedAt: string | null;
}

type ListedDelivery = Delivery & { position: string };

function columns(sql: Sql) {
  return sql`
    id, event_id as "eventId", webhook_id as "webhookId", event, status, attempt_count as "attemptCount",
    case when status = 'pending' then iso_time(next_attempt_at) end
      as "nextAttemptAt",
    iso_time(created_at) as "createdAt",
    iso_time(completed_at) as "completedAt"`;
}

export interface DeliveryFilter {
  status?: Delivery['status'] | undefined;
  event?: string | undefined;
  since?: string | undefined;
}

export async function listDeliveries(
  sql: Sql,
  ownerId: string,
  webhookId: string,
  filter: DeliveryFilter,
  page: PageRequest,
): Promise<Page<ListedDelivery>> {
  const rows = await sql<ListedDelivery[]>`
    select ${columns(sql)}, ${position(sql)}
    from deliveries
    where owner_id = ${ownerId} and webhook_id = ${webhookId}
      ${filter.status ? sql`and status = ${filter.status}` : sql``}
      ${filter.event ? sql`and event = ${filter.event}` : sql``}
      ${filter.since ? sql`and created_at >= ${filter.since}::text::timestamptz` : sql``}
      ${pageOf(sql, page)}`;
  return toPage(rows, page);
}

/** Deliveries of a webhook that was deleted are gone with it, though their rows may wait for the purge. */
export async function findDelivery(sql: Sql, ownerId: string, id: string): Promise<Delivery | undefined> {
  const [row] = await sql<Delivery[]>`
    select ${columns(sql)} from deliveries
    where owner_id = ${ownerId} and id = ${id}
      and exists (
        select from webhooks
        where webhooks.owner_id = ${ownerId} and webhooks.id = deliveries.webhook_id and webhooks.deleted_at is null
      )`;
  return row;
}

export interface Attempt {
  id: string;
  startedAt: string;
  durationMs: number;
  responseStatus: number | null;
  responseHeaders: Record<string, string> | null;
  responseBody: string | null;
  error: string | null;
}

export async function listAttempts(sql: Sql, ownerId: string, deliveryId: string): Promise<Attempt[]> {
  return sql<Attempt[]>`
    select id, iso_time(started_at) as "startedAt",
      duration_ms as "durationMs", response_status as "responseStatus", response_headers as "responseHeaders",
      response_body as "responseBody", error
    from attempts where owner_id = ${ownerId} and delivery_id = ${deliveryId} order by started_at, id`;
}

/**
 * Sends it again, whatever its status: the same row, the schedule from its start. A try that is under way at this moment
 * is the first of it, since a delivery never has two at once.
 */
export async function redeliver(sql: Sql, ownerId: string, id: string): Promise<boolean> {
  const again = await sql`
    update deliveries
    set status = 'pending', ready = true, tries = 0, next_attempt_at = now(), completed_at = null
    where owner_id = ${ownerId} and id = ${id}`;
  return again.count > 0;
}

/** A sample event with its one delivery and try, all over when they are written. Returns the delivery's id. */
export async function recordTestTry(
  sql: Sql,
  ownerId: string,
  webhook: { id: string; identityId: string | null },
  event: { id: string; event: string; data: string },
  result: TryResult,
): Promise<string> {
  const { id } = only(
    await sql<{ id: string }[]>`
      with happened as (
        insert into events (id, owner_id, event, identity_id, data, test)
        values (${event.id}, ${ownerId}, ${event.event}, ${webhook.identityId}, ${event.data}::text::json, true)
      ), delivery as (
        insert into deliveries (id, owner_id, event_id, webhook_id, event, status, ready, attempt_count, tries,
          next_attempt_at, completed_at)
        values (delivery_id(${event.id}, ${webhook.id}), ${ownerId}, ${event.id}, ${webhook.id}, ${event.event},
          ${result.status}, false, 1, 1, null, now())
        returning id
      )
      insert into attempts (delivery_id, id, owner_id, started_at, duration_ms, response_status, response_headers,
        response_body, error)
      select id, ${newId()}::uuid, ${ownerId}::uuid, now() - ${result.durationMs}::int * interval '1 millisecond',
        ${result.durationMs}::int, ${result.responseStatus}::int, ${result.responseHeaders}::text::json,
        ${result.responseBody}::text, ${result.error}::text
      from delivery
      returning delivery_id as id`,
  );
  return id;
}

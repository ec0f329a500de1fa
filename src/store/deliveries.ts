/**
 * The delivery queue. Guarantees: the result of a try is recorded only while its lease is ours; claiming and recording work on
 * batches, whose cost does not grow with the backlog (docs/decisions/0005-delivery-queue.md).
 *
 * A try becomes an attempt when it is recorded. `attempt_count` counts all attempts of a delivery; `tries` counts those since
 * its retry schedule last started, and a redelivery sets it to 0.
 */
import { errorCode, only, type Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Lease } from '../queue/leases.ts';
import type { ClaimRequest, Promotion } from '../queue/worker.ts';
import { lockDisabled } from './held.ts';
import {
  collectPage,
  countBytes,
  kindsOf,
  type Listed,
  maxPageBytes,
  mergePages,
  type Page,
  type PageRequest,
  pagesOf,
  pageWithin,
  position,
} from './page.ts';

export const leaseSeconds = 20;

export interface ClaimedDelivery extends Lease {
  eventId: string;
  webhookId: string;
  ownerId: string;
  tries: number;
  /** Never tried before. */
  isNew: boolean;
  /** From the time at which the delivery was due to the claim. */
  waitedSeconds: number;
}

const firstUuid = '00000000-0000-0000-0000-000000000000';

/**
 * Leases ready deliveries, a few of each webhook (the lane) of each owner (the group). The query hops along the index of ready
 * deliveries, from owner to owner and from webhook to webhook, so each costs one hop, however many deliveries it has.
 */
export async function claimDeliveries(sql: Sql, request: ClaimRequest): Promise<ClaimedDelivery[]> {
  const { token, afterGroup, afterLanes, skippedGroups, allowances, allowance, maxLanes } = request;
  // A range with one value, ordered by all columns: with "=" the planner may scan the primary key instead of the index of ready
  // deliveries, over everything that was ever delivered (18 ms instead of 0.2 at 20,000 rows).
  return sql<ClaimedDelivery[]>`
    with recursive owners as (
      (select owner_id from deliveries where ready and owner_id > ${afterGroup ?? firstUuid} order by owner_id limit 1)
      union all
      select next.owner_id
      from owners cross join lateral (
        select owner_id from deliveries where ready and owner_id > owners.owner_id order by owner_id limit 1
      ) next
    ), walk as (
      -- One webhook of each owner. Each step of the recursion adds the next webhook of each.
      (select first.owner_id, first.webhook_id
      from owners
      left join unnest(${[...afterLanes.keys()]}::uuid[], ${[...afterLanes.values()]}::uuid[]) as last (owner_id, webhook_id)
        on last.owner_id = owners.owner_id
      cross join lateral (
        select owner_id, webhook_id from deliveries
        where ready and owner_id between owners.owner_id and owners.owner_id
          and webhook_id > coalesce(last.webhook_id, ${firstUuid})
        order by owner_id, webhook_id limit 1
      ) first
      where owners.owner_id <> all (${skippedGroups}::uuid[]))
      union all
      select next.owner_id, next.webhook_id
      from walk cross join lateral (
        select owner_id, webhook_id from deliveries
        where ready and owner_id between walk.owner_id and walk.owner_id and webhook_id > walk.webhook_id
        order by owner_id, webhook_id limit 1
      ) next
    ), chosen as materialized (
      select walk.owner_id, walk.webhook_id, coalesce(limits.allowance, ${allowance}) as allowance
      from walk
      left join unnest(${[...allowances.keys()]}::uuid[], ${[...allowances.values()]}::int[]) as limits (webhook_id, allowance)
        on limits.webhook_id = walk.webhook_id
      where coalesce(limits.allowance, ${allowance}) > 0
        -- Skips a deleted webhook, whose deliveries the purge deletes, and a disabled webhook that is unsettled, whose deliveries
        -- the settling loop holds. A ready delivery of a disabled and settled webhook was added or restarted later: it is claimed,
        -- and the process that claimed it holds it. A subquery, because for a join the planner reads all webhooks.
        and coalesce((
          select deleted_at is null and (enabled or unsettled_at is null) from webhooks where id = walk.webhook_id
        ), true)
        -- Webhooks whose deliveries are all leased would use up the limit, and others would starve.
        and (
          select true from deliveries
          where ${readyIn(sql, sql`walk.owner_id, walk.webhook_id`)} and (lease_until is null or lease_until < now())
          order by owner_id, webhook_id, id limit 1
        )
      limit ${maxLanes}
    ), picked as materialized (
      select free.id
      from chosen cross join lateral (
        select id from deliveries
        where ${readyIn(sql, sql`chosen.owner_id, chosen.webhook_id`)} and (lease_until is null or lease_until < now())
        order by owner_id, webhook_id, id limit chosen.allowance
        for update skip locked
      ) free
    )
    update deliveries
    set lease_token = ${token}, lease_until = now() + ${leaseSeconds} * interval '1 second'
    where id = any (array(select id from picked))
    returning id, lease_token as token, event_id as "eventId", webhook_id as "webhookId", owner_id as "ownerId", tries,
      attempt_count = 0 as "isNew", extract(epoch from now() - next_attempt_at)::float8 as "waitedSeconds"`;
}

/**
 * The ready deliveries of a webhook, to be ordered by owner, webhook and id. `webhook`: the ids of its owner and of itself. Comparisons
 * of rows: with `=`, and with a range of one value for each column, the planner takes the rows for a handful, and may read all
 * deliveries of the webhook by an index for lists and sort them (1.4 s instead of 10 ms with 510,000 deliveries of 300 webhooks).
 */
function readyIn(sql: Sql, webhook: ReturnType<Sql>) {
  return sql`ready
    and (owner_id, webhook_id, id) >= (${webhook}, uuid '00000000-0000-0000-0000-000000000000')
    and (owner_id, webhook_id, id) <= (${webhook}, uuid 'ffffffff-ffff-ffff-ffff-ffffffffffff')`;
}

export interface TryResult {
  status: 'pending' | 'delivered' | 'failed';
  /** Until the next try; null for none. */
  waitSeconds: number | null;
  durationMs: number;
  responseStatus: number | null;
  /** JSON text. */
  responseHeaders: string | null;
  responseBody: string | null;
  error: string | null;
  errorDetail: string | null;
}

export interface TriedDelivery extends TryResult, Lease {
  /** As claimed: without this try. */
  tries: number;
  /** By `performance.now()`. PostgreSQL gets it as an age, because the clocks may differ. */
  startedAt: number;
}

/**
 * Records the tries whose lease is still ours, and returns their ids. If PostgreSQL refuses to store a response, each try is
 * recorded alone, and the refused one without its response, so that it does not block the others.
 */
export async function recordTries(sql: Sql, tries: readonly TriedDelivery[]): Promise<string[]> {
  try {
    return await recordBatch(sql, tries);
  } catch (error) {
    if (!/^(22|54)/.test(errorCode(error) ?? '')) throw error;
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
  // The schedule was restarted during this try, by a redelivery or a replay: a failed try must not end the delivery.
  const isRestarted = sql`(tried.status <> 'delivered' and deliveries.tries < tried.tries)`;
  const column = <Key extends keyof TriedDelivery>(key: Key) => tries.map((tried) => tried[key]);
  const nowMs = performance.now();
  const ages = tries.map(({ startedAt }) => nowMs - startedAt);
  const recorded = await sql<{ id: string }[]>`
    with tried as materialized (
      select * from unnest(
        ${column('id')}::uuid[], ${tries.map(newId)}::uuid[], ${column('status')}::text[], ${column('waitSeconds')}::float8[],
        ${column('durationMs')}::int[], ${column('responseStatus')}::int[], ${column('responseHeaders')}::json[],
        ${column('responseBody')}::text[], ${column('error')}::text[], ${column('tries')}::int[], ${ages}::float8[],
        ${column('token')}::uuid[], ${column('errorDetail')}::text[]
      ) as t (id, attempt_id, status, wait_seconds, duration_ms, response_status, response_headers, response_body, error,
        tries, age_ms, token, error_detail)
    ), done as (
      update deliveries
      set status = case when ${isRestarted} then 'pending' else tried.status end, ready = ${isRestarted},
        attempt_count = attempt_count + 1, tries = deliveries.tries + 1,
        next_attempt_at = case when ${isRestarted} then now() else now() + tried.wait_seconds * interval '1 second' end,
        completed_at = case when tried.status <> 'pending' and not ${isRestarted} then now() end,
        lease_token = null, lease_until = null
      from tried where deliveries.id = tried.id and lease_token = tried.token
      returning deliveries.id, owner_id
    )
    insert into attempts (delivery_id, id, owner_id, started_at, duration_ms, response_status, response_headers,
      response_body, error, error_detail)
    select done.id, tried.attempt_id, done.owner_id, now() - tried.age_ms * interval '1 millisecond',
      tried.duration_ms, tried.response_status, tried.response_headers, tried.response_body, tried.error,
      tried.error_detail
    from done join tried using (id)
    returning delivery_id as id`;
  return recorded.map((row) => row.id);
}

/** Restricts an update of `deliveries` to leases that are still ours: the row still has the token of our claim. */
function whereLeased(sql: Sql, leases: readonly Lease[]) {
  return sql`
    from unnest(${leases.map(({ id }) => id)}::uuid[], ${leases.map(({ token }) => token)}::uuid[]) as lease (id, token)
    where deliveries.id = lease.id and deliveries.lease_token = lease.token`;
}

/** Returns the ids of the deliveries whose lease was still ours. */
export async function renewLeases(sql: Sql, leases: readonly Lease[]): Promise<Set<string>> {
  const renewed = await sql<{ id: string }[]>`
    update deliveries set lease_until = now() + ${leaseSeconds} * interval '1 second'
    ${whereLeased(sql, leases)} returning deliveries.id`;
  return new Set(renewed.map(({ id }) => id));
}

export async function releaseLeases(sql: Sql, leases: readonly Lease[]): Promise<void> {
  await sql`update deliveries set lease_token = null, lease_until = null ${whereLeased(sql, leases)}`;
}

/** For deliveries whose event was deleted. */
export async function cancelDeliveries(sql: Sql, leases: readonly Lease[]): Promise<void> {
  await sql`
    update deliveries
    set status = 'cancelled', ready = false, completed_at = now(), next_attempt_at = null, lease_token = null,
      lease_until = null
    ${whereLeased(sql, leases)}`;
}

/**
 * Makes retries that are due ready, or holds them if their webhook is disabled. Returns how many, and when the next one is due if
 * that is within two seconds: longer than until the next poll.
 */
export async function promoteDue(sql: Sql, batch = 1000): Promise<Promotion> {
  return only(
    await sql<Promotion[]>`
    with due as materialized (
      select id, webhook_id from deliveries
      where status = 'pending' and not ready and next_attempt_at <= now()
      order by next_attempt_at limit ${batch} for update skip locked
    ), disabled as materialized (${lockDisabled(sql, sql`select webhook_id from due`)}),
    promoted as (
      update deliveries
      set ready = disabled.id is null, next_attempt_at = case when disabled.id is null then next_attempt_at else 'infinity' end
      from due left join disabled on disabled.id = due.webhook_id
      where deliveries.id = due.id
      returning 1
    )
    select (select count(*)::int from promoted) as promoted, (
      -- Rounded up: a timer that fires early would find nothing.
      select ceil(extract(epoch from next_attempt_at - now()) * 1000)::int from deliveries
      where status = 'pending' and not ready and next_attempt_at > now() and next_attempt_at < now() + interval '2 seconds'
      order by next_attempt_at limit 1
    ) as "nextInMs"`,
  );
}

export const deliveryStatuses = ['pending', 'delivered', 'failed', 'cancelled'] as const;

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

function columns(sql: Sql) {
  return sql`
    id, event_id as "eventId", webhook_id as "webhookId", event, status, attempt_count as "attemptCount",
    case when status = 'pending' and next_attempt_at < 'infinity' then iso_time(next_attempt_at) end
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
): Promise<Page<Listed<Delivery>>> {
  const ofWebhook = sql`deliveries where owner_id = ${ownerId} and webhook_id = ${webhookId}`;
  // The index has the event and the status before the time: one index for every combination of filters.
  const kinds = filter.event ? sql`(select ${filter.event}::text as event) kinds` : kindsOf(sql, ofWebhook);
  const statuses = filter.status ? [filter.status] : deliveryStatuses;
  const groups = sql`${kinds} cross join unnest(${statuses}::text[]) as wanted (status)`;
  const group = { event: sql`kinds.event`, status: sql`wanted.status` };
  const select = (step: PageRequest) => sql`
    select ${columns(sql)}, ${position(sql)}
    from ${ofWebhook} ${pageWithin(sql, step, 'deliveries', group, filter.since)}`;
  return collectPage(page, (step) => mergePages<Delivery>(sql, step, [pagesOf(sql, groups, select(step))]));
}

/** Hides deliveries of a deleted webhook, whose rows may still wait for the purge. */
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
  errorDetail: string | null;
}

/** Each redelivery adds attempts, and an attempt has up to 32 KiB of the response. */
const maxAttempts = 200;

/** Oldest first: the newest attempts of the delivery, up to the size of a page. */
export async function listAttempts(sql: Sql, ownerId: string, deliveryId: string): Promise<Attempt[]> {
  const newestFirst = await sql<Attempt[]>`
    select id, iso_time(started_at) as "startedAt",
      duration_ms as "durationMs", response_status as "responseStatus", response_headers as "responseHeaders",
      response_body as "responseBody", error, error_detail as "errorDetail"
    from attempts where owner_id = ${ownerId} and delivery_id = ${deliveryId}
    order by started_at desc, id desc limit ${maxAttempts}`;
  const shown: Attempt[] = [];
  let bytes = 0;
  for (const attempt of newestFirst) {
    bytes += countBytes(attempt);
    if (shown.length > 0 && bytes > maxPageBytes) break;
    shown.unshift(attempt);
  }
  return shown;
}

/**
 * Restarts the schedule of a delivery, whatever its status. A try that is running counts as the first try, because a delivery
 * never has two tries at once.
 */
export async function redeliver(sql: Sql, ownerId: string, id: string): Promise<boolean> {
  const again = await sql`
    update deliveries
    set status = 'pending', ready = true, tries = 0, next_attempt_at = now(), completed_at = null
    where owner_id = ${ownerId} and id = ${id}`;
  return again.count > 0;
}

/** Records a test event with its only delivery and try, both completed. Returns the id of the delivery. */
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
        response_body, error, error_detail)
      select id, ${newId()}::uuid, ${ownerId}::uuid, now() - ${result.durationMs}::int * interval '1 millisecond',
        ${result.durationMs}::int, ${result.responseStatus}::int, ${result.responseHeaders}::text::json,
        ${result.responseBody}::text, ${result.error}::text, ${result.errorDetail}::text
      from delivery
      returning delivery_id as id`,
  );
  return id;
}

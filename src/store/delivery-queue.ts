/**
 * The delivery queue. Guarantees: the result of a try is recorded only while its lease is ours; claiming and recording work on
 * batches, whose cost does not grow with the backlog (docs/decisions/0005-delivery-queue.md). A delivery is in exactly one of two
 * tables: in `delivery_queue` while it is pending, and then in `ended_deliveries` (`deliveries.ts`).
 *
 * A try becomes an attempt when it is recorded. `attempt_count` counts all attempts of a delivery; `tries` counts those since
 * its retry schedule last started, and a redelivery sets it to 0.
 */
import { errorCode, only, type Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Lease } from '../queue/leases.ts';
import type { ClaimRequest, Promotion } from '../queue/worker.ts';
import { lockDisabled } from './held.ts';
import { claimRows, deliveryQueue, isOneOf, leasedRows, releaseRows, renewRows } from './queue-rows.ts';
import { countEnded } from './traffic.ts';

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

/** Leases ready deliveries, a few of each webhook (the lane) of each owner (the group). */
export async function claimDeliveries(sql: Sql, request: ClaimRequest): Promise<ClaimedDelivery[]> {
  return claimRows<ClaimedDelivery>(sql, deliveryQueue, request, {
    // Skips a deleted webhook, whose deliveries the purge deletes, and a disabled webhook that is unsettled, whose deliveries
    // the settling loop holds. A ready delivery of a disabled and settled webhook was added or restarted later: it is claimed,
    // and the process that claimed it holds it. A subquery, because for a join the planner reads all webhooks.
    isOpen: sql`
      coalesce((
        select deleted_at is null and (enabled or unsettled_at is null) from webhooks where id = allowed.lane
      ), true)`,
    columns: sql`
      event_id as "eventId", webhook_id as "webhookId", owner_id as "ownerId", tries, attempt_count = 0 as "isNew",
      extract(epoch from now() - next_attempt_at)::float8 as "waitedSeconds"`,
  });
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

/** A row that changes at this very moment is found again in a moment. */
const maxRounds = 5;

async function recordBatch(sql: Sql, tries: readonly TriedDelivery[]): Promise<string[]> {
  const recorded: string[] = [];
  let left = tries;
  for (let round = 0; left.length > 0 && round < maxRounds; round += 1) {
    const { done, missed } = await recordUnchanged(sql, left);
    recorded.push(...done);
    left = left.filter(({ id }) => missed.has(id));
  }
  return recorded;
}

/**
 * Rows are looked up one by one, and changed by their place: for a join by id the planner, whose plan may be from an empty queue,
 * would compare each result with each row (275 µs for a delivery instead of 60). A row that somebody else changes meanwhile, such as
 * a redelivery, has another place then: it is `missed`, and its result must be recorded for the row as it is now.
 */
async function recordUnchanged(
  sql: Sql,
  tries: readonly TriedDelivery[],
): Promise<{ done: string[]; missed: Set<string> }> {
  const column = <Key extends keyof TriedDelivery>(key: Key) => tries.map((tried) => tried[key]);
  const nowMs = performance.now();
  const ages = tries.map(({ startedAt }) => nowMs - startedAt);
  const attempt = sql`attempt_id, started_at, duration_ms, response_status, response_headers, response_body, error, error_detail`;
  const rows = await sql<{ id: string; isDone: boolean }[]>`
    with tried as materialized (
      select * from unnest(
        ${column('id')}::uuid[], ${tries.map(newId)}::uuid[], ${column('status')}::text[], ${column('waitSeconds')}::float8[],
        ${column('durationMs')}::int[], ${column('responseStatus')}::int[], ${column('responseHeaders')}::json[],
        ${column('responseBody')}::text[], ${column('error')}::text[], ${column('tries')}::int[], ${ages}::float8[],
        ${column('token')}::uuid[], ${column('errorDetail')}::text[]
      ) as t (id, attempt_id, status, wait_seconds, duration_ms, response_status, response_headers, response_body, error,
        tries, age_ms, token, error_detail)
    ), ours as materialized (
      select tried.id, attempt_id, status, wait_seconds, now() - age_ms * interval '1 millisecond' as started_at, duration_ms,
        response_status, response_headers, response_body, error, error_detail, queued.place,
        -- The schedule was restarted during this try, by a redelivery or a replay: a failed try must not end the delivery.
        queued.tries < tried.tries as is_restarted,
        status = 'delivered' or status = 'failed' and queued.tries >= tried.tries as is_end
      from tried cross join lateral (
        select ctid as place, tries from delivery_queue
        where delivery_queue.id = tried.id and delivery_queue.lease_token = tried.token
        offset 0
      ) queued
    ), ended as (
      delete from delivery_queue using ours
      where delivery_queue.ctid = ours.place and ours.is_end
      returning delivery_queue.id, delivery_queue.owner_id, delivery_queue.event_id, delivery_queue.webhook_id,
        delivery_queue.event, delivery_queue.attempt_count, delivery_queue.created_at, ours.status, ${attempt}
    ), put_off as (
      update delivery_queue
      set ready = is_restarted, attempt_count = attempt_count + 1, tries = delivery_queue.tries + 1,
        next_attempt_at = now() + case when is_restarted then 0 else coalesce(wait_seconds, 0) end * interval '1 second',
        lease_token = null, lease_until = null
      from ours
      where delivery_queue.ctid = ours.place and not ours.is_end
      returning delivery_queue.id, delivery_queue.owner_id, ${attempt}
    ), history as (
      insert into ended_deliveries (id, owner_id, event_id, webhook_id, event, status, attempt_count, created_at, completed_at,
        ${attempt})
      select id, owner_id, event_id, webhook_id, event, status, attempt_count + 1, created_at, now(), ${attempt} from ended
    ), kept as (
      insert into earlier_attempts (delivery_id, owner_id, id, started_at, duration_ms, response_status, response_headers,
        response_body, error, error_detail)
      select id, owner_id, ${attempt} from put_off
    ), counted as (${countEnded(sql)})
    select id, true as "isDone" from ended
    union all select id, true from put_off
    union all select id, false from ours`;
  const done = new Set(rows.filter(({ isDone }) => isDone).map(({ id }) => id));
  const missed = rows.map(({ id }) => id).filter((id) => !done.has(id));
  return { done: [...done], missed: new Set(missed) };
}

export function renewLeases(sql: Sql, leases: readonly Lease[]): Promise<Set<string>> {
  return renewRows(sql, deliveryQueue, leases);
}

export function releaseLeases(sql: Sql, leases: readonly Lease[]): Promise<void> {
  return releaseRows(sql, deliveryQueue, leases);
}

/** For deliveries whose event was deleted. */
export async function cancelDeliveries(sql: Sql, leases: readonly Lease[]): Promise<void> {
  await sql`
    with ended as (
      delete from delivery_queue where ${leasedRows(sql, leases)} returning *
    )
    ${insertCancelled(sql)}`;
}

/** Ends the deliveries in `ended`, rows that the caller's statement deletes from the queue. */
export function insertCancelled(sql: Sql) {
  return sql`
    insert into ended_deliveries (id, owner_id, event_id, webhook_id, event, status, attempt_count, created_at, completed_at)
    select id, owner_id, event_id, webhook_id, event, 'cancelled', attempt_count, created_at, now() from ended`;
}

/**
 * Makes retries that are due ready, or holds them if their webhook is disabled. Returns how many, and when the next one is due if
 * that is within two seconds: longer than until the next poll.
 */
export async function promoteDue(sql: Sql, batch = 1000): Promise<Promotion> {
  return only(
    await sql<Promotion[]>`
    with due as materialized (
      select id, webhook_id from delivery_queue
      where not ready and next_attempt_at <= now()
      order by next_attempt_at limit ${batch} for update skip locked
    ), disabled as materialized (${lockDisabled(sql, sql`select webhook_id from due`)}),
    promoted as (
      update delivery_queue
      set ready = disabled.id is null, next_attempt_at = case when disabled.id is null then next_attempt_at else 'infinity' end
      from due left join disabled on disabled.id = due.webhook_id
      where ${isOneOf(sql, sql`select id from due`)} and delivery_queue.id = due.id
      returning 1
    )
    select (select count(*)::int from promoted) as promoted, (
      -- Rounded up: a timer that fires early would find nothing.
      select ceil(extract(epoch from next_attempt_at - now()) * 1000)::int from delivery_queue
      where not ready and next_attempt_at > now() and next_attempt_at < now() + interval '2 seconds'
      order by next_attempt_at limit 1
    ) as "nextInMs"`,
  );
}

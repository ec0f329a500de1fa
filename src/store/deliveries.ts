/**
 * Deliveries as users see them: pending ones are in `delivery_queue`, others in `ended_deliveries`, and the view `deliveries` has
 * both. `delivery-queue.ts` is what the delivery loop does with them.
 */
import { only, type Sql, transaction } from '../db/client.ts';
import { type Fragment, identifier } from '../db/sql.ts';
import { newId } from '../lib/ids.ts';
import type { TryResult } from './delivery-queue.ts';
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

/** `progress`: the columns that are not in both tables. */
function columns(sql: Sql, progress: { status: Fragment; nextAttemptAt: Fragment; completedAt: Fragment }) {
  return sql`
    id, event_id as "eventId", webhook_id as "webhookId", event, ${progress.status} as status, attempt_count as "attemptCount",
    ${progress.nextAttemptAt} as "nextAttemptAt", iso_time(created_at) as "createdAt", ${progress.completedAt} as "completedAt"`;
}

/** A held delivery is scheduled for 'infinity'. */
const shownNextAttempt = (sql: Sql) =>
  sql`case when next_attempt_at < 'infinity' then iso_time(next_attempt_at) end`;

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
  const statuses = deliveryStatuses.filter((status) => !filter.status || status === filter.status);
  const ended = statuses.filter((status) => status !== 'pending');
  // The indexes have the event and the status before the time: one index for every combination of filters.
  const pagesFrom = (table: string, step: PageRequest, shown: Fragment, wanted: Fragment, group: Group) => {
    const ofWebhook = sql`${identifier(table)} where owner_id = ${ownerId} and webhook_id = ${webhookId}`;
    const kinds = filter.event ? sql`(select ${filter.event}::text as event) kinds` : kindsOf(sql, ofWebhook);
    const rows = sql`
      select ${shown}, ${position(sql)} from ${ofWebhook}
      ${pageWithin(sql, step, table, { event: sql`kinds.event`, ...group }, filter.since)}`;
    return pagesOf(sql, sql`${kinds} ${wanted}`, rows);
  };
  const queued = (step: PageRequest) => {
    const shown = columns(sql, {
      status: sql`'pending'`,
      nextAttemptAt: shownNextAttempt(sql),
      completedAt: sql`null`,
    });
    return pagesFrom('delivery_queue', step, shown, sql``, {});
  };
  const past = (step: PageRequest) => {
    const shown = columns(sql, {
      status: sql`status`,
      nextAttemptAt: sql`null`,
      completedAt: sql`iso_time(completed_at)`,
    });
    const wanted = sql`cross join unnest(${ended}::text[]) as wanted (status)`;
    return pagesFrom('ended_deliveries', step, shown, wanted, { status: sql`wanted.status` });
  };
  return collectPage(page, (step) =>
    mergePages<Delivery>(sql, step, [
      ...(statuses.includes('pending') ? [queued(step)] : []),
      ...(ended.length > 0 ? [past(step)] : []),
    ]),
  );
}

type Group = Parameters<typeof pageWithin>[3];

/** Hides deliveries of a deleted webhook, whose rows may still wait for the purge. */
export async function findDelivery(sql: Sql, ownerId: string, id: string): Promise<Delivery | undefined> {
  const shown = columns(sql, {
    status: sql`status`,
    nextAttemptAt: shownNextAttempt(sql),
    completedAt: sql`iso_time(completed_at)`,
  });
  const [row] = await sql<Delivery[]>`
    select ${shown} from deliveries
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
export function redeliver(sql: Sql, ownerId: string, id: string): Promise<boolean> {
  return transaction(sql, async (sql) => {
    await lockForRestart(sql, ownerId, [id]);
    const again = await sql`
      with ${takeEnded(sql, sql`owner_id = ${ownerId} and id = ${id}`)},
      queued as (
        insert into delivery_queue (id, owner_id, webhook_id, event_id, event, attempt_count, created_at)
        select id, owner_id, webhook_id, event_id, event, attempt_count, created_at from taken
        returning 1
      ), restarted as (
        update delivery_queue set ${restart(sql)} where owner_id = ${ownerId} and id = ${id} returning 1
      )
      select from queued union all select from restarted`;
    return again.count > 0;
  });
}

/**
 * Waits until other restarts of this owner, and the results that are being recorded for these deliveries, are committed, and stops
 * further ones until the end of the transaction. Without it, a delivery that moves from one table to the other meanwhile could be
 * seen in neither of them, or get into both.
 */
export async function lockForRestart(sql: Sql, ownerId: string, ids: readonly string[]): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtext('posthorn restart'), hashtext(${ownerId}))`;
  await sql`select from delivery_queue where id = any (${ids}::uuid[]) order by id for update`;
}

/** CTEs: `taken` deletes ended deliveries, to be queued again, and their last attempts go to the others. */
export function takeEnded(sql: Sql, condition: Fragment) {
  return sql`
    taken as (delete from ended_deliveries where ${condition} returning *),
    kept as (
      insert into earlier_attempts (delivery_id, owner_id, id, started_at, duration_ms, response_status, response_headers, response_body,
        error, error_detail)
      select id, owner_id, attempt_id, started_at, duration_ms, response_status, response_headers, response_body, error,
        error_detail
      from taken where attempt_id is not null
    )`;
}

/** The SET clause for a queued delivery whose schedule starts again. */
export function restart(sql: Sql) {
  return sql`ready = true, tries = 0, next_attempt_at = now()`;
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
      )
      insert into ended_deliveries (id, owner_id, event_id, webhook_id, event, status, attempt_count, completed_at, attempt_id,
        started_at, duration_ms, response_status, response_headers, response_body, error, error_detail)
      values (delivery_id(${event.id}, ${webhook.id}), ${ownerId}, ${event.id}, ${webhook.id}, ${event.event}, ${result.status},
        1, now(), ${newId()}, now() - ${result.durationMs}::int * interval '1 millisecond', ${result.durationMs},
        ${result.responseStatus}, ${result.responseHeaders}::text::json, ${result.responseBody}, ${result.error},
        ${result.errorDetail})
      returning id`,
  );
  return id;
}

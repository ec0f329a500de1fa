/**
 * Deliveries as users see them: pending ones are in `delivery_queue`, others in `ended_deliveries`, and the view `deliveries` has
 * both. `delivery-queue.ts` is what the delivery loop does with them.
 */
import { only, type Sql, transaction } from '../db/client.ts';
import { type Fragment, identifier } from '../db/sql.ts';
import { newId } from '../lib/ids.ts';
import type { TryResult } from './delivery-queue.ts';
import { identityExists } from './messages.ts';
import {
  collectPage,
  countBytes,
  kindsOf,
  type Listed,
  maxPageBytes,
  mergePages,
  type Page,
  type PageRequest,
  pageOf,
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
  /** Of a webhook that is not deleted. */
  webhookId?: string | undefined;
  /** Only deliveries of the events of these messages. */
  messageIds?: readonly string[] | undefined;
  eventId?: string | undefined;
  status?: Delivery['status'] | undefined;
  event?: string | undefined;
  since?: string | undefined;
}

/** The pages of one of the two tables. `wanted` is a FROM item with the statuses of `group`. */
type PagesFrom = (
  table: 'delivery_queue' | 'ended_deliveries',
  step: PageRequest,
  shown: Fragment,
  wanted: Fragment,
  group: { status?: Fragment },
) => Fragment;

export async function listDeliveries(
  sql: Sql,
  ownerId: string,
  filter: DeliveryFilter,
  page: PageRequest,
): Promise<Page<Listed<Delivery>>> {
  const statuses = deliveryStatuses.filter((status) => !filter.status || status === filter.status);
  const ended = statuses.filter((status) => status !== 'pending');
  const isOfEvents = filter.eventId !== undefined || filter.messageIds !== undefined;
  const pagesFrom = isOfEvents ? pagesOfEvents(sql, ownerId, filter) : pagesOfKinds(sql, ownerId, filter);
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

/** The indexes have the event and the status before the time: one index for every combination of filters. */
function pagesOfKinds(sql: Sql, ownerId: string, { webhookId, event, since }: DeliveryFilter): PagesFrom {
  return (table, step, shown, wanted, group) => {
    const ofWebhook = webhookId ? sql`and webhook_id = ${webhookId}` : sql``;
    const source = sql`${identifier(table)} where owner_id = ${ownerId} ${ofWebhook}`;
    const kinds = event ? sql`(select ${event}::text as event) kinds` : kindsOf(sql, source);
    const rows = sql`
      select ${shown}, ${position(sql)} from ${source} ${webhookId ? sql`` : isOfWebhook(sql, ownerId)}
      ${pageWithin(sql, step, table, { event: sql`kinds.event`, ...group }, since)}`;
    return pagesOf(sql, sql`${kinds} ${wanted}`, rows);
  };
}

/** An id of a delivery begins as the id of its event, so that the primary key finds the deliveries of an event. */
function pagesOfEvents(sql: Sql, ownerId: string, filter: DeliveryFilter): PagesFrom {
  const { webhookId, messageIds, eventId, event, since } = filter;
  const ofEvent = eventId ? sql`and id = ${eventId}` : sql``;
  const events = messageIds
    ? sql`select id from events where owner_id = ${ownerId} and message_id = any (${messageIds}::uuid[]) ${ofEvent}`
    : sql`select ${eventId ?? null}::uuid as id`;
  return (table, step, shown, wanted, { status }) => {
    const rows = sql`
      select ${shown}, ${position(sql)} from ${identifier(table)}
      where id between first_id_with(named.id) and last_id_with(named.id) and event_id = named.id and owner_id = ${ownerId}
        ${webhookId ? sql`and webhook_id = ${webhookId}` : isOfWebhook(sql, ownerId)}
        ${status ? sql`and status = ${status}` : sql``}
        ${event ? sql`and event = ${event}` : sql``}
        ${since ? sql`and created_at >= ${since}::text::timestamptz` : sql``}
        ${pageOf(sql, step, table)}`;
    return pagesOf(sql, sql`(${events}) named ${wanted}`, rows);
  };
}

/** Hides deliveries of deleted webhooks, whose rows may still wait for the purge. An array, because a join can be planned badly. */
function isOfWebhook(sql: Sql, ownerId: string) {
  return sql`
    and webhook_id = any (array(select id from webhooks where owner_id = ${ownerId} and deleted_at is null))`;
}

export interface DeliveryOutline {
  /** Null if the event is not about a message, and after the message was deleted. */
  messageId: string | null;
  /** JSON text. */
  subject: string | null;
  lastResponseStatus: number | null;
  lastError: string | null;
}

const noOutline: DeliveryOutline = {
  messageId: null,
  subject: null,
  lastResponseStatus: null,
  lastError: null,
};

/** Adds what a list shows beside each delivery. The subject as JSON: PostgreSQL cannot decode one that has a NUL. */
export async function outlineDeliveries<Row extends Delivery>(
  sql: Sql,
  ownerId: string,
  deliveries: readonly Row[],
): Promise<(Row & DeliveryOutline)[]> {
  const rows = await sql<(DeliveryOutline & { id: string })[]>`
    select listed.id, message.id as "messageId", message.subject, last.response_status as "lastResponseStatus",
      last.error as "lastError"
    from unnest(${deliveries.map(({ id }) => id)}::uuid[], ${deliveries.map(({ eventId }) => eventId)}::uuid[])
      as listed (id, event_id)
    left join lateral (
      select message_id from events where owner_id = ${ownerId} and id = listed.event_id offset 0
    ) event on true
    left join lateral (
      select id, (summary -> 'subject')::text as subject from messages
      where owner_id = ${ownerId} and id = event.message_id and ${identityExists(sql)} offset 0
    ) message on true
    left join lateral (
      select response_status, error from ended_deliveries where id = listed.id and attempt_id is not null
      union all
      (select response_status, error from earlier_attempts where delivery_id = listed.id order by delivery_id desc, id desc limit 1)
      limit 1
    ) last on true`;
  const outlines = new Map(rows.map(({ id, ...outline }) => [id, outline]));
  return deliveries.map((delivery) => ({ ...delivery, ...(outlines.get(delivery.id) ?? noOutline) }));
}

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

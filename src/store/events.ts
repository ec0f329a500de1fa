/** Events. Guarantee: an event and its deliveries are created in one statement, so no crash can separate them. */
import { only, type Sql } from '../db/client.ts';
import type { Fragment } from '../db/sql.ts';
import { newId } from '../lib/ids.ts';
import { decompress, unpackContent } from './content.ts';
import {
  collectPage,
  kindsOf,
  type Listed,
  mergePages,
  type Page,
  type PageRequest,
  pagesOf,
  pageWithin,
  position,
} from './page.ts';
import { leaseSeconds } from './queue-rows.ts';

export interface Event {
  id: string;
  event: string;
  identityId: string | null;
  createdAt: string;
}

function columns(sql: Sql) {
  return sql`
    events.id, events.event, events.identity_id as "identityId",
    iso_time(events.created_at) as "createdAt"`;
}

export interface NewEvent {
  id?: string;
  ownerId: string;
  event: string;
  identityId: string | null;
  /** JSON text, sent as it is. */
  data: string;
}

/** Creates the event and its deliveries in the caller's transaction. If there are deliveries, wake the delivery loop after the commit. */
export async function recordEvent(sql: Sql, given: NewEvent): Promise<{ id: string; deliveries: number }> {
  const id = given.id ?? newId();
  const { deliveries } = only(
    await sql<{ deliveries: number }[]>`
      with happened as (
        insert into events (id, owner_id, event, identity_id, data, bytes)
        values (${id}, ${given.ownerId}, ${given.event}, ${given.identityId}, ${given.data}::text::json,
          ${Buffer.byteLength(given.data)})
        returning id, owner_id, event, identity_id
      ), queued as (${queueDeliveries(sql)})
      select count(*)::int as deliveries from queued`,
  );
  return { id, deliveries };
}

/**
 * Inserts a delivery for each webhook that is subscribed to the events in `happened`, a CTE of the caller's statement.
 * `leaseToken`: the token of a delivery that this process has leased from the start; null for all others.
 */
export function queueDeliveries(sql: Sql, leaseToken: Fragment = sql`null::uuid`) {
  return sql`
    insert into delivery_queue (id, owner_id, event_id, webhook_id, event, lease_token, lease_until)
    select delivery_id(happened.id, webhook_id), happened.owner_id, happened.id, webhook_id, happened.event, token,
      case when token is not null then now() + ${leaseSeconds} * interval '1 second' end
    -- With "offset 0" the planner looks up the webhooks of each owner, and never reads those of all owners.
    from happened cross join lateral (
      select webhooks.id as webhook_id, ${leaseToken} as token from webhooks
      where webhooks.owner_id = happened.owner_id and ${isSubscribed(sql)}
      offset 0
    ) listening
    returning id, event_id, webhook_id`;
}

/** Whether a webhook is subscribed to the event `happened`. The caller joins them by owner. */
export function isSubscribed(sql: Sql) {
  return sql`
    webhooks.enabled and webhooks.deleted_at is null and happened.event = any (webhooks.events)
    and (webhooks.identity_id is null or webhooks.identity_id = happened.identity_id)`;
}

/** Hides mail of a deleted identity, whose rows may still wait for the purge. */
export function isVisible(sql: Sql) {
  // Not `exists`: after `or` PostgreSQL reads the identities of all owners into a hash table, while they fit into its memory.
  return sql`(
    events.message_id is null
    or (
      select true from identities
      where identities.owner_id = events.owner_id and identities.id = events.identity_id
    )
  )`;
}

export interface EventFilter {
  event?: string | undefined;
  identityId?: string | undefined;
  since?: string | undefined;
}

export async function listEvents(
  sql: Sql,
  ownerId: string,
  filter: EventFilter,
  page: PageRequest,
): Promise<Page<Listed<Event>>> {
  const { event, identityId, since } = filter;
  // Not `identity_id =`: with it the index without the identity has the order of a page too, and the planner, which knows nothing of
  // rare identities, may read that index through the events of all others.
  const wanted = sql`events where events.owner_id = ${ownerId} ${identityId ? sql`and events.identity_id is not null` : sql``}`;
  const within = identityId ? { identity_id: identityId } : {};
  // The indexes have the event before the time: one index with and one without the identity, for every combination of filters.
  const kinds = event ? sql`(select ${event}::text as event) kinds` : kindsOf(sql, wanted, within);
  const group = { ...within, event: sql`kinds.event` };
  return collectPage(page, (step) => {
    const ofKind = sql`
      select ${columns(sql)}, ${position(sql)} from ${wanted} and ${isVisible(sql)}
      ${pageWithin(sql, step, 'events', group, since)}`;
    return mergePages<Event>(sql, step, [pagesOf(sql, kinds, ofKind)]);
  });
}

export async function findEvent(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<(Event & StoredData) | undefined> {
  const [row] = await sql<(Event & StoredRow)[]>`
    select ${columns(sql)}, ${dataColumns(sql)} from events ${withContent(sql)}
    where events.owner_id = ${ownerId} and events.id = ${id} and ${isVisible(sql)}`;
  if (!row) return undefined;
  const { id: eventId, event, identityId, createdAt } = row;
  return { id: eventId, event, identityId, createdAt, ...toData(row) };
}

/** False: it was deleted with its message, and only the log of its deliveries is left. */
export async function hasEvent(sql: Sql, ownerId: string, id: string): Promise<boolean> {
  const found = await sql`select from events where owner_id = ${ownerId} and id = ${id}`;
  return found.count > 0;
}

/** The data of an event. For a received message, links and raw bytes are added when it is sent. */
export interface StoredData {
  /** JSON text. */
  data: string;
  messageId: string | null;
  /** Null if the raw message is not a part of the data. */
  raw: Buffer | null;
  /** Of the message, as JSON text, if the event is about outgoing mail: the data then has the rest. */
  summary: string | null;
}

/** The data of an event is in the event, or, if the event is about a received message, in the message. */
export interface StoredRow {
  summary: string | null;
  messageId: string | null;
  eventData: string | null;
  content: string | null;
  size: number;
  hasRaw: boolean;
  isInline: boolean;
  chunk: string | null;
  isCompressed: boolean;
}

export function dataColumns(sql: Sql) {
  return sql`
    events.message_id as "messageId", events.data::text as "eventData",
    case when events.data is null then encode(messages.content, 'base64') end as content,
    messages.size, messages.raw_id is null as "hasRaw", is_inline or inline_raw_id is not null as "isInline",
    encode(raw_chunks.bytes, 'base64') as chunk, is_compressed as "isCompressed",
    case when events.event <> 'message.received' then messages.summary::text end as summary`;
}

export function withContent(sql: Sql) {
  return sql`
    left join messages on messages.id = events.message_id
      and (events.data is null or events.event <> 'message.received')
    left join raw_chunks
      on raw_chunks.raw_id = coalesce(inline_raw_id, case when is_inline then messages.raw_id end) and raw_chunks.n = 0`;
}

export function toData(row: StoredRow): StoredData {
  const { messageId, eventData, content, isInline, chunk, isCompressed, summary } = row;
  const unpacked = content === null ? null : unpackContent({ ...row, content });
  const bytes = chunk === null ? null : Buffer.from(chunk, 'base64');
  const raw = unpacked?.raw ?? (bytes && isCompressed ? decompress(bytes) : bytes);
  return { data: eventData ?? unpacked?.data ?? 'null', messageId, raw: isInline ? raw : null, summary };
}

/** For the delivery loop. The queries have no owner filter: the loop works for all users. */
export type ReadEvent = { id: string; event: string } & StoredData;

export async function readEventData(sql: Sql, id: string): Promise<ReadEvent | undefined> {
  const [row] = await selectEventData(sql, [id]);
  return row && toReadEvent(row);
}

/**
 * Passes on each row as it arrives. Hundreds of texts that wait for the last row survive the minor garbage collections, and the
 * major collections that follow are a fifth of the cost of a delivery.
 */
export async function forEachSmallEvent(
  sql: Sql,
  ids: readonly string[],
  maxBytes: number,
  take: (event: ReadEvent) => void,
): Promise<void> {
  await selectEventData(sql, ids, maxBytes).forEach((row) => {
    take(toReadEvent(row));
  });
}

type EventRow = StoredRow & { id: string; event: string };

function toReadEvent(row: EventRow): ReadEvent {
  return { id: row.id, event: row.event, ...toData(row) };
}

function selectEventData(sql: Sql, ids: readonly string[], maxBytes?: number) {
  return sql<EventRow[]>`
    select events.id, events.event, ${dataColumns(sql)} from events ${withContent(sql)}
    where events.id = any (${ids}::uuid[]) and (events.data is not null or messages.id is not null)
      ${maxBytes === undefined ? sql`` : sql`and events.bytes <= ${maxBytes}`}`;
}

/** About how many bytes its body takes in memory. */
export async function readEventSize(
  sql: Sql,
  id: string,
): Promise<{ bytes: number; ownerId: string } | undefined> {
  const [row] = await sql<{ bytes: number; ownerId: string }[]>`
    select bytes, owner_id as "ownerId" from events where id = ${id}`;
  return row;
}

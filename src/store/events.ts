/** Events: what happened, for whom. An event and its deliveries are born in one statement; there is no "commit, then enqueue". */
import { only, type Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { type Page, type PageRequest, pageOf, position, toPage } from './page.ts';

export interface Event {
  id: string;
  event: string;
  identityId: string | null;
  createdAt: string;
}

type ListedEvent = Event & { position: string };

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

/**
 * Records the event and a delivery for every webhook of the owner that listens now, inside the caller's transaction.
 * Returns how many deliveries there are; when it is more than none, wake the delivery loop after the commit.
 */
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

/** Makes a delivery for every webhook of the owner that listens now; `happened` is the event. */
export function queueDeliveries(sql: Sql) {
  return sql`
    insert into deliveries (id, owner_id, event_id, webhook_id, event)
    select delivery_id(happened.id, webhooks.id), happened.owner_id, happened.id, webhooks.id, happened.event
    from happened join webhooks using (owner_id)
    where ${listens(sql)}
    returning 1`;
}

/** Which webhooks an event reaches; `happened` is the event. The owner is joined on by whoever asks. */
export function listens(sql: Sql) {
  return sql`
    webhooks.enabled and webhooks.deleted_at is null and happened.event = any (webhooks.events)
    and (webhooks.identity_id is null or webhooks.identity_id = happened.identity_id)`;
}

/** Mail of an identity that was deleted is gone with it, though its rows may wait for the purge. */
export function isThere(sql: Sql) {
  return sql`
    (events.message_id is null or exists (
      select from identities
      where identities.owner_id = events.owner_id and identities.id = events.identity_id
    ))`;
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
): Promise<Page<ListedEvent>> {
  const rows = await sql<ListedEvent[]>`
    select ${columns(sql)}, ${position(sql)}
    from events
    where owner_id = ${ownerId} and ${isThere(sql)}
      ${filter.event ? sql`and event = ${filter.event}` : sql``}
      ${filter.identityId ? sql`and identity_id = ${filter.identityId}` : sql``}
      ${filter.since ? sql`and created_at >= ${filter.since}::text::timestamptz` : sql``}
      ${pageOf(sql, page)}`;
  return toPage(rows, page);
}

export async function findEvent(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<(Event & StoredData) | undefined> {
  const [row] = await sql<(Event & StoredData)[]>`
    select ${columns(sql)}, ${dataColumns(sql)} from events ${withRaw(sql)}
    where events.owner_id = ${ownerId} and events.id = ${id} and ${isThere(sql)}`;
  return row;
}

/** What of an event's data is stored with it. That of a message is completed, by its links and raw bytes, when it is told. */
export interface StoredData {
  /** JSON text. */
  data: string;
  messageId: string | null;
  /** Base64: the driver reads it at less than two thirds of the cost of hex. */
  raw: string | null;
}

function dataColumns(sql: Sql) {
  return sql`events.data::text as data, events.message_id as "messageId", encode(raw_chunks.bytes, 'base64') as raw`;
}

function withRaw(sql: Sql) {
  return sql`left join raw_chunks on raw_chunks.raw_id = events.inline_raw_id and raw_chunks.n = 0`;
}

/** An event and what of its data is stored, as the delivery loop reads it: not by owner, since it works for all of them. */
export type ReadEvent = { id: string; event: string } & StoredData;

export async function readEventData(sql: Sql, id: string): Promise<ReadEvent | undefined> {
  const [row] = await selectEventData(sql, [id]);
  return row;
}

/**
 * The small ones among these, each taken as it comes: hundreds of texts that wait for the last of them outlive the garbage
 * collector's quick rounds, and the slow ones that they then cause are a fifth of what a delivery costs.
 */
export async function forEachSmallEvent(
  sql: Sql,
  ids: readonly string[],
  maxBytes: number,
  take: (event: ReadEvent) => void,
): Promise<void> {
  await selectEventData(sql, ids, maxBytes).forEach(take);
}

function selectEventData(sql: Sql, ids: readonly string[], maxBytes?: number) {
  return sql<ReadEvent[]>`
    select events.id, events.event, ${dataColumns(sql)} from events ${withRaw(sql)}
    where events.id = any (${ids}::uuid[])
      ${maxBytes === undefined ? sql`` : sql`and events.bytes <= ${maxBytes}`}`;
}

/** About how much memory its body takes; undefined when there is no such event. */
export async function readEventSize(sql: Sql, id: string): Promise<number | undefined> {
  const [row] = await sql<{ bytes: number }[]>`select bytes from events where id = ${id}`;
  return row?.bytes;
}

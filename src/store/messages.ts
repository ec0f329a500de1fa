/**
 * Received messages. Guarantee: a message, its event and the event's deliveries are created in one statement. Equal raw bytes are
 * stored once for each owner, in rows of up to 1 MiB.
 */
import { only, type Sql } from '../db/client.ts';
import { identityExists, queueDeliveries } from './events.ts';
import {
  collectPage,
  type Listed,
  type Page,
  type PageRequest,
  pageOf,
  pageWithin,
  position,
} from './page.ts';

export const chunkBytes = 1024 * 1024;

export interface NewMessage {
  id: string;
  ownerId: string;
  identityId: string;
  eventId: string;
  threadId: string;
  /** The id of the first message of this owner with these bytes. */
  rawId: string;
  raw: Buffer;
  sha256: Buffer;
  /** JSON texts: the message in lists, and the data of its event. */
  summary: string;
  data: string;
  /** Whether webhooks receive the raw bytes in the event. */
  inline: boolean;
  messageKey: string | null;
  repeatKey: string | null;
}

interface RecordedMessage {
  /** For a repeated message, the id of the first; null if the identity was deleted or may no longer receive mail. */
  id: string | null;
  deliveries: number;
}

/**
 * Stores a message with its event and deliveries. Does nothing if the same message came within 24 hours, or if its identity was
 * deleted or may no longer receive mail since the recipient was routed.
 */
export async function recordMessage(
  sql: Sql,
  given: NewMessage,
  options: { acceptUnverified: boolean },
): Promise<RecordedMessage> {
  const { id, ownerId, identityId, rawId, raw } = given;
  const bytes = Buffer.byteLength(given.data) + (given.inline ? raw.length : 0);
  const row = only(
    await sql<{ known: boolean; stored: boolean; deliveries: number }[]>`
      with identity as materialized (
        select from identities
        where owner_id = ${ownerId} and id = ${identityId} and (
          status = 'verified' or ${options.acceptUnverified} and not exists (
            select from identities verified
            where verified.kind = identities.kind and verified.value_key = identities.value_key
              and verified.status = 'verified'
          )
        )
      ), made as (
        insert into messages (id, owner_id, identity_id, event_id, raw_id, size, sha256, thread_id, summary, message_key,
          repeat_key)
        select ${id}::uuid, ${ownerId}::uuid, ${identityId}::uuid, ${given.eventId}::uuid, ${rawId}::uuid,
          ${raw.length}::int, ${given.sha256}::bytea, ${given.threadId}::uuid, ${given.summary}::text::json,
          ${given.messageKey}::uuid, ${given.repeatKey}::uuid
        from identity
        where not exists (
          select from messages
          where identity_id = ${identityId} and repeat_key = ${given.repeatKey}
            and received_on >= (now() at time zone 'utc')::date - 1 and created_at > now() - interval '24 hours'
        )
        on conflict (identity_id, repeat_key, received_on) where repeat_key is not null do nothing
        returning id
      ), kept as (
        insert into raw_chunks (raw_id, n, owner_id, bytes)
        select ${rawId}::uuid, 0, ${ownerId}::uuid, ${raw.subarray(0, chunkBytes)}::bytea from made
        on conflict (raw_id, n) do nothing
      ), happened as (
        insert into events (id, owner_id, event, identity_id, data, bytes, message_id, inline_raw_id)
        select ${given.eventId}::uuid, ${ownerId}::uuid, 'message.received', ${identityId}::uuid,
          ${given.data}::text::json, ${bytes}::int, made.id, ${given.inline ? rawId : null}::uuid
        from made
        returning id, owner_id, event, identity_id
      ), queued as (${queueDeliveries(sql)})
      select exists (select from identity) as known, exists (select from made) as stored,
        (select count(*)::int from queued) as deliveries`,
  );
  if (row.stored) await saveFurtherChunks(sql, given);
  const storedId = row.stored ? id : row.known ? await findFirst(sql, given) : null;
  return { id: storedId, deliveries: row.deliveries };
}

async function findFirst(sql: Sql, { ownerId, identityId, repeatKey }: NewMessage): Promise<string> {
  const { id } = only(
    await sql<{ id: string }[]>`
      select id from messages
      where owner_id = ${ownerId} and identity_id = ${identityId} and repeat_key = ${repeatKey}
      order by created_at desc limit 1`,
  );
  return id;
}

async function saveFurtherChunks(sql: Sql, { rawId, ownerId, raw }: NewMessage): Promise<void> {
  for (let n = 1; n * chunkBytes < raw.length; n += 1) {
    await sql`
      insert into raw_chunks (raw_id, n, owner_id, bytes)
      values (${rawId}, ${n}, ${ownerId}, ${raw.subarray(n * chunkBytes, (n + 1) * chunkBytes)})
      on conflict (raw_id, n) do nothing`;
  }
}

/** The thread of the newest of these messages that the identity has. */
export async function findThread(
  sql: Sql,
  ownerId: string,
  identityId: string,
  messageKeys: readonly string[],
): Promise<string | undefined> {
  // The newest of each key, because a sender may use one Message-ID a thousand times.
  const [row] = await sql<{ threadId: string }[]>`
    select thread_id as "threadId"
    from unnest(${messageKeys}::uuid[]) as named (key) cross join lateral (
      select thread_id, created_at from messages
      where owner_id = ${ownerId} and identity_id = ${identityId} and message_key = named.key
      order by created_at desc limit 1
    ) newest
    order by newest.created_at desc limit 1`;
  return row?.threadId;
}

export interface MessageFilter {
  identityId?: string | undefined;
  since?: string | undefined;
}

interface MessageSummary {
  id: string;
  /** JSON text. */
  summary: string;
}

/** A summary can have hundreds of KB: few of them are in memory beyond the end of a page. */
const summariesAtOnce = 8;

export async function listMessages(
  sql: Sql,
  ownerId: string,
  filter: MessageFilter,
  page: PageRequest,
): Promise<Page<Listed<MessageSummary>>> {
  const { identityId, since } = filter;
  const read = (step: PageRequest) => sql<Listed<MessageSummary>[]>`
    select id, summary::text as summary, ${position(sql)}
    from messages
    where owner_id = ${ownerId} and ${identityExists(sql, 'messages')} ${
      identityId
        ? pageWithin(sql, step, 'messages', { identity_id: identityId }, since)
        : sql`${since ? sql`and created_at >= ${since}::text::timestamptz` : sql``} ${pageOf(sql, step)}`
    }`;
  return collectPage(page, read, summariesAtOnce);
}

/** The message as in its event, without links. */
export async function findMessage(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<Record<string, unknown> | undefined> {
  // PostgreSQL's `->` refuses a text that contains \u0000.
  const [row] = await sql<{ data: string }[]>`
    select events.data::text as data
    from messages join events on events.owner_id = messages.owner_id and events.id = messages.event_id
    where messages.owner_id = ${ownerId} and messages.id = ${id} and ${identityExists(sql, 'messages')}`;
  return row && JSON.parse(row.data).message;
}

export interface StoredRaw {
  ownerId: string;
  rawId: string;
  size: number;
  sha256: Buffer;
}

/** For a signed link, whose signature is the permission. Not by owner: it finds the owner. */
export async function findMessageOwner(sql: Sql, id: string): Promise<string | undefined> {
  const [row] = await sql<{ ownerId: string }[]>`select owner_id as "ownerId" from messages where id = ${id}`;
  return row?.ownerId;
}

export async function findRaw(sql: Sql, ownerId: string, id: string): Promise<StoredRaw | undefined> {
  const [row] = await sql<StoredRaw[]>`
    select owner_id as "ownerId", raw_id as "rawId", size, sha256 from messages
    where owner_id = ${ownerId} and id = ${id} and ${identityExists(sql, 'messages')}`;
  return row;
}

/** Less than a row, and base64 instead of the longer hex, because the driver copies the text several times. */
const pieceBytes = 256 * 1024;

/** The bytes from `start` to `end` (exclusive), in pieces. */
export async function* readRaw(
  sql: Sql,
  rawId: string,
  start: number,
  end: number,
): AsyncGenerator<Buffer, void, undefined> {
  for (let at = start; at < end; ) {
    const n = Math.floor(at / chunkBytes);
    const from = at - n * chunkBytes;
    const length = Math.min(chunkBytes - from, end - at, pieceBytes);
    const { bytes } = only(
      await sql<{ bytes: string }[]>`
        select encode(substring(bytes from ${from + 1}::int for ${length}::int), 'base64') as bytes
        from raw_chunks where raw_id = ${rawId} and n = ${n}`,
    );
    yield Buffer.from(bytes, 'base64');
    at += length;
  }
}

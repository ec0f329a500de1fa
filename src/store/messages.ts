/**
 * Messages, and the recording of received ones. Guarantee: a received message, its event and the event's deliveries are created in
 * one statement. Raw bytes are stored once for each owner: small ones in the content of the message (`content.ts`), others in rows
 * of up to 1 MiB.
 */
import { only, type Sql } from '../db/client.ts';
import { list } from '../db/sql.ts';
import { compress, decompress, unpackContent } from './content.ts';
import { queueDeliveries } from './events.ts';
import { isDomainFree } from './receivers.ts';
import { sendingOfMessage } from './sending-json.ts';
import { countEvents } from './traffic.ts';

export interface NewRaw {
  id: string;
  ownerId: string;
  /** Null: the content has the raw bytes. Otherwise they have rows of their own, under the id of their first message. */
  rawId: string | null;
  raw: Buffer;
  sha256: Buffer;
}

export interface NewMessage extends NewRaw {
  identityId: string;
  /** The server that holds the mailbox of the identity vouches for the mail: it is recorded whatever the identity's status. */
  isVouched: boolean;
  eventId: string;
  threadId: string;
  /** JSON texts: the message in lists, and the data of its event. */
  summary: string;
  data: string;
  /** As stored, from `packContent`. */
  content: Buffer;
  /** Whether webhooks receive the raw bytes in the event. */
  inline: boolean;
  /** What the raw bytes take in the event as JSON; 0 if webhooks do not receive them. */
  inlineBytes: number;
  messageKey: string | null;
  repeatKey: string | null;
  /** From `wordKeysOf`. */
  words: readonly bigint[];
}

/** Webhooks whose deliveries this process leases from the start, and the token of the leases. */
export interface OfferedLease {
  token: string;
  webhookIds: readonly string[];
}

export interface UnrecordedMessage {
  message: NewMessage;
  lease: OfferedLease | null;
}

export interface QueuedDelivery {
  id: string;
  webhookId: string;
}

/** `repeat`: the same message came within 24 hours. `gone`: its identity was deleted or is no longer verified. */
export interface RecordedMessage {
  outcome: 'recorded' | 'repeat' | 'gone';
  deliveries: readonly QueuedDelivery[];
}

export interface RecordOptions {
  acceptUnverified: boolean;
  /** For mail that another server holds. Mail from a Sent folder is outgoing, and has no event. */
  fromMailbox?: { direction: 'incoming' | 'outgoing'; hasEvent: boolean };
}

export const chunkBytes = 1024 * 1024;

/**
 * Stores messages of at most `chunkBytes` with their events and deliveries, in one statement: all of them or none. Does nothing
 * for a repeat, also of another message in the list, or if the identity is gone.
 */
export async function recordMessages(
  sql: Sql,
  unrecorded: readonly UnrecordedMessage[],
  { acceptUnverified, fromMailbox }: RecordOptions,
): Promise<RecordedMessage[]> {
  const { direction, hasEvent } = fromMailbox ?? { direction: 'incoming', hasEvent: true };
  const chunks = await Promise.all(unrecorded.map(({ message }) => packChunk(message, 0)));
  const values = pad(unrecorded).map((one, n) => writeRow(sql, one, chunks[n] ?? null));
  // Subqueries with a limit, because the planner would read whole tables for a join with many messages.
  const rows = await sql<StoredMessage[]>`
    with given as (
      select * from (values ${list(values)}) as given (id, owner_id, identity_id,
        event_id, raw_id, thread_id, message_key, repeat_key, size, sha256, summary, content, bytes, is_inline, chunk, lease_token,
        leased_webhooks, is_vouched, words)
      where id is not null
    ), receiving as materialized (
      select given.id from given cross join lateral (
        select from identities
        where owner_id = given.owner_id and id = given.identity_id and (
          status = 'verified' or given.is_vouched or ${acceptUnverified} and not exists (
            select from identities verified
            where verified.kind = identities.kind and verified.value_key = identities.value_key
              and verified.status = 'verified'
          ) and ${isDomainFree(sql)}
        )
        limit 1
      ) identity
    ), made as (
      insert into messages (id, owner_id, identity_id, raw_id, size, sha256, thread_id, summary, content, message_key, repeat_key,
        direction, is_silent, words)
      select id, owner_id, identity_id, raw_id, size, sha256, thread_id, summary, content, message_key, repeat_key,
        ${direction}, ${!hasEvent}, given.words
      from given join receiving using (id)
      where (
        select true from messages
        where messages.identity_id = given.identity_id and messages.repeat_key = given.repeat_key
          and received_on >= (now() at time zone 'utc')::date - 1 and created_at > now() - interval '24 hours'
        limit 1
      ) is null
      -- Two statements that have messages in common wait for each other, but never in a circle.
      order by identity_id, repeat_key, id
      on conflict (identity_id, repeat_key, received_on) where repeat_key is not null do nothing
      returning id
    ), kept as (
      insert into raw_chunks (raw_id, n, owner_id, bytes, is_compressed)
      select raw_id, 0, owner_id, chunk, true from given join made using (id) where raw_id is not null
      on conflict (raw_id, n) do nothing
    ), announced as (
      insert into events (id, owner_id, event, identity_id, bytes, message_id, is_inline)
      select event_id, owner_id, 'message.received', identity_id, bytes, id, is_inline
      from given join made using (id) where ${hasEvent}
      returning id, owner_id, event, identity_id
    ), happened as (
      select announced.*, lease_token, leased_webhooks from announced join given on given.event_id = announced.id
    ), queued as (${queueDeliveries(sql, sql`case when webhooks.id = any (leased_webhooks) then lease_token end`)}),
    counted as (${countEvents(sql, sql`announced`)}),
    listed as (
      select event_id, array_agg(id)::text[] as ids, array_agg(webhook_id)::text[] as webhooks from queued group by event_id
    )
    select given.id, receiving.id is not null as known, made.id is not null as stored, listed.ids as "deliveryIds",
      listed.webhooks as "webhookIds"
    from given left join receiving using (id) left join made using (id) left join listed using (event_id)`;
  const byId = new Map(rows.map((row) => [row.id, row]));
  return unrecorded.map(({ message }) => toRecorded(byId.get(message.id)));
}

interface StoredMessage {
  id: string;
  known: boolean;
  stored: boolean;
  deliveryIds: string[] | null;
  webhookIds: string[] | null;
}

function toRecorded(row: StoredMessage | undefined): RecordedMessage {
  if (!row?.known) return { outcome: 'gone', deliveries: [] };
  const webhookIds = row.webhookIds ?? [];
  const deliveries = (row.deliveryIds ?? []).map((id, n) => ({ id, webhookId: webhookIds[n] ?? '' }));
  return { outcome: row.stored ? 'recorded' : 'repeat', deliveries };
}

/** To a power of two: each number of rows is a statement of its own, which a connection prepares and PostgreSQL plans. */
function pad(unrecorded: readonly UnrecordedMessage[]): (UnrecordedMessage | null)[] {
  const length = 2 ** Math.ceil(Math.log2(Math.max(1, unrecorded.length)));
  return Array.from({ length }, (_, n) => unrecorded[n] ?? null);
}

/** A row of parameters, not an array for each column: PostgreSQL parses arrays of bytes and of JSON character by character. */
function writeRow(sql: Sql, unrecorded: UnrecordedMessage | null, chunk: Buffer | null) {
  const { message, lease } = unrecorded ?? {};
  return sql`(${message?.id ?? null}::uuid, ${message?.ownerId ?? null}::uuid, ${message?.identityId ?? null}::uuid,
    ${message?.eventId ?? null}::uuid, ${message?.rawId ?? null}::uuid, ${message?.threadId ?? null}::uuid,
    ${message?.messageKey ?? null}::uuid, ${message?.repeatKey ?? null}::uuid, ${message?.raw.length ?? null}::int,
    ${message?.sha256 ?? null}::bytea, ${message?.summary ?? null}::text::json, ${message?.content ?? null}::bytea,
    ${message ? eventBytes(message) : null}::int, ${message?.inline ?? null}::boolean, ${chunk}::bytea,
    ${lease?.token ?? null}::uuid, ${lease?.webhookIds ?? null}::uuid[], ${message?.isVouched ?? null}::boolean,
    ${message?.words ?? null}::bigint[])`;
}

/** About how many bytes the body of its event takes. */
export function eventBytes({ data, inlineBytes }: NewMessage): number {
  return Buffer.byteLength(data) + inlineBytes;
}

/** One message of any size. Larger ones than `chunkBytes` need a transaction. */
export async function recordMessage(
  sql: Sql,
  unrecorded: UnrecordedMessage,
  options: RecordOptions,
): Promise<RecordedMessage> {
  const recorded = only(await recordMessages(sql, [unrecorded], options));
  if (recorded.outcome === 'recorded') await saveFurtherChunks(sql, unrecorded.message);
  return recorded;
}

/** The id of the first message that this one repeats. */
export async function findFirst(
  sql: Sql,
  { ownerId, identityId, repeatKey }: Pick<NewMessage, 'ownerId' | 'identityId' | 'repeatKey'>,
): Promise<string> {
  const { id } = only(
    await sql<{ id: string }[]>`
      select id from messages
      where owner_id = ${ownerId} and identity_id = ${identityId} and repeat_key = ${repeatKey}
      order by created_at desc limit 1`,
  );
  return id;
}

export async function saveFurtherChunks(sql: Sql, message: NewRaw): Promise<void> {
  const { rawId, ownerId, raw } = message;
  for (let n = 1; n * chunkBytes < raw.length; n += 1) {
    await sql`
      insert into raw_chunks (raw_id, n, owner_id, bytes, is_compressed)
      values (${rawId}, ${n}, ${ownerId}, ${await packChunk(message, n)}, true)
      on conflict (raw_id, n) do nothing`;
  }
}

export async function packChunk({ rawId, raw }: NewRaw, n: number): Promise<Buffer | null> {
  return rawId === null ? null : compress(raw.subarray(n * chunkBytes, (n + 1) * chunkBytes));
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

/** The newest message with this Message-ID: of the identity, or else of another of the owner's identities. */
export async function findMessageId(
  sql: Sql,
  ownerId: string,
  identityId: string,
  key: string,
): Promise<string | undefined> {
  const [row] = await sql<{ id: string }[]>`
    select newest.id
    from identities cross join lateral (
      select id, created_at from messages
      where messages.owner_id = identities.owner_id and messages.identity_id = identities.id and message_key = ${key}
      order by created_at desc limit 1
    ) newest
    where identities.owner_id = ${ownerId}
    order by identities.id = ${identityId} desc, newest.created_at desc limit 1`;
  return row?.id;
}

/** Hides messages of a deleted identity, whose rows may still wait for the purge. */
export function identityExists(sql: Sql) {
  return sql`
    exists (
      select from identities
      where identities.owner_id = messages.owner_id and identities.id = messages.identity_id
    )`;
}

/** For an API key that sees only its own messages; null: any. */
export function madeWith(sql: Sql, keyId: string | null) {
  return keyId === null
    ? sql``
    : sql`and exists (select from outgoing where outgoing.id = messages.id and outgoing.key_id = ${keyId})`;
}

export interface FoundMessage {
  /** JSON text, without links. */
  data: string;
  /** JSON text; null for a message that was not sent from here. */
  sending: string | null;
}

/** What the message stores, and the state of its recipients. `keyId`: only a message that was made with this key. */
export async function findMessage(
  sql: Sql,
  ownerId: string,
  id: string,
  keyId: string | null = null,
): Promise<FoundMessage | undefined> {
  const [row] = await sql<
    {
      content: string | null;
      size: number;
      hasRaw: boolean;
      eventData: string | null;
      sending: string | null;
    }[]
  >`
    select encode(content, 'base64') as content, size, raw_id is null as "hasRaw", events.data::text as "eventData",
      ${sendingOfMessage(sql)} as sending
    from messages left join events on events.owner_id = messages.owner_id and events.id = messages.event_id
    where messages.owner_id = ${ownerId} and messages.id = ${id} and ${identityExists(sql)} ${madeWith(sql, keyId)}`;
  if (!row) return undefined;
  const { content, eventData, sending } = row;
  const data = content === null ? (eventData ?? undefined) : unpackContent({ ...row, content }).data;
  return data === undefined ? undefined : { data, sending };
}

export interface StoredRaw {
  ownerId: string;
  id: string;
  rawId: string | null;
  size: number;
  sha256: Buffer;
}

/** For a signed link, whose signature is the permission. Not by owner: it finds the owner. */
export async function findMessageOwner(sql: Sql, id: string): Promise<string | undefined> {
  const [row] = await sql<{ ownerId: string }[]>`select owner_id as "ownerId" from messages where id = ${id}`;
  return row?.ownerId;
}

export async function findRaw(
  sql: Sql,
  ownerId: string,
  id: string,
  keyId: string | null = null,
): Promise<StoredRaw | undefined> {
  const [row] = await sql<StoredRaw[]>`
    select owner_id as "ownerId", id, raw_id as "rawId", size, sha256 from messages
    where owner_id = ${ownerId} and id = ${id} and ${identityExists(sql)} ${madeWith(sql, keyId)}`;
  return row;
}

/** The bytes from `start` to `end` (exclusive), in pieces of up to `chunkBytes`. */
export async function* readRaw(
  sql: Sql,
  stored: StoredRaw,
  start: number,
  end: number,
): AsyncGenerator<Buffer, void, undefined> {
  for (let at = start; at < end; ) {
    const n = Math.floor(at / chunkBytes);
    const chunk =
      stored.rawId === null ? await readPacked(sql, stored) : await readChunk(sql, stored.rawId, n);
    const piece = chunk.subarray(at - n * chunkBytes, end - n * chunkBytes);
    yield piece;
    at += piece.length;
  }
}

/** Into a buffer of its own, which can be transferred to a worker. */
export async function readWhole(sql: Sql, stored: StoredRaw): Promise<Buffer> {
  const raw = Buffer.from(new ArrayBuffer(stored.size));
  let offset = 0;
  for await (const chunk of readRaw(sql, stored, 0, stored.size)) offset += chunk.copy(raw, offset);
  return raw;
}

async function readPacked(sql: Sql, { ownerId, id, size }: StoredRaw): Promise<Buffer> {
  const { content } = only(
    await sql<{ content: string }[]>`
      select encode(content, 'base64') as content from messages where owner_id = ${ownerId} and id = ${id}`,
  );
  const { raw } = unpackContent({ content, size, hasRaw: true });
  if (raw?.length !== size) throw new Error(`The raw bytes of message ${id} are not complete`);
  return raw;
}

/** Base64 instead of the longer hex. */
async function readChunk(sql: Sql, rawId: string, n: number): Promise<Buffer> {
  const { bytes, isCompressed } = only(
    await sql<{ bytes: string; isCompressed: boolean }[]>`
      select encode(bytes, 'base64') as bytes, is_compressed as "isCompressed"
      from raw_chunks where raw_id = ${rawId} and n = ${n}`,
  );
  const stored = Buffer.from(bytes, 'base64');
  return isCompressed ? decompress(stored) : stored;
}

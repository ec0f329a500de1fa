/**
 * The queue of outgoing mail: one job for each recipient. Guarantees: the result of a try is recorded only while its lease is ours;
 * recipient, message, attempt, events and deliveries change in one transaction.
 */
import { only, type Sql, transaction } from '../db/client.ts';
import type { Lease } from '../queue/leases.ts';
import type { ClaimRequest, Promotion } from '../queue/worker.ts';
import { unpackContent } from './content.ts';
import type { StoredRaw } from './messages.ts';
import { countChanges, lockOutgoing, type RecipientStatus, roundUp, type Transport } from './outgoing.ts';
import { claimRows, isOneOf, leasedRows, type QueueTable, releaseRows, renewRows } from './queue-rows.ts';
import {
  type Announcement,
  announce,
  type BounceSource,
  type BounceType,
  cutResponse,
  type ReportedResponse,
} from './send-events.ts';
import { hasWay, type SenderWay, wayColumns } from './senders.ts';
import { suppress } from './suppressions.ts';

const sendQueue: QueueTable = { table: 'send_queue', lane: 'lane_id' };

export interface ClaimedSend extends Lease {
  ownerId: string;
  laneId: string;
  messageId: string;
  /** The recipient's place in the message. */
  n: number;
  /** Tries so far. */
  tries: number;
}

/** Leases recipients that are due, a few of each lane of each owner (the group). */
export function claimSends(sql: Sql, request: ClaimRequest): Promise<ClaimedSend[]> {
  return claimRows<ClaimedSend>(sql, sendQueue, request, {
    isOpen: sql`true`,
    columns: sql`owner_id as "ownerId", lane_id as "laneId", message_id as "messageId", n::int as n, tries`,
  });
}

/** What a try needs to know. The way is the one that the mail of the identity leaves by now. */
export interface SendFacts extends SenderWay {
  /** Of the row in the queue. */
  id: string;
  address: string;
  /** The domain of the identity. */
  domain: string;
  /** The identities of the other addresses in From and Sender, as they are now; null: there are none. */
  coauthors: SenderWay[] | null;
  /** The author of a message that leaves through an account or a provider. */
  from: string | null;
  isSuppressed: boolean;
  /** It was cancelled after it was claimed, by this process or by one that died. */
  isCancelling: boolean;
  eightBit: boolean;
  smtpUtf8: boolean;
  size: number;
  /** The raw bytes, if they are small; null: they have rows of their own (`readRaw`). */
  raw: Buffer | null;
  stored: StoredRaw;
}

/** Of those whose message still exists. Not by owner: the loop works for all users, on ids that it claimed. */
export async function readSends(sql: Sql, ids: readonly string[]): Promise<SendFacts[]> {
  const rows = await sql<
    (Omit<SendFacts, 'raw' | 'stored'> & StoredRaw & { sendId: string; content: string | null })[]
  >`
    select send_queue.id as "sendId", recipients.address, identities.domain, identities.status = 'verified' as "isVerified",
      ${wayColumns(sql)}, case when ${hasWay(sql)} then messages.summary #>> '{from,address}' end as "from",
      (
        select json_agg(coauthor) from (
          select coalesce(identities.status = 'verified', false) as "isVerified", ${wayColumns(sql)}
          from unnest(outgoing.coauthor_ids) given (id)
          left join identities on identities.owner_id = messages.owner_id and identities.id = given.id
        ) coauthor
      ) as coauthors,
      exists (
        select from suppressions
        where suppressions.owner_id = recipients.owner_id and suppressions.address_key = recipients.address_key
      ) as "isSuppressed",
      is_cancelling as "isCancelling", eight_bit as "eightBit", smtp_utf8 as "smtpUtf8", messages.owner_id as "ownerId", messages.id, raw_id as "rawId", size,
      sha256, case when raw_id is null then encode(content, 'base64') end as content
    from send_queue
    join recipients on recipients.message_id = send_queue.message_id and recipients.n = send_queue.n
    join outgoing on outgoing.id = send_queue.message_id
    join messages on messages.id = send_queue.message_id
    join identities on identities.owner_id = messages.owner_id and identities.id = messages.identity_id
    where send_queue.id = any (${ids}::uuid[])`;
  return rows.map(({ sendId, content, id, ownerId, rawId, sha256, size, ...facts }) => ({
    ...facts,
    ...{ id: sendId, size, stored: { id, ownerId, rawId, size, sha256 } },
    raw: content === null ? null : unpackContent({ content, size, hasRaw: true }).raw,
  }));
}

export function renewSends(sql: Sql, leases: readonly Lease[]): Promise<Set<string>> {
  return renewRows(sql, sendQueue, leases);
}

export function releaseSends(sql: Sql, leases: readonly Lease[]): Promise<void> {
  return releaseRows(sql, sendQueue, leases);
}

/** For recipients whose message was deleted. */
export async function dropSends(sql: Sql, leases: readonly Lease[]): Promise<void> {
  await sql`delete from send_queue where ${leasedRows(sql, leases)}`;
}

/**
 * Makes recipients ready that are due: after a temporary failure, and at `sendAt`. Owners share the batch when more is due than it
 * takes: after an outage, and for 100,000 messages of one owner for the same moment, the mail of others must not wait. Otherwise the
 * moments share it: then all that is due is found by time, and owners whose mail is not due cost nothing.
 */
export async function promoteSends(sql: Sql, batch = 1000): Promise<Promotion> {
  const isDue = sql`not ready and next_attempt_at <= now()`;
  const byTime = sql`order by next_attempt_at, owner_id`;
  const byOwner = sql`order by owner_id, next_attempt_at`;
  const maxMoments = Math.ceil(batch / 2);
  // Both walks hop along an index: a hop costs the same however much mail the moment or the owner has.
  return only(
    await sql<Promotion[]>`
      with recursive moments as (
        (select 1 as place, next_attempt_at, owner_id from send_queue where ${isDue} ${byTime} limit 1)
        union all
        select place + 1, hop.next_attempt_at, hop.owner_id
        from moments cross join lateral (
          select next_attempt_at, owner_id from send_queue
          where ${isDue} and (next_attempt_at, owner_id) > (moments.next_attempt_at, moments.owner_id) ${byTime} limit 1
        ) hop
        where place < ${maxMoments}
      ), owners as (
        (select owner_id, next_attempt_at from send_queue
        where not ready and (select count(*) from moments) = ${maxMoments} ${byOwner} limit 1)
        union all
        select hop.owner_id, hop.next_attempt_at
        from owners cross join lateral (
          select owner_id, next_attempt_at from send_queue where not ready and owner_id > owners.owner_id ${byOwner} limit 1
        ) hop
      ), due_owners as materialized (
        -- The longest overdue first: with more owners than the batch takes, each comes in a later batch.
        select owner_id from owners where next_attempt_at <= now() order by next_attempt_at limit ${batch}
      ), due as materialized (
        select mail.id
        from due_owners cross join lateral (
          select id from send_queue
          where not ready and (owner_id, next_attempt_at) >= (due_owners.owner_id, '-infinity'::timestamptz)
            and (owner_id, next_attempt_at) <= (due_owners.owner_id, now())
          ${byOwner} limit (select ceil(${batch} / count(*)::float8) from due_owners)
          for update skip locked
        ) mail
        union all
        select mail.id
        from moments cross join lateral (
          select id from send_queue
          where not ready and (next_attempt_at, owner_id) >= (moments.next_attempt_at, moments.owner_id)
            and (next_attempt_at, owner_id) <= (moments.next_attempt_at, moments.owner_id)
          ${byTime} limit (select ceil(${batch} / count(*)::float8) from moments)
          for update skip locked
        ) mail
        where not exists (select from due_owners)
      ), promoted as (
        update send_queue set ready = true where ${isOneOf(sql, sql`select id from due`, sendQueue)} returning 1
      )
      select (select count(*)::int from promoted) as promoted, (
        -- Rounded up: a timer that fires early would find nothing.
        select ceil(extract(epoch from next_attempt_at - now()) * 1000)::int from send_queue
        where not ready and next_attempt_at > now() and next_attempt_at < now() + interval '2 seconds'
        order by next_attempt_at limit 1
      ) as "nextInMs"`,
  );
}

export interface TriedSend extends Lease {
  messageId: string;
  n: number;
  /** `queued`: it is tried again after `waitSeconds`. `suppressed`: it was not tried. */
  status: Extract<RecipientStatus, 'queued' | 'sent' | 'delivered' | 'bounced' | 'suppressed'>;
  waitSeconds: number | null;
  attempt: {
    id: string;
    /** By `performance.now()`. PostgreSQL gets it as an age, because the clocks may differ. */
    startedAt: number;
    durationMs: number;
    host: string | null;
    address: string | null;
    tls: { version: string; cipher: string } | null;
    /** Without a code: why the message was not sent to this server. */
    response: ReportedResponse | null;
    error: string | null;
    errorDetail: string | null;
  } | null;
  transport: Transport;
  /** The account that the message left through. */
  accountId: string | null;
  bounce: { type: BounceType; source: BounceSource } | null;
  /** The address must not be written to again. */
  suppresses: boolean;
}

export interface RecordedSends {
  ids: string[];
  /** How many there are now. */
  events: number;
}

/** Records the tries whose lease is still ours. */
export function recordSends(sql: Sql, tries: readonly TriedSend[]): Promise<RecordedSends> {
  return transaction(sql, async (sql) => {
    await lockOutgoing(
      sql,
      tries.map(({ messageId }) => messageId),
    );
    const recorded = await changeRecipients(sql, tries);
    const ours = tries.flatMap((tried) => {
      const row = recorded.get(tried.id);
      return row ? [{ tried, row }] : [];
    });
    const bounced = ours.filter(({ tried }) => tried.suppresses);
    await suppress(
      sql,
      bounced.map(({ tried, row }) => ({ ...row, reason: 'bounce', messageId: tried.messageId })),
    );
    const events = ours.flatMap(({ tried, row }) => announcementsOf(tried, row.status));
    await announce(sql, events);
    return { ids: ours.map(({ tried }) => tried.id), events: events.length };
  });
}

interface RecordedRecipient {
  id: string;
  ownerId: string;
  address: string;
  addressKey: string;
  status: RecipientStatus;
}

async function changeRecipients(
  sql: Sql,
  tries: readonly TriedSend[],
): Promise<Map<string, RecordedRecipient>> {
  const column = <Key extends keyof TriedSend>(key: Key) =>
    tries.map((tried) => tried[key] as TriedSend[Key] & string);
  const attempt = <Key extends keyof NonNullable<TriedSend['attempt']>>(key: Key) =>
    tries.map(({ attempt }) => attempt?.[key] ?? null);
  const json = (values: readonly unknown[]) =>
    values.map((value) => (value === null ? null : JSON.stringify(value)));
  const nowMs = performance.now();
  const rows = await sql<RecordedRecipient[]>`
    with tried as materialized (
      select * from unnest(
        ${column('id')}::uuid[], ${column('token')}::uuid[], ${column('status')}::text[],
        ${tries.map(({ waitSeconds }) => waitSeconds)}::float8[], ${column('transport')}::text[], ${column('accountId')}::uuid[],
        ${attempt('id')}::uuid[], ${tries.map(({ attempt }) => attempt && nowMs - attempt.startedAt)}::float8[],
        ${attempt('durationMs')}::int[], ${attempt('host')}::text[], ${attempt('address')}::text[],
        ${json(attempt('tls'))}::json[], ${json(attempt('response'))}::json[],
        ${json(tries.map(({ attempt }) => cutResponse(attempt?.response ?? null)))}::json[], ${attempt('error')}::text[],
        ${attempt('errorDetail')}::text[]
      ) as t (id, token, status, wait_seconds, transport, account_id, attempt_id, age_ms, duration_ms, host, host_address, tls, response,
        shown_response, error, error_detail)
    ), ours as materialized (
      select tried.*, queued.owner_id, queued.message_id, queued.n, recipient.place
      from tried cross join lateral (
        select owner_id, message_id, n from send_queue
        where send_queue.id = tried.id and lease_token = tried.token
        offset 0 for update
      ) queued cross join lateral (
        select ctid as place from recipients where recipients.message_id = queued.message_id and recipients.n = queued.n offset 0
      ) recipient
    ), changed as (
      -- By the place of the row, which nobody else changes while we have the lock of its message.
      update recipients
      set status = case when ours.status = 'queued' and is_cancelling then 'cancelled' else ours.status end,
        attempt_count = attempt_count + (attempt_id is not null)::int,
        next_attempt_at = case when ours.status = 'queued' and not is_cancelling
          then now() + wait_seconds * interval '1 second' end,
        last_response = coalesce(shown_response, last_response), updated_at = now()
      from ours
      where recipients.ctid = ours.place
      returning ours.id, ours.message_id, ours.owner_id, 'queued' as old_status, recipients.status, recipients.address as recipient,
        recipients.address_key, ours.wait_seconds, ours.transport, ours.account_id, ours.attempt_id, ours.age_ms, ours.duration_ms, ours.host,
        ours.host_address, ours.tls, ours.response, ours.error, ours.error_detail
    ), ended as (
      delete from send_queue where ${isOneOf(sql, sql`select id from changed where status <> 'queued'`, sendQueue)}
    ), put_off as (
      update send_queue
      set ready = false, tries = tries + 1,
        next_attempt_at = ${roundUp(sql, sql`now() + changed.wait_seconds * interval '1 second'`)}, lease_token = null, lease_until = null
      from changed
      where ${isOneOf(sql, sql`select id from changed where status = 'queued'`, sendQueue)} and send_queue.id = changed.id
    ), counted as (${countChanges(sql, { transport: sql`min(changed.transport)`, account: copyAccount(sql) })}),
    kept as (
      insert into send_attempts (message_id, id, owner_id, recipients, started_at, duration_ms, host, address, tls, response,
        error, error_detail)
      select message_id, attempt_id, owner_id, array[recipient], now() - age_ms * interval '1 millisecond', duration_ms,
        host, host_address, tls, response, error, error_detail
      from changed where attempt_id is not null
    )
    select id, owner_id as "ownerId", recipient as address, address_key as "addressKey", status from changed`;
  return new Map(rows.map((row) => [row.id, row]));
}

/** An aggregate over `changed`: the account whose Sent folder gets a copy. Without an email identity nobody connects to the folder. */
function copyAccount(sql: Sql) {
  return sql`
    min(changed.account_id::text) filter (where changed.status in ('sent', 'delivered') and exists (
      select from mail_servers server
      join identities on identities.owner_id = server.owner_id and identities.smtp_account_id = server.account_id
        and identities.kind = 'email'
      where server.owner_id = changed.owner_id and server.account_id = changed.account_id and server.side = 'imap'
    ))::uuid`;
}

/** The recipient's own server took the message: it was handed to the next server, and it is delivered. */
function announcementsOf(tried: TriedSend, status: RecipientStatus): Announcement[] {
  const { messageId, n, attempt, bounce } = tried;
  const response = cutResponse(attempt?.response ?? null);
  const base = {
    ...{ messageId, n, host: attempt?.host ?? null, response: response && JSON.stringify(response) },
    ...{ bounceType: bounce?.type ?? null, bounceSource: bounce?.source ?? null },
  };
  if (status === 'sent') return [{ ...base, event: 'message.sent', status }];
  if (status === 'delivered') {
    return [
      { ...base, event: 'message.sent', status: 'sent' },
      { ...base, event: 'message.delivered', status },
    ];
  }
  return status === 'bounced' || status === 'suppressed'
    ? [{ ...base, event: 'message.bounced', status }]
    : [];
}

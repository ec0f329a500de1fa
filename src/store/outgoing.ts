/**
 * Messages that go out, and their recipients. Guarantees: a message, its recipients and their rows in the queue are created in one
 * transaction; whoever changes a recipient first locks the row of the message in `outgoing`, so the status of the message, the
 * statuses of its recipients and the events always agree.
 */
import { only, type Sql, transaction } from '../db/client.ts';
import { type Fragment, list } from '../db/sql.ts';
import { newId } from '../lib/ids.ts';
import {
  chunkBytes,
  identityExists,
  madeWith,
  type NewRaw,
  packChunk,
  saveFurtherChunks,
} from './messages.ts';
import { type Announcement, announce, type ReportedResponse } from './send-events.ts';

export const recipientKinds = ['to', 'cc', 'bcc'] as const;
export type RecipientKind = (typeof recipientKinds)[number];
export const recipientStatuses = [
  'queued',
  'sent',
  'delivered',
  'bounced',
  'suppressed',
  'cancelled',
] as const;
export type RecipientStatus = (typeof recipientStatuses)[number];
export const sendingStatuses = [...recipientStatuses, 'mixed'] as const;
/** More are kept for a message of 50 recipients that is put off for days, and nobody reads them. */
const maxShownAttempts = 1000;

export const transports = ['direct', 'relay', 'account', 'provider', 'capture'] as const;
export type Transport = (typeof transports)[number];

export interface NewRecipient {
  address: string;
  addressKey: string;
  kind: RecipientKind;
  laneId: string;
}

export interface NewOutgoing extends NewRaw {
  identityId: string;
  /** The identities of the other addresses in From and Sender. */
  coauthorIds: readonly string[];
  keyId: string | null;
  threadId: string;
  messageKey: string | null;
  /** From `wordKeysOf`. */
  words: readonly bigint[];
  /** JSON text: the message in lists. */
  summary: string;
  /** As stored, from `packContent`. */
  content: Buffer;
  transport: Transport;
  sendAt: Date | null;
  /** JSON text. */
  metadata: string | null;
  eightBit: boolean;
  smtpUtf8: boolean;
  recipients: readonly NewRecipient[];
}

/** `events`: of recipients that are suppressed. */
export interface RecordedOutgoing {
  events: number;
}

/** Undefined if the identity was deleted meanwhile. Commits before it resolves, unless `sql` is a transaction. */
export async function recordOutgoing(
  sql: Sql,
  message: NewOutgoing,
  suppressed: ReadonlySet<string>,
): Promise<RecordedOutgoing | undefined> {
  const work = async (sql: Sql): Promise<RecordedOutgoing | undefined> => {
    if (!(await insertOutgoing(sql, message, suppressed))) return undefined;
    await saveFurtherChunks(sql, message);
    const bounced = message.recipients.flatMap(({ addressKey }, n): Announcement[] =>
      suppressed.has(addressKey) ? [announceSuppressed(message.id, n)] : [],
    );
    await announce(sql, bounced);
    return { events: bounced.length };
  };
  // One statement is a transaction by itself.
  const isOneStatement = message.raw.length <= chunkBytes && suppressed.size === 0;
  return isOneStatement ? work(sql) : transaction(sql, work);
}

function announceSuppressed(messageId: string, n: number): Announcement {
  const none = { host: null, response: null };
  const bounce = { bounceType: 'unknown', bounceSource: 'suppression' } as const;
  return { ...{ messageId, n, event: 'message.bounced', status: 'suppressed' }, ...none, ...bounce };
}

async function insertOutgoing(
  sql: Sql,
  message: NewOutgoing,
  suppressed: ReadonlySet<string>,
): Promise<boolean> {
  const { id, ownerId, identityId, recipients, sendAt } = message;
  const isSuppressed = recipients.map(({ addressKey }) => suppressed.has(addressKey));
  const suppressedCount = isSuppressed.filter(Boolean).length;
  const queuedCount = recipients.length - suppressedCount;
  const rows = await sql`
    with sender as (
      select id from identities where owner_id = ${ownerId} and id = ${identityId}
    ), made as (
      insert into messages (id, owner_id, identity_id, direction, raw_id, size, sha256, thread_id, summary, content, message_key,
        words)
      select ${id}, ${ownerId}, id, 'outgoing', ${message.rawId}, ${message.raw.length}, ${message.sha256}, ${message.threadId},
        ${message.summary}::text::json, ${message.content}, ${message.messageKey},
        ${message.words}::bigint[]
      from sender
      returning id
    ), kept as (
      insert into raw_chunks (raw_id, n, owner_id, bytes, is_compressed)
      select id, 0, ${ownerId}, ${await packChunk(message, 0)}, true from made where ${message.rawId !== null}
    ), going as (
      insert into outgoing (id, owner_id, identity_id, key_id, message_key, transport, send_at, metadata, eight_bit, smtp_utf8,
        summary_bytes, queued, suppressed, ended_at, coauthor_ids)
      select id, ${ownerId}, ${identityId}, ${message.keyId}, ${message.messageKey}, ${message.transport}, ${sendAt},
        ${message.metadata}::text::json, ${message.eightBit}, ${message.smtpUtf8}, ${Buffer.byteLength(message.summary)}, ${queuedCount}, ${suppressedCount},
        ${queuedCount > 0 ? null : sql`now()`}, nullif(${message.coauthorIds}::uuid[], '{}')
      from made
    ), given as (
      select * from (values ${list(recipients.map((recipient, n) => writeRecipient(sql, recipient, n, isSuppressed[n] ?? false)))})
        as given (n, queue_id, address, address_key, kind, lane_id, status)
    ), named as (
      insert into recipients (message_id, n, owner_id, address, address_key, kind, status, next_attempt_at)
      select id, n, ${ownerId}, address, address_key, kind, status, case when status = 'queued' then greatest(now(), ${sendAt}) end
      from made cross join given
    ), queued as (
      insert into send_queue (id, owner_id, lane_id, message_id, n, ready, next_attempt_at)
      select queue_id, ${ownerId}, lane_id, id, n, coalesce(${sendAt} <= now(), true), ${roundUp(sql, sql`greatest(now(), ${sendAt})`)}
      from made cross join given where status = 'queued'
    )
    select from made`;
  return rows.count > 0;
}

/**
 * When a row of the queue becomes due: few moments, which the owners share (`promoteSends`). With 100,000 moments of one owner in a
 * second, mail of another in that second waited 16 s.
 */
export function roundUp(sql: Sql, time: Fragment) {
  return sql`date_bin('100 milliseconds', ${time} + interval '99999 microseconds', timestamptz 'epoch')`;
}

function writeRecipient(sql: Sql, recipient: NewRecipient, n: number, isSuppressed: boolean): Fragment {
  const { address, addressKey, kind, laneId } = recipient;
  return sql`(${n}::smallint, ${newId()}::uuid, ${address}::text, ${addressKey}::text, ${kind}::text, ${laneId}::uuid,
    ${isSuppressed ? 'suppressed' : 'queued'}::text)`;
}

/** Locks the messages against every other change of their recipients, until the transaction ends. */
export async function lockOutgoing(sql: Sql, messageIds: readonly string[]): Promise<void> {
  await sql`select from outgoing where id = any (${[...new Set(messageIds)]}::uuid[]) order by id for update`;
}

/**
 * A CTE body: adds the changes of `changed (message_id, old_status, status)` to the counts of their messages, which the caller has
 * locked. `way`: the way out and, of a recipient that was sent to through an account with a Sent folder, the account; aggregates over
 * `changed`. The first such account gets a copy of the message.
 */
export function countChanges(
  sql: Sql,
  way: { transport: Fragment; account: Fragment } = { transport: sql`null::text`, account: sql`null::uuid` },
) {
  const change = (status: RecipientStatus) => sql`
    (count(*) filter (where changed.status = ${status}) - count(*) filter (where changed.old_status = ${status}))::smallint`;
  // By the place of the row: for a join by id the planner, which expects one row, would compare each with each.
  return sql`
    update outgoing
    set queued = queued + counts.queued_change, sent = sent + sent_change, delivered = delivered + delivered_change,
      bounced = bounced + bounced_change, suppressed = suppressed + suppressed_change,
      cancelled = cancelled + cancelled_change, transport = coalesce(counts.new_transport, transport),
      copy_account_id = coalesce(copy_account_id, counts.new_account),
      is_copy_due = is_copy_due or copy_account_id is null and counts.new_account is not null,
      ended_at = case when queued + counts.queued_change = 0 then coalesce(ended_at, now()) end
    from (
      select message_id, ${change('queued')} as queued_change, ${change('sent')} as sent_change,
        ${change('delivered')} as delivered_change, ${change('bounced')} as bounced_change,
        ${change('suppressed')} as suppressed_change, ${change('cancelled')} as cancelled_change,
        ${way.transport} as new_transport, ${way.account} as new_account
      from changed group by message_id
    ) counts cross join lateral (
      select locked.ctid as place from outgoing locked where locked.id = counts.message_id offset 0
    ) message
    where outgoing.ctid = message.place`;
}

/**
 * Cancels the recipients that are queued and not being tried, and marks those that are being tried: a temporary failure then ends
 * them. `nothing`: no recipient is or was cancelled or marked. Undefined: no such message.
 */
export function cancelOutgoing(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<'cancelled' | 'nothing' | undefined> {
  return transaction(sql, async (sql) => {
    const [message] = await sql`
      select from outgoing where owner_id = ${ownerId} and id = ${id} for update`;
    if (!message) return undefined;
    const { cancelled } = only(
      await sql<{ cancelled: number }[]>`
        with waiting as (
          delete from send_queue where message_id = ${id} and (lease_until is null or lease_until < now()) returning n
        ), changed as (
          update recipients
          set status = 'cancelled', next_attempt_at = null, updated_at = now()
          where message_id = ${id} and n in (select n from waiting)
          returning message_id, 'queued' as old_status, status
        ), marked as (
          update recipients set is_cancelling = true
          where message_id = ${id} and status = 'queued' and n not in (select n from waiting)
          returning 1
        ), counted as (${countChanges(sql)})
        select (
          (select count(*) from changed) + (select count(*) from marked)
          + (select count(*) from recipients where message_id = ${id} and (status = 'cancelled' or is_cancelling))
        )::int as cancelled`,
    );
    return cancelled > 0 ? 'cancelled' : 'nothing';
  });
}

/** A try, or a report that changed a recipient: then `error` is `reported`. */
export interface SendAttempt {
  id: string;
  startedAt: string;
  durationMs: number;
  recipients: string[];
  host: string | null;
  address: string | null;
  tls: { version: string; cipher: string } | null;
  response: ReportedResponse | null;
  error: string | null;
}

/** Newest first. Undefined: no such message. `keyId`: only a message that was made with this key. */
export async function listSendAttempts(
  sql: Sql,
  ownerId: string,
  id: string,
  keyId: string | null,
): Promise<SendAttempt[] | undefined> {
  const [message] = await sql`
    select from messages
    where owner_id = ${ownerId} and id = ${id} and ${identityExists(sql)} ${madeWith(sql, keyId)}`;
  if (!message) return undefined;
  return sql<SendAttempt[]>`
    select id, iso_time(started_at) as "startedAt", duration_ms as "durationMs", recipients, host, address, tls, response, error
    from send_attempts where owner_id = ${ownerId} and message_id = ${id}
    order by started_at desc, id desc limit ${maxShownAttempts}`;
}

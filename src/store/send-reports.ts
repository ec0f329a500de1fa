/**
 * Reports about sent mail. Guarantee: report, recipient, message, events and suppression change in one transaction. A report that
 * changed its recipient is listed with the attempts: its reason is shown there.
 */
import { only, type Sql, transaction } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { countChanges, lockOutgoing, type RecipientStatus } from './outgoing.ts';
import {
  type Announcement,
  announce,
  type BounceSource,
  type BounceType,
  cutResponse,
  type ReportedResponse,
} from './send-events.ts';
import { suppress } from './suppressions.ts';

interface RecipientRef {
  messageId: string;
  n: number;
}

/** What a report means for its recipient. */
export interface ReportDecision {
  /** `noted`: kept, and nothing changes. */
  outcome: 'bounced' | 'delivered' | 'complained' | 'noted';
  /** As the report has it; `unknown`: it is no report that can be read. */
  action: string;
  status: string | null;
  diagnostic: string | null;
  remoteMta: string | null;
  response: ReportedResponse | null;
  bounceType: BounceType | null;
  suppresses: boolean;
  /** Changes only a recipient that is `sent`. */
  onlySent?: boolean;
}

/** What a provider says about a message that it sent for us. */
export interface ProviderReport {
  /** The message, by its id here or by its Message-ID. */
  message: { id: string } | { messageId: string };
  /** Of the recipient. */
  address: string;
  outcome: 'bounced' | 'delivered' | 'complained';
  /** The provider's own word. */
  action: string;
  /** The reply of the recipient's server, as far as the provider repeats it. */
  reply: { code: number | null; enhanced: string | null };
  diagnostic: string | null;
  remoteMta: string | null;
  /** What the provider calls a bounce whose reply says nothing. */
  bounceType: BounceType | null;
}

export interface NewReport extends RecipientRef, ReportDecision {
  /** Of a bounce, in its event. */
  source: Extract<BounceSource, 'dsn' | 'provider'>;
  /** Compressed by zstd; of a report that cannot be read. */
  content: Buffer | null;
}

interface FoundRecipient {
  ownerId: string;
  address: string;
  isBeingTried: boolean;
}

/** Of a row of `recipients`. */
function isBeingTried(sql: Sql) {
  return sql`
    exists (
      select from send_queue
      where send_queue.message_id = recipients.message_id and send_queue.n = recipients.n and lease_until > now()
    )`;
}

/** Not by owner: the signed token of the bounce address is the permission, and it names the message. */
export async function findSentRecipient(
  sql: Sql,
  messageId: string,
  n: number,
): Promise<FoundRecipient | undefined> {
  const [row] = await sql<FoundRecipient[]>`
    select owner_id as "ownerId", address, ${isBeingTried(sql)} as "isBeingTried"
    from recipients where message_id = ${messageId} and n = ${n}`;
  return row;
}

/** A recipient of an outgoing message, and whether it is being tried now. */
export interface ReportedRecipient extends RecipientRef {
  isBeingTried: boolean;
}

/**
 * The recipient that a provider reports about: of the owner's newest message with this id or Message-ID that left by a provider. A
 * message that left on another way is not the provider's to report about.
 */
export async function findReportedRecipient(
  sql: Sql,
  ownerId: string,
  message: { id: string } | { key: string },
  addressKey: string,
): Promise<ReportedRecipient | undefined> {
  const [row] = await sql<ReportedRecipient[]>`
    select outgoing.id as "messageId", recipients.n::int as n, ${isBeingTried(sql)} as "isBeingTried"
    from outgoing join recipients on recipients.message_id = outgoing.id
    where outgoing.owner_id = ${ownerId} and transport = 'provider' and recipients.address_key = ${addressKey}
      and ${'id' in message ? sql`outgoing.id = ${message.id}` : sql`outgoing.message_key = ${message.key}`}
    order by outgoing.created_at desc limit 1`;
  return row;
}

/** Of the owner's newest message with this Message-ID, if it left through an account: those that may still be delivered or bounce. */
export async function listOpenRecipients(
  sql: Sql,
  ownerId: string,
  messageKey: string,
): Promise<(RecipientRef & { address: string })[]> {
  return sql<(RecipientRef & { address: string })[]>`
    select recipients.message_id as "messageId", recipients.n::int as n, recipients.address
    from (
      select id, transport from outgoing
      where owner_id = ${ownerId} and message_key = ${messageKey} order by created_at desc limit 1
    ) message
    join recipients on recipients.message_id = message.id
    where message.transport in ('account', 'provider') and recipients.status = 'sent'
    order by recipients.n`;
}

/** Whoever has the token could send reports for ever. */
const maxReports = 20;
/** From which status a report can move a recipient: one that is queued is tried again in any case. */
const movableTo = { bounced: ['sent', 'delivered'], delivered: ['sent'] } as const satisfies Record<
  string,
  readonly RecipientStatus[]
>;

/** What changed; null: nothing. */
export function recordReport(sql: Sql, report: NewReport): Promise<NewReport['outcome'] | null> {
  const { messageId, n, outcome } = report;
  return transaction(sql, async (sql) => {
    await lockOutgoing(sql, [messageId]);
    const known = await listActions(sql, report);
    if (known === undefined) return null;
    // The first complaint is always kept: what is kept says whether it was announced.
    const isFirstComplaint = outcome === 'complained' && !known.includes('complained');
    if (known.length < maxReports || isFirstComplaint) await keep(sql, report);
    const event = await changeRecipient(sql, report, known);
    if (!event) return null;
    if (report.suppresses || outcome === 'complained') await suppressRecipient(sql, report);
    await announce(sql, [{ messageId, n, ...event }]);
    return outcome;
  });
}

/** Of the reports about the recipient so far. Undefined: the message was deleted. */
async function listActions(sql: Sql, { messageId, n }: RecipientRef): Promise<string[] | undefined> {
  const [row] = await sql<{ actions: string[] }[]>`
    select coalesce((
      select array_agg(action) from send_reports where message_id = ${messageId} and send_reports.n = recipients.n
    ), '{}') as actions
    from recipients where message_id = ${messageId} and n = ${n}`;
  return row?.actions;
}

async function keep(sql: Sql, report: NewReport): Promise<void> {
  const { messageId, n, outcome, action, status, diagnostic, remoteMta, content } = report;
  await sql`
    insert into send_reports (id, message_id, n, owner_id, action, status, diagnostic, remote_mta, content)
    select ${newId()}, message_id, n, owner_id, ${outcome === 'complained' ? 'complained' : action}, ${status}, ${diagnostic},
      ${remoteMta}, ${content}
    from recipients where message_id = ${messageId} and n = ${n}`;
}

async function changeRecipient(
  sql: Sql,
  report: NewReport,
  known: readonly string[],
): Promise<Omit<Announcement, 'messageId' | 'n'> | null> {
  const { messageId, n, outcome, remoteMta, response, bounceType, onlySent } = report;
  const shown = cutResponse(response);
  const base = { host: remoteMta, response: shown && JSON.stringify(shown) };
  if (outcome === 'complained') {
    if (known.includes('complained')) return null;
    const { status } = only(
      await sql<
        { status: string }[]
      >`select status from recipients where message_id = ${messageId} and n = ${n}`,
    );
    return { ...base, event: 'message.complained', status, bounceType: null, bounceSource: null };
  }
  if (outcome === 'noted') return null;
  const movable = onlySent ? ['sent'] : movableTo[outcome];
  const changed = await sql`
    with old as (
      select message_id, n, status as old_status from recipients
      where message_id = ${messageId} and n = ${n} and status = any (${movable}::text[])
    ), changed as (
      update recipients
      set status = ${outcome}, last_response = coalesce(${base.response}::text::json, last_response), updated_at = now()
      from old where recipients.message_id = old.message_id and recipients.n = old.n
      returning recipients.message_id, recipients.owner_id, recipients.address, old.old_status, recipients.status
    ), listed as (
      insert into send_attempts (message_id, id, owner_id, recipients, started_at, duration_ms, host, response, error)
      select message_id, ${newId()}, owner_id, array[address], now(), 0, ${remoteMta},
        ${response && JSON.stringify(response)}::text::json, 'reported'
      from changed
    ), counted as (${countChanges(sql)})
    select from changed`;
  if (changed.count === 0) return null;
  const isBounced = outcome === 'bounced';
  return {
    ...{ ...base, event: isBounced ? 'message.bounced' : 'message.delivered', status: outcome },
    ...{
      bounceType: isBounced ? (bounceType ?? 'unknown') : null,
      bounceSource: isBounced ? report.source : null,
    },
  };
}

async function suppressRecipient(sql: Sql, { messageId, n, outcome }: NewReport): Promise<void> {
  const { ownerId, address, addressKey } = only(
    await sql<{ ownerId: string; address: string; addressKey: string }[]>`
      select owner_id as "ownerId", address, address_key as "addressKey"
      from recipients where message_id = ${messageId} and n = ${n}`,
  );
  const reason = outcome === 'complained' ? 'complaint' : 'bounce';
  await suppress(sql, [{ ownerId, address, addressKey, reason, messageId }]);
}

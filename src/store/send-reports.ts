/** Reports about sent mail. Guarantee: report, recipient, message, events and suppression change in one transaction. */
import { only, type Sql, transaction } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { countChanges, lockOutgoing, type RecipientStatus } from './outgoing.ts';
import { type Announcement, announce, type BounceType, type SmtpResponse } from './send-events.ts';
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
  response: SmtpResponse | null;
  bounceType: BounceType | null;
  suppresses: boolean;
  /** Changes only a recipient that is `sent`. */
  onlySent?: boolean;
}

export interface NewReport extends RecipientRef, ReportDecision {
  /** Compressed by zstd; of a report that cannot be read. */
  content: Buffer | null;
}

interface FoundRecipient {
  ownerId: string;
  address: string;
  isBeingTried: boolean;
}

/** Not by owner: the signed token of the bounce address is the permission, and it names the message. */
export async function findSentRecipient(
  sql: Sql,
  messageId: string,
  n: number,
): Promise<FoundRecipient | undefined> {
  const [row] = await sql<FoundRecipient[]>`
    select owner_id as "ownerId", address, exists (
      select from send_queue
      where send_queue.message_id = recipients.message_id and send_queue.n = recipients.n and lease_until > now()
    ) as "isBeingTried"
    from recipients where message_id = ${messageId} and n = ${n}`;
  return row;
}

/** Of the owner's newest message with this Message-ID, if it left through an account: those that may still be delivered or bounce. */
export async function listOpenRecipients(
  sql: Sql,
  ownerId: string,
  messageKey: string,
): Promise<(RecipientRef & { address: string })[]> {
  // Identity by identity, by the index that has the identity before the key.
  return sql<(RecipientRef & { address: string })[]>`
    select recipients.message_id as "messageId", recipients.n::int as n, recipients.address
    from (
      select newest.id from identities cross join lateral (
        select id, created_at from messages
        where messages.owner_id = identities.owner_id and messages.identity_id = identities.id and message_key = ${messageKey}
          and direction = 'outgoing'
        order by created_at desc limit 1
      ) newest
      where identities.owner_id = ${ownerId} order by newest.created_at desc limit 1
    ) message
    join outgoing on outgoing.id = message.id and outgoing.transport in ('account', 'provider')
    join recipients on recipients.message_id = message.id
    where recipients.status = 'sent'
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
  const base = { host: remoteMta, response: response && JSON.stringify(response) };
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
      returning recipients.message_id, old.old_status, recipients.status
    ), counted as (${countChanges(sql)})
    select from changed`;
  if (changed.count === 0) return null;
  const isBounced = outcome === 'bounced';
  return {
    ...{ ...base, event: isBounced ? 'message.bounced' : 'message.delivered', status: outcome },
    ...{ bounceType: isBounced ? (bounceType ?? 'unknown') : null, bounceSource: isBounced ? 'dsn' : null },
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

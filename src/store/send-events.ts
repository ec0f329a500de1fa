/** The events of outgoing mail: one for each recipient that was sent to, delivered, bounced or complained. */
import type { Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { queueDeliveries } from './events.ts';
import { sendingOf } from './sending-json.ts';
import { countEvents } from './traffic.ts';

export const bounceTypes = ['hard', 'policy', 'soft', 'unknown'] as const;
export type BounceType = (typeof bounceTypes)[number];
export const bounceSources = ['smtp', 'dsn', 'provider', 'suppression', 'expired'] as const;
export type BounceSource = (typeof bounceSources)[number];

/** What a server replied. */
export interface SmtpResponse {
  code: number;
  /** Such as 5.1.1 (RFC 3463). */
  enhanced: string | null;
  text: string;
}

/**
 * A response that need not be an SMTP reply. `code` null: a report that repeats no reply, as where the server that took the mail made
 * the report itself, or why the message was not sent to a server that could not take it.
 */
export interface ReportedResponse extends Omit<SmtpResponse, 'code'> {
  code: number | null;
}

/** What `lastResponse` and events have of a response. The attempt has all of it. */
const maxShownText = 1000;

export function cutResponse<Response extends ReportedResponse>(response: Response | null): Response | null {
  return response && { ...response, text: response.text.slice(0, maxShownText).toWellFormed() };
}

export interface Announcement {
  messageId: string;
  /** The recipient's place in the message. */
  n: number;
  event: 'message.sent' | 'message.delivered' | 'message.bounced' | 'message.complained';
  /** Of the recipient, in the event. */
  status: string;
  host: string | null;
  /** JSON text. */
  response: string | null;
  bounceType: BounceType | null;
  bounceSource: BounceSource | null;
}

/**
 * Creates the events and their deliveries in the caller's transaction, after the change of the recipients. Wake the delivery loop and
 * the streams after the commit.
 * An event stores what the message was at that moment, without its summary, which never changes and is added when the event is read.
 */
export async function announce(sql: Sql, given: readonly Announcement[]): Promise<void> {
  if (given.length === 0) return;
  const column = <Key extends keyof Announcement>(key: Key) => given.map((one) => one[key]);
  await sql`
      with given as (
        select * from unnest(
          ${given.map(newId)}::uuid[], ${column('messageId')}::uuid[], ${column('n')}::int[], ${column('event')}::text[],
          ${column('status')}::text[], ${column('host')}::text[], ${column('response')}::json[],
          ${column('bounceType')}::text[], ${column('bounceSource')}::text[]
        ) as g (id, message_id, n, event, status, host, response, bounce_type, bounce_source)
      ), happened as (
        insert into events (id, owner_id, event, identity_id, data, bytes, message_id)
        select given.id, outgoing.owner_id, given.event, outgoing.identity_id, written.data::json,
          octet_length(written.data) + outgoing.summary_bytes, outgoing.id
        from given
        -- With "offset 0" each is looked up: the planner, which expects one row, would compare each with each.
        cross join lateral (select * from outgoing where id = given.message_id offset 0) outgoing
        -- Mail of a deleted identity has no events.
        cross join lateral (
          select from identities where owner_id = outgoing.owner_id and id = outgoing.identity_id limit 1
        ) identity
        cross join lateral (
          select address, kind from recipients where message_id = outgoing.id and n = given.n
        ) recipient
        cross join lateral (
          select json_build_object('sending', (${sendingOf(sql)})::json, 'recipient', json_build_object(
            'address', recipient.address, 'kind', recipient.kind, 'status', given.status, 'at', iso_time(now()),
            'host', given.host, 'response', given.response,
            'bounce', case when given.bounce_type is not null
              then json_build_object('type', given.bounce_type, 'source', given.bounce_source) end
          ))::text as data
        ) written
        order by given.id
        returning id, owner_id, event, identity_id
      ), queued as (${queueDeliveries(sql)}), counted as (${countEvents(sql, sql`happened`)})
      select from queued`;
}

/** `sending` of a message, as JSON text: the state of its recipients at the moment of the query. */
import type { Sql } from '../db/client.ts';

/** For a row of `outgoing` in the caller's query. */
export function sendingOf(sql: Sql) {
  return sql`
    json_build_object(
      'status', outgoing.status, 'sendAt', iso_time(outgoing.send_at), 'metadata', coalesce(outgoing.metadata, '{}'),
      'transport', outgoing.transport,
      'recipients', (
        select json_agg(json_build_object(
          'address', address, 'kind', kind, 'status', recipients.status, 'attemptCount', attempt_count,
          'nextAttemptAt', iso_time(next_attempt_at), 'lastResponse', last_response, 'updatedAt', iso_time(updated_at)
        ) order by n)
        from recipients where message_id = outgoing.id
      )
    )::text`;
}

/** Null for a message that came in, or that was found in a Sent folder. */
export function sendingOfMessage(sql: Sql) {
  return sql`
    case when messages.direction = 'outgoing'
      then (select ${sendingOf(sql)} from outgoing where outgoing.id = messages.id)
    end`;
}

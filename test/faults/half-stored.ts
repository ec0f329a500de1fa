/** Finds rows in the database that only a half-done transaction could leave. */
import type { Pool } from '../../src/db/client.ts';

export async function findHalfStored(sql: Pool): Promise<string[]> {
  // After a crash PostgreSQL has no statistics, and would plan for empty tables.
  await sql`analyze`;
  const looks: Record<string, Promise<{ id: string }[]>> = {
    'a message without its event': sql`
      select id from messages where not exists (
        select from events where events.id = messages.event_id and events.message_id = messages.id
          and events.event = 'message.received' and events.identity_id = messages.identity_id)`,
    'a message without all its bytes': sql`
      select id from messages where sha256 is distinct from (
        select sha256(string_agg(bytes, ''::bytea order by n)) from raw_chunks where raw_chunks.raw_id = messages.raw_id)`,
    'an event without its message': sql`
      select id from events where event = 'message.received' and not exists (
        select from messages where messages.id = events.message_id and messages.event_id = events.id)`,
    'bytes without a message': sql`
      select distinct raw_id as id from raw_chunks where not exists (
        select from messages where messages.raw_id = raw_chunks.raw_id)`,
    'an event without the delivery to a webhook that listens': sql`
      select events.id from events join webhooks using (owner_id)
      where events.event = any (webhooks.events)
        and webhooks.created_at < events.created_at and webhooks.deleted_at is null
        and (webhooks.identity_id is null or webhooks.identity_id = events.identity_id) and not exists (
        select from deliveries where deliveries.event_id = events.id and deliveries.webhook_id = webhooks.id)`,
    'a delivery without its event': sql`
      select id from deliveries where not exists (select from events where events.id = deliveries.event_id)`,
  };
  const found = await Promise.all(
    Object.entries(looks).map(async ([what, look]) =>
      (await look).map(({ id }) => `half stored: ${what}, ${id}`),
    ),
  );
  return found.flat();
}

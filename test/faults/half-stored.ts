/** Finds rows in the database that only a half-done transaction could leave. */
import { createHash } from 'node:crypto';
import type { Pool } from '../../src/db/client.ts';
import { readRaw, type StoredRaw } from '../../src/store/messages.ts';

/** `complete`: ids of messages whose bytes are not read again; those that are found complete are added. */
export async function findHalfStored(sql: Pool, complete: Set<string>): Promise<string[]> {
  // After a crash PostgreSQL has no statistics, and would plan for empty tables.
  await sql`analyze`;
  const looks: Record<string, Promise<{ id: string }[]>> = {
    'a message without its event': sql`
      select id from messages where not exists (
        select from events where events.message_id = messages.id
          and events.event = 'message.received' and events.identity_id = messages.identity_id)`,
    'a message without all its bytes': findWithoutBytes(sql, complete),
    'an event without its message': sql`
      select id from events where event = 'message.received' and not exists (
        select from messages where messages.id = events.message_id)`,
    'bytes without a message': sql`
      select distinct raw_id as id from raw_chunks where not exists (
        select from messages where messages.raw_id = raw_chunks.raw_id)`,
    'an event without the delivery to a webhook that listens': sql`
      select events.id from events join webhooks using (owner_id)
      where events.event = any (webhooks.events)
        and webhooks.created_at < events.created_at and webhooks.deleted_at is null
        and (webhooks.identity_id is null or webhooks.identity_id = events.identity_id) and not exists (
        select from deliveries where deliveries.event_id = events.id and deliveries.webhook_id = webhooks.id)`,
    'a delivery that is both pending and ended': sql`
      select id from delivery_queue join ended_deliveries using (id)`,
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

/** Reads the raw bytes of every other message, wherever they are. */
async function findWithoutBytes(sql: Pool, complete: Set<string>): Promise<{ id: string }[]> {
  const found: { id: string }[] = [];
  const messages = await sql<StoredRaw[]>`
    select id, owner_id as "ownerId", raw_id as "rawId", size, sha256 from messages`;
  for (const message of messages.filter(({ id }) => !complete.has(id))) {
    const hash = createHash('sha256');
    try {
      for await (const piece of readRaw(sql, message, 0, message.size)) hash.update(piece);
    } catch {
      // A row is missing: the hash is not the one of all bytes.
    }
    if (hash.digest().equals(message.sha256)) complete.add(message.id);
    else found.push({ id: message.id });
  }
  return found;
}

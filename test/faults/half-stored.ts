/** Finds rows in the database that only a half-done transaction could leave. */
import { createHash } from 'node:crypto';
import type { Pool } from '../../src/db/client.ts';
import { readRaw, type StoredRaw } from '../../src/store/messages.ts';

/** `complete`: ids of messages whose bytes are not read again; those that are found complete are added. */
export async function findHalfStored(sql: Pool, complete: Set<string>): Promise<string[]> {
  // After a crash PostgreSQL has no statistics, and would plan for empty tables.
  await sql`analyze`;
  // With "except", because "not exists" may look through a whole table for each row of the other.
  const looks: Record<string, Promise<{ id: string }[]>> = {
    'a message without its event': sql`
      select id, identity_id from messages
      except select message_id, identity_id from events where event = 'message.received'`,
    'a message without all its bytes': findWithoutBytes(sql, complete),
    'an event without its message': sql`
      select message_id as id from events where event = 'message.received' except select id from messages`,
    'bytes without a message': sql`select raw_id as id from raw_chunks except select raw_id from messages`,
    'an event without the delivery to a webhook that listens': sql`
      select events.id, webhooks.id as webhook_id from events join webhooks using (owner_id)
      where events.event = any (webhooks.events)
        and webhooks.created_at < events.created_at and webhooks.deleted_at is null
        and (webhooks.identity_id is null or webhooks.identity_id = events.identity_id)
      except select event_id, webhook_id from deliveries`,
    'a delivery that is both pending and ended': sql`
      select id from delivery_queue join ended_deliveries using (id)`,
    'a delivery without its event': sql`select event_id as id from deliveries except select id from events`,
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

/** Inserts many messages without sending them: copies of one received message, with earlier times. */
import type { Pool } from '../src/db/client.ts';

interface Copies {
  /** The identity whose newest message is copied, and the identity that gets the copies. */
  from: string;
  to: string;
  count: number;
  /** The time of the last copy, and the time between two copies. */
  youngest: Date;
  spacingMs: number;
  /** The webhooks that each copy was delivered to. */
  webhookIds?: readonly string[];
}

/** Inserts message and event of each copy, and its deliveries with their attempts. The message must be a small one. */
export async function copyMessage(sql: Pool, given: Copies): Promise<void> {
  const { from, to, count, spacingMs, webhookIds = [] } = given;
  const youngest = given.youngest.toISOString();
  await sql.begin(async (sql) => {
    await sql`set local statement_timeout = 0`;
    // UUIDs of version 7 for the time of the copy, as the service makes them.
    const id = (middle: string) => sql`
      (lpad(to_hex((extract(epoch from created) * 1000)::bigint), 12, '0') || ${middle}::text || '8000'
        || substr(replace(gen_random_uuid()::text, '-', ''), 1, 12))::uuid`;
    await sql`
      with one as materialized (
        select messages.*, events.bytes, events.is_inline
        from messages join events on events.message_id = messages.id
        where messages.identity_id = ${from} order by messages.created_at desc limit 1
      ), copies as materialized (
        select created, ${id('7000')} as id, ${id('7001')} as event_id
        from generate_series(0, ${count - 1}::int) n, lateral (
          select ${youngest}::text::timestamptz - n * ${spacingMs}::float8 * interval '1 millisecond' as created
        ) moment
      ), happened as (
        insert into events (id, owner_id, event, identity_id, bytes, message_id, is_inline, created_at)
        select copies.event_id, owner_id, 'message.received', ${to}::uuid, bytes, copies.id, is_inline, created
        from copies, one
      ), made as (
        insert into ended_deliveries (id, owner_id, event_id, webhook_id, event, status, attempt_count, created_at, completed_at,
          attempt_id, started_at, duration_ms, response_status, response_body)
        select delivery_id(copies.event_id, webhook_id), owner_id, copies.event_id, webhook_id, 'message.received',
          'delivered', 1, created, created, gen_random_uuid(), created, 1, 200, 'ok'
        from copies, one, unnest(${webhookIds}::uuid[]) as webhook_id
      )
      insert into messages (id, owner_id, identity_id, size, sha256, thread_id, summary, content, message_key, repeat_key,
        received_on, created_at)
      select copies.id, owner_id, ${to}::uuid, size, sha256, gen_random_uuid(), summary, content,
        gen_random_uuid(), gen_random_uuid(), created::date, created
      from copies, one`;
  });
}

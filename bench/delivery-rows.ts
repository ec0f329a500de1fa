/**
 * The rows that the delivery scenarios write and read themselves. Change them with the tables: `--against <commit>` uses the file of
 * that commit, so the functions keep their arguments.
 */
import type { Pool } from '../src/db/client.ts';

/** Inserts events and their deliveries, spread evenly over the webhooks. */
export async function queueDeliveries(
  sql: Pool,
  ownerId: string,
  webhookIds: readonly string[],
  count: number,
  data: string,
): Promise<void> {
  await sql.begin(async (sql) => {
    await sql`set local statement_timeout = 0`;
    await sql`
      with made as (
        insert into events (id, owner_id, event, data, bytes)
        select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
          || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid, ${ownerId}, 'message.received', ${data}::text::json,
          ${Buffer.byteLength(data)}::int
        from generate_series(1, ${count}::int) n
        returning id
      )
      insert into delivery_queue (id, owner_id, event_id, webhook_id, event)
      select delivery_id(id, webhook_id), ${ownerId}, id, webhook_id, 'message.received'
      from (
        select id, (${webhookIds}::uuid[])[1 + row_number() over () % ${webhookIds.length}::int] as webhook_id from made
      ) spread`;
  });
  await sql`vacuum analyze delivery_queue`;
}

export async function enableWebhooks(
  sql: Pool,
  webhookIds: readonly string[],
  enabled: boolean,
): Promise<void> {
  await sql`update webhooks set enabled = ${enabled} where id = any (${webhookIds}::uuid[])`;
  if (enabled) await sql`notify posthorn_ready`;
  // Its deliveries stay ready and are not held, so that enabling the webhook costs nothing.
  else await sql`update webhooks set unsettled_at = 'infinity' where id = any (${webhookIds}::uuid[])`;
}

/** Whether a delivery of these webhooks is still to be made or recorded. */
export async function hasDeliveries(
  sql: Pool,
  ownerId: string,
  webhookIds: readonly string[],
): Promise<boolean> {
  const pending = await sql`
    select from unnest(${webhookIds}::uuid[]) as id
    where exists (select from delivery_queue where owner_id = ${ownerId} and webhook_id = id and ready) limit 1`;
  return pending.count > 0;
}

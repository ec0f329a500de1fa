/**
 * What goes in the background, in small batches and never in one long delete: deliveries of deleted webhooks, and
 * everything past its retention. Ids begin with the event's time, so that what is old is a range of the primary key.
 */
import { only, type Sql } from '../db/client.ts';

/** A batch of the deliveries of deleted webhooks, or else the webhooks themselves; true when there may be more. */
export async function purgeDeletedWebhooks(sql: Sql, batch = 500): Promise<boolean> {
  const { purged } = only(
    await sql<{ purged: number }[]>`
      with doomed as (
        select deliveries.id from webhooks join deliveries on deliveries.webhook_id = webhooks.id
        where webhooks.deleted_at is not null limit ${batch}
      ), tries as (
        delete from attempts where delivery_id = any (array(select id from doomed))
      ), gone as (
        delete from deliveries where id = any (array(select id from doomed)) returning 1
      )
      select count(*)::int as purged from gone`,
  );
  if (purged > 0) return true;
  await sql`
    delete from webhooks
    where deleted_at is not null and not exists (select from deliveries where webhook_id = webhooks.id)`;
  return false;
}

/** A batch of what is older than the retention; true when there may be more. What is pending stays, unless its webhook is off or gone. */
export async function purgeOld(sql: Sql, retentionDays: number, batch = 500): Promise<boolean> {
  // Ids are made by the program, whose clock may be off; what counts is PostgreSQL's own time.
  const oldest = sql`now() - ${retentionDays} * interval '1 day'`;
  const bound = sql`first_id_at(${oldest})`;
  await sql`
    update deliveries set status = 'cancelled', ready = false, completed_at = now(), next_attempt_at = null
    where id in (
      select deliveries.id from deliveries left join webhooks on webhooks.id = deliveries.webhook_id
      where deliveries.id < ${bound} and deliveries.created_at < ${oldest} and deliveries.status = 'pending'
        and webhooks.enabled is not true
      order by deliveries.id limit ${batch} for update of deliveries skip locked
    )`;
  const { deliveries } = only(
    await sql<{ deliveries: number }[]>`
      with doomed as (
        select id from deliveries
        where id < ${bound} and created_at < ${oldest} and status <> 'pending' order by id limit ${batch}
      ), tries as (
        delete from attempts where delivery_id = any (array(select id from doomed))
      ), gone as (
        -- Again: a redelivery may have been acknowledged since the look above.
        delete from deliveries where id = any (array(select id from doomed)) and status <> 'pending' returning 1
      )
      select count(*)::int as deliveries from gone`,
  );
  if (deliveries > 0) return true;
  // Whatever delivery is left below the bound is pending, and the events from its time on are still needed.
  const events = await sql`
    delete from events where id in (
      select id from events
      where id < coalesce((
        select rpad(substr(replace(id::text, '-', ''), 1, 12), 32, '0')::uuid
        from deliveries where id < ${bound} order by id limit 1), ${bound})
        and created_at < ${oldest}
      order by id limit ${batch}
    )`;
  return events.count === batch;
}

/** A batch of small things past their time: secrets that sign no more, and replays that ended long ago. */
export async function purgeSpent(sql: Sql, retentionDays: number, batch = 500): Promise<boolean> {
  const secrets = await sql`
    delete from retired_webhook_secrets where ctid = any (array(
      select ctid from retired_webhook_secrets where retired_at < now() - interval '24 hours'
      order by retired_at limit ${batch}))`;
  const replays = await sql`
    delete from replays where id = any (array(
      select id from replays where completed_at < now() - ${retentionDays} * interval '1 day'
      order by completed_at limit ${batch}))`;
  return secrets.count === batch || replays.count === batch;
}

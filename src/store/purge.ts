/**
 * Deletes in the background, in small batches: deliveries of deleted webhooks, mail of deleted identities, and everything past its
 * retention. Ids start with the time of the event, so old rows are a range of the primary key.
 */
import { only, type Sql, transaction } from '../db/client.ts';

/** Deletes a batch of the deliveries of deleted webhooks, then the webhooks; true if there may be more. */
export async function purgeDeletedWebhooks(sql: Sql, batch = 500): Promise<boolean> {
  const { purged } = only(
    await sql<{ purged: number }[]>`
      with doomed as (
        select deliveries.id from webhooks
        join deliveries on deliveries.owner_id = webhooks.owner_id and deliveries.webhook_id = webhooks.id
        where webhooks.deleted_at is not null limit ${batch}
      ), old_attempts as (
        delete from attempts where delivery_id = any (array(select id from doomed))
      ), purged_rows as (
        delete from deliveries where id = any (array(select id from doomed)) returning 1
      )
      select count(*)::int as purged from purged_rows`,
  );
  if (purged > 0) return true;
  await sql`
    with purged_rows as (
      delete from webhooks
      where deleted_at is not null and not exists (
        select from deliveries where deliveries.owner_id = webhooks.owner_id and webhook_id = webhooks.id
      )
      returning owner_id, id
    )
    delete from replays using purged_rows where replays.owner_id = purged_rows.owner_id and replays.webhook_id = purged_rows.id`;
  return false;
}

interface CancelledDelivery {
  deliveryId: string;
  webhookId: string;
  eventId: string;
}

/**
 * Deletes a batch of what is past its retention; true if there may be more. Pending deliveries of enabled webhooks stay, others are
 * cancelled first.
 */
export async function purgeOld(
  sql: Sql,
  retentionDays: number,
  batch = 500,
  onCancelled: (deliveries: CancelledDelivery[]) => void = () => {},
): Promise<boolean> {
  // The program makes the ids, and its clock may be wrong: `created_at` is PostgreSQL's time, and decides.
  const oldest = sql`now() - ${retentionDays} * interval '1 day'`;
  const bound = sql`first_id_at(${oldest})`;
  const cancelled = await sql<CancelledDelivery[]>`
    update deliveries set status = 'cancelled', ready = false, completed_at = now(), next_attempt_at = null
    where id in (
      select deliveries.id from deliveries left join webhooks on webhooks.id = deliveries.webhook_id
      where deliveries.id < ${bound} and deliveries.created_at < ${oldest} and deliveries.status = 'pending'
        and webhooks.enabled is not true
      order by deliveries.id limit ${batch} for update of deliveries skip locked
    )
    returning id as "deliveryId", webhook_id as "webhookId", event_id as "eventId"`;
  onCancelled(cancelled);
  const { deliveries } = only(
    await sql<{ deliveries: number }[]>`
      with doomed as (
        select id from deliveries
        where id < ${bound} and created_at < ${oldest} and status <> 'pending' order by id limit ${batch}
      ), purged_rows as (
        -- The status again: a redelivery may have been requested since the rows were selected.
        delete from deliveries where id = any (array(select id from doomed)) and status <> 'pending' returning id
      ), old_attempts as (
        delete from attempts where delivery_id = any (array(select id from purged_rows))
      )
      select count(*)::int as deliveries from purged_rows`,
  );
  if (deliveries > 0) return true;
  // An event stays while it has a delivery that is pending, or that a recent replay created.
  const isOld = sql`
    events.id < ${bound} and events.created_at < ${oldest} and not exists (
      select from deliveries
      where deliveries.id between first_id_with(events.id) and last_id_with(events.id)
        and deliveries.event_id = events.id
    )`;
  const messages = await removeMessages(
    sql,
    sql`
      select messages.id, messages.event_id, messages.raw_id, messages.size
      from events join messages on messages.id = events.message_id
      where ${isOld} order by events.id limit ${messageBatch}`,
  );
  const events = await sql`
    delete from events where id = any (array(
      select id from events where ${isOld} and message_id is null order by id limit ${batch}))`;
  return messages > 0 || events.count === batch;
}

/** Small, because each message may be large. */
const messageBatch = 100;
const maxRemovedBytes = 64 * 1024 * 1024;
/** A message that was being accepted while its identity was deleted may be stored this much later. */
const lateSeconds = 60;

/** Deletes a batch of the mail of deleted identities, also pending deliveries; true if there may be more. */
export async function purgeDeletedIdentities(sql: Sql): Promise<boolean> {
  const removed = await removeMessages(
    sql,
    sql`
      select messages.id, messages.event_id, messages.raw_id, messages.size
      from identity_purges cross join lateral (
        select * from messages
        where messages.owner_id = identity_purges.owner_id and messages.identity_id = identity_purges.identity_id
        order by created_at desc limit ${messageBatch}
      ) messages
      limit ${messageBatch}`,
  );
  if (removed > 0) return true;
  await sql`
    delete from identity_purges
    where created_at < now() - ${lateSeconds} * interval '1 second'
      and not exists (
        select from messages
        where messages.owner_id = identity_purges.owner_id and messages.identity_id = identity_purges.identity_id
      )`;
  return false;
}

/** Deletes messages with their events and deliveries. `chosen` selects id, event_id, raw_id and size. Returns how many. */
function removeMessages(sql: Sql, chosen: ReturnType<Sql>): Promise<number> {
  return transaction(sql, async (sql) => {
    // One process at a time: two that delete messages with shared bytes would each leave the bytes to the other.
    const { ours } = only(await sql`select pg_try_advisory_xact_lock(hashtext('posthorn purge')) as ours`);
    return ours ? removeChosen(sql, chosen) : 0;
  });
}

async function removeChosen(sql: Sql, chosen: ReturnType<Sql>): Promise<number> {
  const { removed } = only(
    await sql<{ removed: number }[]>`
      with chosen as materialized (${chosen}),
      doomed as materialized (
        select id, event_id, raw_id from (
          select *, sum(size) over (order by id) - size as before from chosen
        ) counted
        where before < ${maxRemovedBytes}
      ),
      queued as materialized (
        -- Lateral, with an offset that the planner cannot optimise away: otherwise it reads the whole table for the join.
        select dependent.id from doomed cross join lateral (
          select id from deliveries
          where id between first_id_with(doomed.event_id) and last_id_with(doomed.event_id)
            and event_id = doomed.event_id
          offset 0
        ) dependent
      ), old_attempts as (
        delete from attempts where delivery_id = any (array(select id from queued))
      ), old_deliveries as (
        delete from deliveries where id = any (array(select id from queued))
      ), old_events as (
        delete from events where id = any (array(select event_id from doomed))
      ), purged_rows as (
        delete from messages where id = any (array(select id from doomed)) returning 1
      ), old_bytes as (
        -- Bytes are deleted with the last message that uses them: the message they are named after, or one that shares them.
        delete from raw_chunks where raw_id = any (array(
          select raw_id from doomed
          where not exists (
            select from messages
            where (messages.id = doomed.raw_id or messages.raw_id = doomed.raw_id and messages.raw_id <> messages.id)
              and messages.id <> all (array(select id from doomed))
          )
        ))
      )
      select count(*)::int as removed from purged_rows`,
  );
  return removed;
}

/** Deletes a batch of replaced secrets and of completed replays that are past their time; true if there may be more. */
export async function purgeExpired(sql: Sql, retentionDays: number, batch = 500): Promise<boolean> {
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

/**
 * Deletes in the background, in small batches: deliveries of deleted webhooks, mail of deleted identities, and everything past its
 * retention. Ids start with the time of the event, so old rows are a range of the primary key.
 */
import { only, type Sql, transaction } from '../db/client.ts';
import { type Fragment, identifier } from '../db/sql.ts';
import { insertCancelled } from './delivery-queue.ts';
import { identityExists } from './messages.ts';

/** Deletes a batch of the deliveries of deleted webhooks, then the webhooks; true if there may be more. */
export async function purgeDeletedWebhooks(sql: Sql, batch = 500): Promise<boolean> {
  const ofDeleted = (table: string) => sql`
    select dependent.id from webhooks cross join lateral (
      select id from ${identifier(table)} as dependent
      where dependent.owner_id = webhooks.owner_id and dependent.webhook_id = webhooks.id limit ${batch}
    ) dependent
    where webhooks.deleted_at is not null limit ${batch}`;
  const purged = await removeDeliveries(
    sql,
    ofDeleted('delivery_queue'),
    ofDeleted('ended_deliveries'),
    batch,
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

/** Redeliveries are not limited, so a delivery can have any number of attempts. */
const attemptsPerDelivery = 10;

/**
 * Deletes deliveries with their attempts, and attempts alone while there are too many for one batch. `queued` and `ended` select
 * the ids of up to `batch` deliveries. Returns how many rows were deleted.
 */
function removeDeliveries(sql: Sql, queued: Fragment, ended: Fragment, batch: number): Promise<number> {
  const maxAttempts = batch * attemptsPerDelivery;
  return transaction(sql, async (sql) => {
    const chosen = only(
      await sql<{ queued: string[]; ended: string[] }[]>`
        select array(${queued})::text[] as queued, array(${ended})::text[] as ended`,
    );
    const ids = [...chosen.queued, ...chosen.ended];
    if (ids.length === 0) return 0;
    // Lateral: the planner must not read the whole table for a limit.
    const attempts = await sql`
      delete from earlier_attempts where ctid = any (array(
        select attempt.ctid from unnest(${ids}::uuid[]) as chosen (id) cross join lateral (
          select ctid from earlier_attempts where delivery_id = chosen.id limit ${maxAttempts}
        ) attempt
        limit ${maxAttempts}
      ))`;
    if (attempts.count === maxAttempts) return attempts.count;
    const { removed } = only(
      await sql<{ removed: number }[]>`
        with old_queued as (
          delete from delivery_queue where id = any (${chosen.queued}::uuid[]) returning id
        ), old_ended as (
          delete from ended_deliveries where id = any (${chosen.ended}::uuid[]) returning id
        ), removed as (
          select * from old_queued union all select * from old_ended
        ), late_attempts as (
          -- Recorded since the first statement.
          delete from earlier_attempts where delivery_id = any (array(select id from removed))
        )
        select count(*)::int as removed from removed`,
    );
    return removed;
  });
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
    with ended as (
      delete from delivery_queue where id = any (array(
        select delivery_queue.id from delivery_queue left join webhooks on webhooks.id = delivery_queue.webhook_id
        where delivery_queue.id < ${bound} and delivery_queue.created_at < ${oldest} and webhooks.enabled is not true
        order by delivery_queue.id limit ${batch} for update of delivery_queue skip locked
      ))
      returning *
    )
    ${insertCancelled(sql)} returning id as "deliveryId", webhook_id as "webhookId", event_id as "eventId"`;
  onCancelled(cancelled);
  const past = sql`
    select id from ended_deliveries where id < ${bound} and created_at < ${oldest} order by id limit ${batch}`;
  if ((await removeDeliveries(sql, sql`select null::uuid where false`, past, batch)) > 0) return true;
  // An event stays while it has a delivery that is pending, or that a recent replay created.
  const isOld = sql`
    events.id < ${bound} and events.created_at < ${oldest} and not exists (
      select from deliveries
      where deliveries.id between first_id_with(events.id) and last_id_with(events.id)
        and deliveries.event_id = events.id
    )`;
  const received = await removeMessages(sql, oldReceived(sql, isOld, batch));
  if (received > 0) return true;
  const sent = oldSent(sql, oldest, batch);
  const removedSent = await removeMessages(sql, sent, (sql) => lockSent(sql, sent));
  if (removedSent > 0) return true;
  const silent = await removeMessages(sql, oldSilent(sql, oldest, batch));
  // Only then the rest, because it passes over all old events that have a message.
  if (silent > 0) return true;
  const events = await sql`
    delete from events where id = any (array(
      select id from events where ${isOld} and message_id is null order by id limit ${batch}))`;
  return events.count === batch;
}

/** A received message has one event, and lives as long as it. */
function oldReceived(sql: Sql, isOld: Fragment, batch: number): Fragment {
  return sql`
    select messages.id, messages.raw_id, messages.size
    from events join messages on messages.id = events.message_id
    where ${isOld} and events.event = 'message.received' order by events.id limit ${batch}`;
}

/**
 * The retention of a message that was sent starts when its last recipient ended. It stays while one of its events, which may come
 * much later, has a delivery.
 */
function oldSent(sql: Sql, oldest: Fragment, batch: number): Fragment {
  return sql`
    select messages.id, messages.raw_id, messages.size
    from outgoing join messages on messages.id = outgoing.id
    where outgoing.ended_at < ${oldest} and not exists (
      select from events join deliveries
        on deliveries.id between first_id_with(events.id) and last_id_with(events.id) and deliveries.event_id = events.id
      where events.message_id = outgoing.id
    )
    order by outgoing.ended_at limit ${batch}`;
}

/** Mail that was imported without an event. */
function oldSilent(sql: Sql, oldest: Fragment, batch: number): Fragment {
  return sql`
    select id, raw_id, size from messages
    where is_silent and created_at < ${oldest} order by created_at limit ${batch}`;
}

/** A batch of messages also ends here, because each may be large. */
const maxRemovedBytes = 64 * 1024 * 1024;
/** A message that was being accepted while its identity was deleted may be stored this much later. */
const lateSeconds = 60;

/** Deletes a batch of the mail of deleted identities, also pending deliveries; true if there may be more. */
export async function purgeDeletedIdentities(sql: Sql, batch = 500): Promise<boolean> {
  const ofDeleted = sql`
    select messages.id, messages.raw_id, messages.size
    from identity_purges cross join lateral (
      select * from messages
      where messages.owner_id = identity_purges.owner_id and messages.identity_id = identity_purges.identity_id
      limit ${batch}
    ) messages
    limit ${batch}`;
  const deliveriesOf = (table: string, locking: Fragment) => sql`
    select dependent.id
    from (${ofDeleted}) doomed join events on events.message_id = doomed.id cross join lateral (
      select id from ${identifier(table)}
      where id between first_id_with(events.id) and last_id_with(events.id) and event_id = events.id ${locking}
    ) dependent
    limit ${batch}`;
  // Before the messages, in batches of their own: a message can have a thousand deliveries, and a batch of results, which has
  // those of other owners too, would wait for all of them. Those that are being recorded are left for the next batch.
  const queued = deliveriesOf('delivery_queue', sql`for update skip locked`);
  const ended = deliveriesOf('ended_deliveries', sql`offset 0`);
  if ((await removeDeliveries(sql, queued, ended, batch)) > 0) return true;
  const removed = await removeMessages(
    sql,
    ofDeleted,
    async (sql) => {
      await lockSent(sql, ofDeleted);
      await lockDeliveriesOf(sql, ofDeleted);
    },
    true,
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

/** Before all other rows of a message that was sent, as everybody does: two that wait for each other would fail. */
async function lockSent(sql: Sql, messages: Fragment): Promise<void> {
  await sql`
    select from outgoing where id = any (array(select id from (${messages}) doomed)) order by id for update`;
}

/** Waits for results that are being recorded: the statement that deletes would see their deliveries in neither table. */
async function lockDeliveriesOf(sql: Sql, messages: Fragment): Promise<void> {
  await sql`
    select from delivery_queue where id = any (array(
      select queued.id
      from (${messages}) doomed join events on events.message_id = doomed.id cross join lateral (
        select id from delivery_queue
        where id between first_id_with(events.id) and last_id_with(events.id) and event_id = events.id
        offset 0
      ) queued
    ))
    order by id for update`;
}

/**
 * Deletes messages with their events and deliveries. `chosen` selects id, raw_id and size. `keepsPositions`: before their retention
 * has ended, so that streams can resume after the events. Returns how many.
 */
function removeMessages(
  sql: Sql,
  chosen: Fragment,
  prepare: (sql: Sql) => Promise<void> = async () => {},
  keepsPositions = false,
): Promise<number> {
  return transaction(sql, async (sql) => {
    // One process at a time: two that delete messages with shared bytes would each leave the bytes to the other. It waits, because
    // others keep the lock for a batch at most.
    await lockPurge(sql);
    await prepare(sql);
    return removeChosen(sql, chosen, { keepsPositions });
  });
}

/** Until the end of the transaction, no process deletes messages. */
export async function lockPurge(sql: Sql): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtext('posthorn purge'))`;
}

/**
 * Deletes one message, for its owner: what ended of its deliveries stays, without content. Undefined: no such message.
 */
export function deleteMessage(sql: Sql, ownerId: string, id: string): Promise<true | undefined> {
  return transaction(sql, async (sql) => {
    await lockPurge(sql);
    const chosen = sql`
      select id, raw_id, size from messages where owner_id = ${ownerId} and id = ${id} and ${identityExists(sql)}`;
    await lockSent(sql, chosen);
    await lockDeliveriesOf(sql, chosen);
    const removed = await removeChosen(sql, chosen, { keepsPositions: true, keepsEnded: true });
    return removed > 0 || undefined;
  });
}

async function removeChosen(
  sql: Sql,
  chosen: Fragment,
  { keepsPositions, keepsEnded = false }: { keepsPositions: boolean; keepsEnded?: boolean },
): Promise<number> {
  const { removed } = only(
    await sql<{ removed: number }[]>`
      with chosen as materialized (${chosen}),
      doomed as materialized (
        select id, raw_id from (
          select *, sum(size) over (order by id) - size as before from chosen
        ) counted
        where before < ${maxRemovedBytes}
      ), old_events as (
        delete from events where message_id = any (array(select id from doomed)) returning id, owner_id, xact, created_at
      ), positions as (
        insert into event_positions (id, owner_id, xact, created_at)
        select id, owner_id, xact, created_at from old_events where ${keepsPositions}
      ), dependent as materialized (
        -- Lateral, with an offset that the planner cannot optimise away: otherwise it reads the whole table for the join.
        select dependent.id, dependent.attempt_count from old_events cross join lateral (
          select id, attempt_count from deliveries
          where id between first_id_with(old_events.id) and last_id_with(old_events.id) and event_id = old_events.id
            and (status = 'pending' or not ${keepsEnded})
          offset 0
        ) dependent
      ), old_attempts as (
        delete from earlier_attempts where delivery_id = any (array(select id from dependent where attempt_count > 0))
      ), old_queued as (
        delete from delivery_queue where id = any (array(select id from dependent))
      ), old_ended as (
        delete from ended_deliveries where id = any (array(select id from dependent))
      ), old_sends as (
        delete from send_queue where message_id = any (array(select id from doomed))
      ), old_recipients as (
        delete from recipients where message_id = any (array(select id from doomed))
      ), old_send_attempts as (
        delete from send_attempts where message_id = any (array(select id from doomed))
      ), old_reports as (
        delete from send_reports where message_id = any (array(select id from doomed))
      ), old_outgoing as (
        delete from outgoing where id = any (array(select id from doomed))
      ), purged_rows as (
        delete from messages where id = any (array(select id from doomed)) returning 1
      ), old_bytes as (
        -- Bytes are deleted with the last message that uses them: the message they are named after, or one that shares them.
        delete from raw_chunks where raw_id = any (array(
          select raw_id from doomed
          where raw_id is not null and not exists (
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

/**
 * Deletes a batch of replaced secrets, of confirmation mails, of completed replays, of positions of deleted events, of counted
 * traffic and of the calls of providers that are past their time; true if there may be more.
 */
export async function purgeExpired(sql: Sql, retentionDays: number, batch = 500): Promise<boolean> {
  const secrets = await sql`
    delete from retired_webhook_secrets where ctid = any (array(
      select ctid from retired_webhook_secrets where retired_at < now() - interval '24 hours'
      order by retired_at limit ${batch}))`;
  const confirmations = await sql`
    delete from confirmations where id = any (array(
      select id from confirmations where created_at < now() - interval '24 hours' order by created_at limit ${batch}))`;
  const replays = await sql`
    delete from replays where id = any (array(
      select id from replays where completed_at < now() - ${retentionDays} * interval '1 day'
      order by completed_at limit ${batch}))`;
  const positions = await sql`
    delete from event_positions where id = any (array(
      select id from event_positions where created_at < now() - ${retentionDays} * interval '1 day'
      order by created_at limit ${batch}))`;
  const traffic = await sql`
    delete from traffic where ctid = any (array(
      select ctid from traffic where hour < now() - ${retentionDays} * interval '1 day' order by hour limit ${batch}))`;
  const calls = await sql`
    delete from provider_calls where ctid = any (array(
      select ctid from provider_calls where created_at < now() - interval '25 hours' order by created_at limit ${batch}))`;
  return [secrets, confirmations, replays, positions, traffic, calls].some(({ count }) => count === batch);
}

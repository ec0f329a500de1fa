/** Replays: past events are sent to a webhook again, in batches. */
import { only, type Sql, transaction } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { lockForRestart, restart, takeEnded } from './deliveries.ts';
import { isSubscribed, isVisible } from './events.ts';
import { kindsOf } from './page.ts';

export const replaySelections = ['missing', 'failed', 'missing_or_failed', 'all'] as const;
type ReplaySelection = (typeof replaySelections)[number];

export interface Replay {
  id: string;
  webhookId: string;
  since: string;
  until: string;
  /** Which events are sent, by the status of their delivery. */
  status: ReplaySelection;
  /** Events read so far, and deliveries created or restarted. */
  examined: number;
  queued: number;
  createdAt: string;
  /** Null while the replay runs. */
  completedAt: string | null;
}

function columns(sql: Sql) {
  return sql`
    id, webhook_id as "webhookId",
    iso_time(since) as since,
    iso_time(until) as until,
    selection as status, examined, queued,
    iso_time(created_at) as "createdAt",
    iso_time(completed_at) as "completedAt"`;
}

export interface NewReplay {
  webhookId: string;
  since: string;
  /** Null means now. */
  until: string | null;
  status: ReplaySelection;
}

export async function createReplay(sql: Sql, ownerId: string, given: NewReplay): Promise<Replay> {
  return only(
    await sql<Replay[]>`
      insert into replays (id, owner_id, webhook_id, since, until, selection, position_at)
      values (${newId()}, ${ownerId}, ${given.webhookId}, ${given.since}::text::timestamptz,
        coalesce(${given.until}::text::timestamptz, now()), ${given.status}, ${given.since}::text::timestamptz)
      returning ${columns(sql)}`,
  );
}

export async function findReplay(
  sql: Sql,
  ownerId: string,
  webhookId: string,
  id: string,
): Promise<Replay | undefined> {
  const [row] = await sql<Replay[]>`
    select ${columns(sql)} from replays
    where owner_id = ${ownerId} and webhook_id = ${webhookId} and id = ${id}`;
  return row;
}

interface OpenReplay {
  id: string;
  ownerId: string;
  webhookId: string;
  selection: ReplaySelection;
  until: string;
  positionAt: string;
  positionId: string;
}

/** The replay of a disabled webhook waits until the webhook is enabled; the replay of a deleted webhook ends. */
export function mayRunReplay(sql: Sql) {
  return sql`
    completed_at is null and exists (
      select from webhooks
      where webhooks.owner_id = replays.owner_id and webhooks.id = replays.webhook_id
        and (webhooks.enabled or webhooks.deleted_at is not null)
    )`;
}

interface ReplayBatch {
  examined: number;
  queued: number;
  at: string | null;
  id: string | null;
}

/**
 * Runs one batch. Owners take turns, and the replays of an owner: an owner with many replays delays the others by one batch.
 * Returns undefined if there is no replay to run.
 */
export function runReplayBatch(sql: Sql, batch = 500): Promise<ReplayBatch | undefined> {
  return transaction(sql, async (sql) => {
    // From owner to owner along an index, so that the cost does not grow with the number of replays.
    const [replay] = await sql<OpenReplay[]>`
      with recursive owners as (
        (select owner_id from replays where completed_at is null order by owner_id limit 1)
        union all
        select (
          select owner_id from replays where completed_at is null and owner_id > owners.owner_id order by owner_id limit 1
        )
        from owners where owners.owner_id is not null
      ), turns as (
        select owner_id, (select max(worked_at) from replays where replays.owner_id = owners.owner_id) as last_turn
        from owners where owner_id is not null
      )
      select replay.*
      from (select owner_id from turns order by last_turn nulls first) turn cross join lateral (
        select id, owner_id as "ownerId", webhook_id as "webhookId", selection, until::text as until,
          position_at::text as "positionAt", position_id as "positionId"
        from replays
        where replays.owner_id = turn.owner_id and ${mayRunReplay(sql)}
        order by coalesce(worked_at, created_at) limit 1 for update skip locked
      ) replay
      limit 1`;
    if (!replay) return undefined;
    const step = await queueBatch(sql, replay, batch);
    await sql`
      update replays
      set examined = examined + ${step.examined}, queued = queued + ${step.queued},
        position_at = coalesce(${step.at}::text::timestamptz, position_at),
        position_id = coalesce(${step.id}::uuid, position_id), worked_at = clock_timestamp(),
        completed_at = ${step.examined < batch ? sql`now()` : null}
      where owner_id = ${replay.ownerId} and id = ${replay.id}`;
    return step;
  });
}

interface WantedEvent {
  id: string;
  at: string;
  /** Null if the webhook is not subscribed to the event. */
  deliveryId: string | null;
}

/** The owner's next events after the position, of all kinds: the index has the kind before the time. */
function nextEvents(sql: Sql, { ownerId, until, positionAt, positionId }: OpenReplay, batch: number) {
  return sql`
    select next.* from ${kindsOf(sql, sql`events where owner_id = ${ownerId}`)} cross join lateral (
      select id, event, identity_id, created_at from events
      where owner_id = ${ownerId} and not test and ${isVisible(sql)}
        and (event, created_at, id) > (kinds.event, ${positionAt}::text::timestamptz, ${positionId}::uuid)
        and (event, created_at) < (kinds.event, ${until}::text::timestamptz)
      order by event, created_at, id limit ${batch}
    ) next
    order by next.created_at, next.id limit ${batch}`;
}

async function queueBatch(sql: Sql, replay: OpenReplay, batch: number): Promise<ReplayBatch> {
  const { selection, ownerId, webhookId } = replay;
  const again = {
    missing: sql`false`,
    failed: sql`status in ('failed', 'cancelled')`,
    missing_or_failed: sql`status in ('failed', 'cancelled')`,
    all: sql`true`,
  }[selection];
  const events = await sql<WantedEvent[]>`
    select happened.id, happened.created_at::text as at, delivery_id(happened.id, webhooks.id) as "deliveryId"
    from (${nextEvents(sql, replay, batch)}) happened
    left join webhooks on webhooks.owner_id = ${ownerId} and webhooks.id = ${webhookId} and ${isSubscribed(sql)}
    order by happened.created_at, happened.id`;
  const wanted = events.filter(({ deliveryId }) => deliveryId !== null);
  const ids = wanted.map(({ deliveryId }) => deliveryId as string);
  await lockForRestart(sql, ownerId, ids);
  const queued = await sql`
    with wanted as materialized (
      select * from unnest(${ids}::uuid[], ${wanted.map(({ id }) => id)}::uuid[]) as wanted (id, event_id)
    ), ${takeEnded(sql, sql`id = any (${ids}::uuid[]) and owner_id = ${ownerId} and ${again}`)}
    insert into delivery_queue (id, owner_id, event_id, webhook_id, event, attempt_count, created_at)
    select wanted.id, ${ownerId}, wanted.event_id, ${webhookId}, events.event, coalesce(taken.attempt_count, 0),
      coalesce(taken.created_at, now())
    from wanted join events on events.id = wanted.event_id left join taken on taken.id = wanted.id
    where taken.id is not null
      -- Not "exists": after "or" PostgreSQL may read all ended deliveries into a hash table.
      or ${selection !== 'failed'} and (select true from ended_deliveries where ended_deliveries.id = wanted.id) is null
    on conflict (id) do update set ${restart(sql)} where ${selection === 'all'}
    returning 1`;
  const last = events.at(-1);
  return { examined: events.length, queued: queued.count, at: last?.at ?? null, id: last?.id ?? null };
}

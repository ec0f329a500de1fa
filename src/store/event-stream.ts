/**
 * Events in the order in which they became visible to all. Guarantee: nothing appears behind a position that was read. Ids are made
 * before the commit, so their order is not enough: an event is read when every transaction that began before its own has ended.
 */
import { only, type Sql } from '../db/client.ts';
import { dataColumns, isVisible, type StoredData, toData, withContent } from './events.ts';

/** Of an event: its transaction, and within it the id. */
export interface StreamPosition {
  xact: bigint;
  id: string;
}

export interface StreamedEvent extends StoredData {
  position: StreamPosition;
  event: string;
  identityId: string | null;
}

export const lowestId = '00000000-0000-0000-0000-000000000000';

export function isAfter(one: StreamPosition, other: StreamPosition): boolean {
  return one.xact === other.xact ? one.id > other.id : one.xact > other.xact;
}

/** Undefined: no such event, or its retention has ended. */
export async function findPosition(
  sql: Sql,
  ownerId: string,
  eventId: string,
): Promise<StreamPosition | undefined> {
  const [row] = await sql<{ xact: string }[]>`
    select xact::text as xact from events where owner_id = ${ownerId} and id = ${eventId}
    union all
    select xact::text from event_positions where owner_id = ${ownerId} and id = ${eventId}`;
  return row && { xact: BigInt(row.xact), id: eventId };
}

/** The transactions whose events are visible at this moment. */
export interface Snapshot {
  /** All below have ended. */
  xmin: bigint;
  /** None from here on has begun. */
  xmax: bigint;
  running: ReadonlySet<bigint>;
}

export async function readSnapshot(sql: Sql): Promise<Snapshot> {
  const { snapshot } = only(
    await sql<{ snapshot: string }[]>`select pg_current_snapshot()::text as snapshot`,
  );
  const [xmin = '0', xmax = '0', running = ''] = snapshot.split(':');
  const ids = running.split(',').filter((id) => id !== '');
  return { xmin: BigInt(xmin), xmax: BigInt(xmax), running: new Set(ids.map(BigInt)) };
}

export function wasVisible({ xmax, running }: Snapshot, { xact }: StreamPosition): boolean {
  return xact < xmax && !running.has(xact);
}

/**
 * The next events of an owner. `hasOlderRunning`: there are more, which must wait for a transaction that began before them. Without
 * test events.
 */
export async function readStream(
  sql: Sql,
  ownerId: string,
  after: StreamPosition,
  limit: number,
): Promise<{ events: StreamedEvent[]; hasOlderRunning: boolean }> {
  const isNext = sql`
    events.owner_id = ${ownerId} and (events.xact, events.id) > (${String(after.xact)}::xid8, ${after.id}::uuid) and not events.test`;
  const rows = await sql<(Parameters<typeof toData>[0] & StreamRow)[]>`
    select events.id, events.event, events.identity_id as "identityId", events.xact::text as xact, ${dataColumns(sql)}
    from events ${withContent(sql)}
    where ${isNext} and events.xact < pg_snapshot_xmin(pg_current_snapshot()) and ${isVisible(sql)}
    order by events.xact, events.id limit ${limit}`;
  const events = rows.map((row) => ({
    ...{ position: { xact: BigInt(row.xact), id: row.id }, event: row.event, identityId: row.identityId },
    ...toData(row),
  }));
  if (rows.length > 0) return { events, hasOlderRunning: false };
  const waiting = await sql`
    select from events
    where ${isNext} and events.xact >= pg_snapshot_xmin(pg_current_snapshot()) order by events.xact, events.id limit 1`;
  return { events, hasOlderRunning: waiting.count > 0 };
}

interface StreamRow {
  id: string;
  event: string;
  identityId: string | null;
  xact: string;
}

/**
 * After a restore into another cluster, whose transactions are counted from a lower number, the events of the old one would come
 * after all new ones, and a reader that resumes after a deleted event would get none. Gives a batch of them the lowest number; true if
 * there may be more.
 */
export async function renumberRestored(sql: Sql, batch = 1000): Promise<boolean> {
  const isRestored = sql`xact >= pg_snapshot_xmax(pg_current_snapshot())`;
  const positions = await sql`
    update event_positions set xact = '0'
    where id = any (array(select id from event_positions where ${isRestored} limit ${batch}))`;
  const renumbered = await sql`
    update events set xact = '0' where id = any (array(
      -- By owner, along the index of streams: no index has the transaction first.
      select restored.id from users cross join lateral (
        select id from events
        where owner_id = users.id and ${isRestored}
        order by owner_id, xact, id limit ${batch}
      ) restored
      limit ${batch}))`;
  return renumbered.count > 0 || positions.count > 0;
}

/** How many deliveries wait, and for how long, for the metrics. Not by owner: the metrics are the operator's. */
import { only, type Sql } from '../db/client.ts';
import { readyIn } from './queue-rows.ts';

/** Enabled webhooks with ready deliveries, found by hopping along the index of ready deliveries, as `claimDeliveries` does. */
function waiting(sql: Sql) {
  return sql`
    recursive walk as (
      (select owner_id, webhook_id from delivery_queue where ready order by owner_id, webhook_id, id limit 1)
      union all
      select next.owner_id, next.webhook_id
      from walk cross join lateral (
        select owner_id, webhook_id from delivery_queue
        where ready and (owner_id, webhook_id, id) > (walk.owner_id, walk.webhook_id, uuid 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        order by owner_id, webhook_id, id limit 1
      ) next
    ), waiting as (
      select walk.owner_id, id from walk join webhooks on webhooks.id = walk.webhook_id and webhooks.enabled
    )`;
}

/** Pending deliveries of enabled webhooks. Counting stops at `most`, so that its cost does not grow with the backlog. */
export async function countBacklog(sql: Sql, most = 100_000): Promise<number> {
  const { backlog } = only(
    await sql<{ backlog: number }[]>`
      with ${waiting(sql)}, scheduled as (
        select webhook_id from delivery_queue
        where not ready and next_attempt_at < 'infinity' limit ${most}
      )
      select count(*)::int as backlog from (
        (select from waiting cross join lateral (
          select from delivery_queue where ${readyIn(sql, sql`waiting.owner_id, waiting.id`)}
          order by owner_id, webhook_id, id limit ${most}) ready)
        union all
        (select from scheduled join webhooks on webhooks.id = scheduled.webhook_id and webhooks.enabled)
        limit ${most}
      ) pending`,
  );
  return backlog;
}

/** Seconds since the oldest ready delivery of any enabled webhook was due; 0 if there is none. */
export async function readOldestPending(sql: Sql): Promise<number> {
  const { seconds } = only(
    await sql<{ seconds: number }[]>`
      with ${waiting(sql)}
      select coalesce(greatest(extract(epoch from now() - min(first.next_attempt_at)), 0), 0)::float8 as seconds
      from waiting cross join lateral (
        select next_attempt_at from delivery_queue
        where ${readyIn(sql, sql`waiting.owner_id, waiting.id`)}
        order by owner_id, webhook_id, id limit 1
      ) first`,
  );
  return seconds;
}

/**
 * PostgreSQL keeps a plan until it gets new statistics, from autovacuum about once a minute. A plan of an empty queue looks for ids in
 * whichever index, because all look as small: it may go through the index for lists, and compare every row of the queue with each
 * id. When one message for 5,000 webhooks came into an empty queue, recording 256 results took 250 ms instead of 5, and the
 * deliveries of other owners waited for more than a second.
 */
import type { Sql } from '../db/client.ts';

/** Below this number of rows any plan is fast enough. */
const fewRows = 1000;
const growth = 4;

/** Whether the queue is much larger than the plans were made for. Reads counters, not the queue. */
export function hasOutgrownPlans(sql: Sql) {
  return sql`(
    select pg_stat_get_live_tuples(oid) > ${fewRows} + ${growth} * reltuples from pg_class where oid = 'delivery_queue'::regclass
  )`;
}

/** New statistics make PostgreSQL plan the statements of the queue again. Does nothing while autovacuum or another process is at it. */
export async function refreshPlans(sql: Sql): Promise<void> {
  await sql.script('analyze (skip_locked) delivery_queue');
}

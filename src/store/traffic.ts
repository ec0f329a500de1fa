/**
 * Counts what happens in each hour. The count is a part of the statement that records a batch, so that it is exact; each database
 * connection has rows of its own, so that no two transactions change the same row.
 */
import type { Sql } from '../db/client.ts';
import type { Fragment } from '../db/sql.ts';

export const trafficSteps = ['hour', 'day'] as const;
export type TrafficStep = (typeof trafficSteps)[number];

export interface Traffic {
  /** The beginning of the hour or day, in UTC. */
  at: string;
  received: number;
  sent: number;
  delivered: number;
  bounced: number;
  complained: number;
  deliveriesDelivered: number;
  deliveriesFailed: number;
}

/** A part of the caller's statement: counts the events in a CTE, which has `owner_id` and `event`. */
export function countEvents(sql: Sql, events: Fragment): Fragment {
  const count = (event: string) => sql`count(*) filter (where event = ${event}::text)`;
  return sql`
    insert into traffic (owner_id, hour, backend, received, sent, delivered, bounced, complained)
    select owner_id, date_trunc('hour', now(), 'UTC'), pg_backend_pid(), ${count('message.received')}, ${count('message.sent')},
      ${count('message.delivered')}, ${count('message.bounced')}, ${count('message.complained')}
    from ${events} group by owner_id
    on conflict (owner_id, hour, backend) do update set
      received = traffic.received + excluded.received, sent = traffic.sent + excluded.sent,
      delivered = traffic.delivered + excluded.delivered, bounced = traffic.bounced + excluded.bounced,
      complained = traffic.complained + excluded.complained`;
}

/** The same for the deliveries in the CTE `ended`, which has `owner_id` and `status`. */
export function countEnded(sql: Sql): Fragment {
  return sql`
    insert into traffic (owner_id, hour, backend, deliveries_delivered, deliveries_failed)
    select owner_id, date_trunc('hour', now(), 'UTC'), pg_backend_pid(), count(*) filter (where status = 'delivered'),
      count(*) filter (where status = 'failed')
    from ended group by owner_id
    on conflict (owner_id, hour, backend) do update set
      deliveries_delivered = traffic.deliveries_delivered + excluded.deliveries_delivered,
      deliveries_failed = traffic.deliveries_failed + excluded.deliveries_failed`;
}

/** Every step from the one that has `since` to the one that has `until`, oldest first. */
export async function readTraffic(
  sql: Sql,
  ownerId: string,
  { since, until, step }: { since: Date; until: Date; step: TrafficStep },
): Promise<Traffic[]> {
  const first = sql`date_trunc(${step}::text, ${since.toISOString()}::text::timestamptz, 'UTC')`;
  // Not '1 day', which has 23 hours in some time zones.
  const length = step === 'hour' ? sql`interval '1 hour'` : sql`interval '24 hours'`;
  const total = (column: Fragment) => sql`coalesce(sum(${column}), 0)::int`;
  return sql<Traffic[]>`
    select iso_time(step.at) as at, ${total(sql`received`)} as received, ${total(sql`sent`)} as sent,
      ${total(sql`delivered`)} as delivered, ${total(sql`bounced`)} as bounced, ${total(sql`complained`)} as complained,
      ${total(sql`deliveries_delivered`)} as "deliveriesDelivered", ${total(sql`deliveries_failed`)} as "deliveriesFailed"
    from generate_series(${first}, ${until.toISOString()}::text::timestamptz, ${length}) as step (at)
    left join (select *, date_trunc(${step}::text, hour, 'UTC') as at from traffic where owner_id = ${ownerId} and hour >= ${first}) counted
      on counted.at = step.at
    group by step.at order by step.at`;
}

/** Changes the rows of deliveries behind the service's back, for states that would take days to reach. */
import type { Sql } from '../src/db/client.ts';
import type { Fragment } from '../src/db/sql.ts';

/** Ends pending deliveries without a try. `condition` is about `delivery_queue`. */
export async function endDeliveries(sql: Sql, condition: Fragment, status = 'delivered'): Promise<void> {
  await sql`
    with ended as (delete from delivery_queue where ${condition} returning *)
    insert into ended_deliveries (id, owner_id, event_id, webhook_id, event, status, attempt_count, created_at, completed_at)
    select id, owner_id, event_id, webhook_id, event, ${status}, attempt_count, created_at, now() from ended`;
}

export async function clearDeliveries(sql: Sql, condition: Fragment): Promise<void> {
  await sql`delete from delivery_queue where ${condition}`;
  await sql`delete from ended_deliveries where ${condition}`;
}

export async function setCreated(sql: Sql, at: Fragment, condition: Fragment): Promise<void> {
  await sql`update delivery_queue set created_at = ${at} where ${condition}`;
  await sql`update ended_deliveries set created_at = ${at} where ${condition}`;
}

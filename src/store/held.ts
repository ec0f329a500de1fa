/**
 * Held deliveries: pending deliveries of a disabled webhook. They are not ready and scheduled for 'infinity', so no claim and no
 * promotion ever reads them. (A dead webhook that is still enabled is different: a process pauses its lane, `Breaker`, and its
 * deliveries stay ready or scheduled.)
 * A webhook is unsettled from a change of `enabled` until all its deliveries are held or resumed; a trigger marks it.
 * Guarantee: no delivery of an enabled webhook stays held. Every statement that holds deliveries locks the disabled webhook, so that
 * it cannot be enabled meanwhile, and enabling a webhook marks it as unsettled, which resumes its deliveries.
 */
import { type Sql, transaction } from '../db/client.ts';
import type { Lease } from '../queue/leases.ts';
import { isOneOf, readyIn } from './queue-rows.ts';

/** The disabled ones of these webhooks, which cannot be enabled before the caller's transaction ends. */
export function lockDisabled(sql: Sql, webhookIds: ReturnType<Sql>) {
  return sql`
    select id from webhooks where id = any (array(${webhookIds})) and not enabled order by id for share`;
}

/** Ends the leases of deliveries, and holds those whose webhook is disabled or deleted. If it was enabled again, they stay ready. */
export async function holdDeliveries(sql: Sql, leases: readonly Lease[]): Promise<void> {
  await sql`
    with claimed as materialized (
      select delivery_queue.id, lease.token, webhook_id, webhooks.id is null as is_deleted
      from unnest(${leases.map(({ id }) => id)}::uuid[], ${leases.map(({ token }) => token)}::uuid[]) as lease (id, token)
      join delivery_queue on delivery_queue.id = any (${leases.map(({ id }) => id)}::uuid[])
        and delivery_queue.id = lease.id and delivery_queue.lease_token = lease.token
      left join webhooks on webhooks.id = webhook_id
    ), disabled as materialized (${lockDisabled(sql, sql`select webhook_id from claimed`)}),
    held as materialized (select id from claimed where is_deleted or webhook_id in (select id from disabled))
    update delivery_queue
    set lease_token = null, lease_until = null, ready = ready and held.id is null,
      next_attempt_at = case when held.id is null then next_attempt_at else 'infinity' end
    from claimed left join held using (id)
    where ${isOneOf(sql, sql`select id from claimed`)} and delivery_queue.id = claimed.id and lease_token = claimed.token`;
}

/** In one call of `settleWebhooks`. */
const maxWebhooks = 100;

/**
 * Holds or resumes a batch of the deliveries of each unsettled webhook. If there are more than `maxWebhooks`, the owners take turns.
 * Returns how many webhooks it worked on, and how many deliveries it resumed.
 */
export async function settleWebhooks(sql: Sql, batch = 1000): Promise<{ webhooks: number; resumed: number }> {
  const unsettled = await sql<{ id: string }[]>`
    select id from (
      select id, row_number() over (partition by owner_id order by unsettled_at) as turn from webhooks
      where unsettled_at <= now() and deleted_at is null
    ) waiting
    order by turn limit ${maxWebhooks}`;
  let resumed = 0;
  for (const { id } of unsettled) resumed += await settleWebhook(sql, id, batch);
  return { webhooks: unsettled.length, resumed };
}

/** Leaves a locked delivery for the next batch, because the webhook is locked here and others must not wait for it long. */
function settleWebhook(sql: Sql, id: string, batch: number): Promise<number> {
  return transaction(sql, async (sql) => {
    const [webhook] = await sql<{ enabled: boolean; ownerId: string }[]>`
      select enabled, owner_id as "ownerId" from webhooks
      where id = ${id} and unsettled_at is not null and deleted_at is null for update skip locked`;
    if (!webhook) return 0;
    // A range with one value, for the reason that `claimDeliveries` gives.
    const unsettled = webhook.enabled
      ? sql`
        select id from delivery_queue
        where webhook_id between ${id} and ${id} and next_attempt_at = 'infinity' order by webhook_id, id`
      : sql`
        select id from delivery_queue
        where ${readyIn(sql, sql`${webhook.ownerId}::uuid, ${id}::uuid`)} order by owner_id, webhook_id, id`;
    const changed = await sql`
      update delivery_queue
      set ready = ${webhook.enabled}, next_attempt_at = ${webhook.enabled ? sql`now()` : sql`'infinity'`}
      where id = any (array(${unsettled} limit ${batch} for update skip locked))`;
    await sql`
      update webhooks set unsettled_at = case when exists (${unsettled}) then clock_timestamp() end where id = ${id}`;
    return webhook.enabled ? changed.count : 0;
  });
}

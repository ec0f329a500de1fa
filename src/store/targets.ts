/**
 * Webhooks as the delivery loop sees them: where to POST, what to sign with, and how they have been doing. Not by owner: the
 * loop works for all of them, on ids that it claimed.
 */
import type { Sql } from '../db/client.ts';

export interface WebhookTarget {
  id: string;
  url: string;
  /** Whether its deliveries are to be tried now. */
  enabled: boolean;
  /** The current secret first, then those replaced less than a day ago, which sign along. */
  sealedSecrets: Buffer[];
  /** Nothing but failure of late; a success is worth noting. */
  failing: boolean;
}

export async function readTargets(sql: Sql, ids: readonly string[]): Promise<WebhookTarget[]> {
  const rows = await sql<(Omit<WebhookTarget, 'sealedSecrets'> & { secret: Buffer; retired: string[] })[]>`
    select id, url, enabled, first_failure_at is not null as failing, secret,
      array(
        select encode(secret, 'base64') from retired_webhook_secrets
        where owner_id = webhooks.owner_id and webhook_id = webhooks.id and retired_at > now() - interval '24 hours'
        order by retired_at desc
      ) as retired
    from webhooks where id = any (${ids}::uuid[]) and deleted_at is null`;
  return rows.map(({ secret, retired, ...rest }) => ({
    ...rest,
    sealedSecrets: [secret, ...retired.map((text) => Buffer.from(text, 'base64'))],
  }));
}

/** Counts failed tries, and disables webhooks with nothing but failure for 5 days and 10 tries. */
export async function noteFailures(sql: Sql, ids: readonly string[]): Promise<void> {
  await sql`
    with failed as (select id, count(*)::int as tries from unnest(${ids}::uuid[]) as id group by id order by id)
    update webhooks
    set first_failure_at = coalesce(first_failure_at, now()),
      failed_tries = failed_tries + failed.tries,
      enabled = enabled and not ${isFailing(sql)},
      disabled_reason = case when enabled and ${isFailing(sql)} then 'failing' else disabled_reason end,
      updated_at = case when enabled and ${isFailing(sql)} then now() else updated_at end
    from failed where webhooks.id = failed.id`;
}

function isFailing(sql: Sql) {
  return sql`coalesce(first_failure_at <= now() - interval '5 days' and failed_tries + failed.tries >= 10, false)`;
}

export async function noteRecoveries(sql: Sql, ids: readonly string[]): Promise<void> {
  await sql`
    update webhooks set first_failure_at = null, failed_tries = 0
    where id = any (${ids}::uuid[]) and first_failure_at is not null`;
}

/** The receiver answered 410. */
export async function disableGone(sql: Sql, gone: readonly { id: string; url: string }[]): Promise<void> {
  await sql`
    update webhooks set enabled = false, disabled_reason = 'gone', updated_at = now()
    from unnest(${gone.map(({ id }) => id)}::uuid[], ${gone.map(({ url }) => url)}::text[]) as gone (id, url)
    -- Not when it has moved on to another URL meanwhile.
    where webhooks.id = gone.id and webhooks.url = gone.url and enabled`;
}

/** Webhooks for the delivery loop: URL, secrets, and failures. No owner filter: the loop works for all users, on ids that it claimed. */
import type { Sql } from '../db/client.ts';

export interface WebhookTarget {
  id: string;
  url: string;
  enabled: boolean;
  /** The current secret, then the secrets replaced less than a day ago, which still sign too. */
  sealedSecrets: Buffer[];
  /** A try failed since the last success. */
  failing: boolean;
  /** When its owner last changed it, or it was disabled. */
  updatedAt: string;
}

export async function readTargets(sql: Sql, ids: readonly string[]): Promise<WebhookTarget[]> {
  const rows = await sql<(Omit<WebhookTarget, 'sealedSecrets'> & { secret: Buffer; retired: string[] })[]>`
    select id, url, enabled, first_failure_at is not null as failing, updated_at::text as "updatedAt", secret,
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

/** Counts failed tries, and disables a webhook after 5 days and 10 tries without a success. Returns the webhooks it disabled. */
export async function noteFailures(sql: Sql, ids: readonly string[]): Promise<string[]> {
  const noted = await sql<{ id: string; isDisabled: boolean }[]>`
    with failed as (select id, count(*)::int as tries from unnest(${ids}::uuid[]) as id group by id order by id)
    update webhooks
    set first_failure_at = coalesce(first_failure_at, now()),
      failed_tries = failed_tries + failed.tries,
      enabled = enabled and not ${mustBeDisabled(sql)},
      disabled_reason = case when enabled and ${mustBeDisabled(sql)} then 'failing' else disabled_reason end,
      updated_at = case when enabled and ${mustBeDisabled(sql)} then now() else updated_at end
    from failed where webhooks.id = failed.id
    returning webhooks.id, disabled_reason is not distinct from 'failing' and updated_at = now() as "isDisabled"`;
  return noted.filter(({ isDisabled }) => isDisabled).map(({ id }) => id);
}

function mustBeDisabled(sql: Sql) {
  return sql`coalesce(first_failure_at <= now() - interval '5 days' and failed_tries + failed.tries >= 10, false)`;
}

export async function noteRecoveries(sql: Sql, ids: readonly string[]): Promise<void> {
  await sql`
    update webhooks set first_failure_at = null, failed_tries = 0
    where id = any (${ids}::uuid[]) and first_failure_at is not null`;
}

/** Disables webhooks whose receiver answered 410 (Gone). Returns the webhooks it disabled. */
export async function disableGone(
  sql: Sql,
  gone: readonly Pick<WebhookTarget, 'id' | 'updatedAt'>[],
): Promise<string[]> {
  const disabled = await sql<{ id: string }[]>`
    update webhooks set enabled = false, disabled_reason = 'gone', updated_at = now()
    from unnest(${gone.map(({ id }) => id)}::uuid[], ${gone.map(({ updatedAt }) => updatedAt)}::text[]) as gone (id, updated_at)
    -- Since the try, its owner may have given it another URL, or enabled it again.
    where webhooks.id = gone.id and webhooks.updated_at = gone.updated_at::timestamptz and enabled
    returning webhooks.id`;
  return disabled.map(({ id }) => id);
}

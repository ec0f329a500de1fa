/** Webhooks: subscriptions to events, and the secrets that sign their deliveries. */
import { type Sql, transaction } from '../db/client.ts';
import { assignments } from '../db/sql.ts';
import { collectPage, type Listed, type Page, type PageRequest, pageOf, position } from './page.ts';
import { lockUser } from './users.ts';

export interface Webhook {
  id: string;
  ownerId: string;
  identityId: string | null;
  url: string;
  events: string[];
  enabled: boolean;
  description: string | null;
  disabledReason: 'gone' | 'failing' | null;
  createdAt: string;
  updatedAt: string;
}

function columns(sql: Sql) {
  return sql`
    id, owner_id as "ownerId", identity_id as "identityId", url, events, enabled, description,
    disabled_reason as "disabledReason",
    iso_time(created_at) as "createdAt",
    iso_time(updated_at) as "updatedAt"`;
}

export interface NewWebhook {
  id: string;
  url: string;
  events: string[];
  identityId: string | null;
  enabled: boolean;
  description: string | null;
  sealedSecret: Buffer;
}

/** More than the requests of one owner that can run at the same moment. */
const lockBelowLimit = 100;

/** Undefined if the owner has `maxWebhooks` already. */
export async function createWebhook(
  sql: Sql,
  ownerId: string,
  given: NewWebhook,
  maxWebhooks: number,
): Promise<Webhook | undefined> {
  const farFromLimit = await insertWebhook(sql, ownerId, given, maxWebhooks - lockBelowLimit);
  if (farFromLimit) return farFromLimit;
  // Statements that run at the same moment do not see each other's rows. A lock for every webhook would halve their rate,
  // because the commits of one owner would wait for each other.
  return transaction(sql, async (sql) => {
    await lockUser(sql, ownerId);
    return insertWebhook(sql, ownerId, given, maxWebhooks);
  });
}

async function insertWebhook(
  sql: Sql,
  ownerId: string,
  given: NewWebhook,
  maxWebhooks: number,
): Promise<Webhook | undefined> {
  const [row] = await sql<Webhook[]>`
    insert into webhooks (id, owner_id, identity_id, url, events, enabled, description, secret)
    select ${given.id}::uuid, ${ownerId}::uuid, ${given.identityId}::uuid, ${given.url}, ${given.events}::text[],
      ${given.enabled}::boolean, ${given.description}::text, ${given.sealedSecret}::bytea
    where (select count(*) from webhooks where owner_id = ${ownerId} and deleted_at is null) < ${maxWebhooks}
    returning ${columns(sql)}`;
  return row;
}

export async function listWebhooks(
  sql: Sql,
  ownerId: string,
  page: PageRequest,
): Promise<Page<Listed<Webhook>>> {
  return collectPage(
    page,
    (step) => sql<Listed<Webhook>[]>`
      select ${columns(sql)}, ${position(sql)}
      from webhooks where owner_id = ${ownerId} and deleted_at is null ${pageOf(sql, step)}`,
  );
}

export async function findWebhook(sql: Sql, ownerId: string, id: string): Promise<Webhook | undefined> {
  const [row] = await sql<Webhook[]>`
    select ${columns(sql)} from webhooks where owner_id = ${ownerId} and id = ${id} and deleted_at is null`;
  return row;
}

export interface WebhookChanges {
  url?: string;
  events?: string[];
  identity_id?: string | null;
  enabled?: boolean;
  description?: string | null;
}

/** Enabling a webhook clears the reason why it was disabled. */
export async function updateWebhook(
  sql: Sql,
  ownerId: string,
  id: string,
  changes: WebhookChanges,
): Promise<Webhook | undefined> {
  if (Object.keys(changes).length === 0) return findWebhook(sql, ownerId, id);
  const cleared =
    changes.enabled === true ? { disabled_reason: null, first_failure_at: null, failed_tries: 0 } : {};
  const [row] = await sql<Webhook[]>`
    update webhooks set ${assignments({ ...changes, ...cleared })}, updated_at = now()
    where owner_id = ${ownerId} and id = ${id} and deleted_at is null
    returning ${columns(sql)}`;
  return row;
}

/** Hides the webhook at once; the purge deletes its deliveries later. */
export async function deleteWebhook(sql: Sql, ownerId: string, id: string): Promise<boolean> {
  const deleted = await sql`
    update webhooks set deleted_at = now(), enabled = false
    where owner_id = ${ownerId} and id = ${id} and deleted_at is null`;
  return deleted.count > 0;
}

export async function findSealedSecret(sql: Sql, ownerId: string, id: string): Promise<Buffer | undefined> {
  const [row] = await sql<{ secret: Buffer }[]>`
    select secret from webhooks where owner_id = ${ownerId} and id = ${id} and deleted_at is null`;
  return row?.secret;
}

/** Every replaced secret signs too for a day, so their number is limited. */
export const maxRotationsPerDay = 10;

/**
 * Replaces the secret; the old one signs too for a day. Returns the seconds to wait if the limit is reached, or undefined if there
 * is no such webhook.
 */
export async function rotateSecret(
  sql: Sql,
  ownerId: string,
  id: string,
  sealedSecret: Buffer,
): Promise<{ waitSeconds: number | null } | undefined> {
  return transaction(sql, async (sql) => {
    const [current] = await sql<{ waitSeconds: number | null }[]>`
      with locked as materialized (
        select id from webhooks where owner_id = ${ownerId} and id = ${id} and deleted_at is null for update
      )
      select (
        select ceil(extract(epoch from retired_at + interval '24 hours' - now()))::int
        from retired_webhook_secrets
        where owner_id = ${ownerId} and webhook_id = locked.id and retired_at > now() - interval '24 hours'
        order by retired_at desc offset ${maxRotationsPerDay - 1} limit 1
      ) as "waitSeconds"
      from locked`;
    if (!current || current.waitSeconds !== null) return current;
    await sql`
      with retired as (
        insert into retired_webhook_secrets (webhook_id, owner_id, secret)
        select id, owner_id, secret from webhooks where owner_id = ${ownerId} and id = ${id}
      )
      update webhooks set secret = ${sealedSecret} where owner_id = ${ownerId} and id = ${id}`;
    return current;
  });
}

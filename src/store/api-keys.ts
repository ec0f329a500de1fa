/** API keys. A key is shown once, when it is created; only its hash, first 8 and last 4 characters are stored. */
import { only, type Sql } from '../db/client.ts';
import { describeApiKey, hashApiKey, makeApiKey } from '../lib/api-key.ts';
import { newId } from '../lib/ids.ts';
import { collectPage, type Listed, type Page, type PageRequest, pageOf, position } from './page.ts';

/** What a key may do: everything, send mail, or read. `allowedScopes` in http/access.ts says which routes that is. */
export const keyScopes = ['full', 'send', 'read'] as const;
export type KeyScope = (typeof keyScopes)[number];

export interface ApiKey {
  id: string;
  name: string | null;
  scope: KeyScope;
  prefix: string;
  suffix: string;
  createdAt: string;
  expiresAt: string | null;
  lastUsedAt: string | null;
}

function columns(sql: Sql) {
  return sql`
    id, name, scope, prefix, suffix,
    iso_time(created_at) as "createdAt",
    iso_time(expires_at) as "expiresAt",
    iso_time(last_used_at) as "lastUsedAt"`;
}

export async function createApiKey(
  sql: Sql,
  ownerId: string,
  given: { name?: string | null; scope?: KeyScope; expiresAt?: string | null } = {},
): Promise<ApiKey & { apiKey: string }> {
  const apiKey = makeApiKey();
  const { prefix, suffix } = describeApiKey(apiKey);
  const row = only(
    await sql<ApiKey[]>`
      insert into api_keys (id, owner_id, name, scope, key_hash, prefix, suffix, expires_at)
      values (${newId()}, ${ownerId}, ${given.name ?? null}, ${given.scope ?? 'full'}, ${hashApiKey(apiKey)}, ${prefix}, ${suffix},
        ${given.expiresAt ?? null}::timestamptz)
      returning ${columns(sql)}`,
  );
  return { ...row, apiKey };
}

/** Keys that have not been revoked, newest first. */
export async function listApiKeys(
  sql: Sql,
  ownerId: string,
  page: PageRequest,
): Promise<Page<Listed<ApiKey>>> {
  return collectPage(
    page,
    (step) => sql<Listed<ApiKey>[]>`
      select ${columns(sql)}, ${position(sql)}
      from api_keys where owner_id = ${ownerId} and revoked_at is null ${pageOf(sql, step)}`,
  );
}

export async function findApiKey(sql: Sql, ownerId: string, id: string): Promise<ApiKey | undefined> {
  const [row] = await sql<ApiKey[]>`
    select ${columns(sql)} from api_keys where owner_id = ${ownerId} and id = ${id} and revoked_at is null`;
  return row;
}

/** False if there is no such key, or if it was already revoked. */
export async function revokeApiKey(sql: Sql, ownerId: string, id: string): Promise<boolean> {
  const revoked = await sql`
    update api_keys set revoked_at = now() where owner_id = ${ownerId} and id = ${id} and revoked_at is null`;
  return revoked.count > 0;
}

/** Those of these keys that may still be used. */
export async function listActiveKeys(sql: Sql, ids: readonly string[]): Promise<Set<string>> {
  const rows = await sql<{ id: string }[]>`
    select id from api_keys
    where id = any (${ids}::uuid[]) and revoked_at is null and (expires_at is null or expires_at > now())`;
  return new Set(rows.map(({ id }) => id));
}

export interface ActiveKey {
  id: string;
  ownerId: string;
  scope: KeyScope;
  /** Seconds; null if the key does not expire. */
  expiresIn: number | null;
  /** `last_used_at` is a minute old or more, so a write is worth it. */
  stale: boolean;
}

/** Runs for every request whose key is not cached. Not by owner: it finds the owner. */
export async function findActiveKey(sql: Sql, keyHash: Buffer): Promise<ActiveKey | undefined> {
  const [row] = await sql<ActiveKey[]>`
    select id, owner_id as "ownerId", scope, extract(epoch from expires_at - now())::float8 as "expiresIn",
      coalesce(last_used_at < now() - interval '1 minute', true) as stale
    from api_keys
    where key_hash = ${keyHash} and revoked_at is null and (expires_at is null or expires_at > now())`;
  return row;
}

export async function touchApiKey(sql: Sql, ownerId: string, id: string): Promise<void> {
  await sql`
    update api_keys set last_used_at = now()
    where owner_id = ${ownerId} and id = ${id}
      and coalesce(last_used_at < now() - interval '1 minute', true)`;
}

/** For the operator, who knows only the id of the key. */
export async function findKeyOwner(sql: Sql, id: string): Promise<string | undefined> {
  const [row] = await sql<{ ownerId: string }[]>`select owner_id as "ownerId" from api_keys where id = ${id}`;
  return row?.ownerId;
}

/** For the operator: revoked keys too. */
export async function listAllApiKeys(
  sql: Sql,
  ownerId: string,
): Promise<(ApiKey & { revokedAt: string | null })[]> {
  return sql<(ApiKey & { revokedAt: string | null })[]>`
    select ${columns(sql)},
      iso_time(revoked_at) as "revokedAt"
    from api_keys where owner_id = ${ownerId} order by created_at desc, id desc`;
}

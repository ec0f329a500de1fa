/**
 * Sessions: browsers that signed in with an API key or with a sign-in link. A session ends 12 hours after its last use, 7 days after
 * the sign-in, and when its key is revoked or expires. A link signs in once, within 10 minutes.
 */
import { only, type Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { hashToken, makeToken } from '../lib/tokens.ts';
import type { KeyScope } from './api-keys.ts';
import { collectPage, type Listed, type Page, type PageRequest, pageOf, position } from './page.ts';

export interface Session {
  id: string;
  scope: KeyScope;
  apiKeyId: string | null;
  userAgent: string | null;
  createdAt: string;
  lastUsedAt: string;
  expiresAt: string;
}

/** With one more, the oldest session of the owner ends. */
const maxSessions = 100;
const maxUserAgent = 200;

/** A FROM item: the sessions that have not ended. */
function activeSessions(sql: Sql) {
  return sql`(
    select * from (
      select sessions.*, coalesce(api_keys.scope, 'full') as scope,
        least(sessions.created_at + interval '7 days', sessions.last_used_at + interval '12 hours', api_keys.expires_at)
          as expires_at
      from sessions left join api_keys on api_keys.id = sessions.key_id
      where api_keys.revoked_at is null
    ) started where expires_at > now()
  ) active`;
}

function columns(sql: Sql) {
  return sql`
    id, scope, key_id as "apiKeyId", user_agent as "userAgent",
    iso_time(created_at) as "createdAt",
    iso_time(last_used_at) as "lastUsedAt",
    iso_time(expires_at) as "expiresAt"`;
}

/** The token is for the cookie of the browser, and stored nowhere. */
export async function createSession(
  sql: Sql,
  ownerId: string,
  given: { keyId: string | null; userAgent: string | null },
): Promise<{ token: string; session: Session }> {
  const id = newId();
  const token = makeToken();
  await sql`
    insert into sessions (id, owner_id, key_id, token_hash, user_agent)
    values (${id}, ${ownerId}, ${given.keyId}, ${hashToken(token)}, ${given.userAgent?.slice(0, maxUserAgent) ?? null})`;
  await sql`
    delete from sessions where owner_id = ${ownerId} and id not in (
      select id from ${activeSessions(sql)} where owner_id = ${ownerId} order by created_at desc, id desc limit ${maxSessions})`;
  const session = only(
    await sql<Session[]>`select ${columns(sql)} from ${activeSessions(sql)} where id = ${id}`,
  );
  return { token, session };
}

export async function listSessions(
  sql: Sql,
  ownerId: string,
  page: PageRequest,
): Promise<Page<Listed<Session>>> {
  return collectPage(
    page,
    (step) => sql<Listed<Session>[]>`
      select ${columns(sql)}, ${position(sql)}
      from ${activeSessions(sql)} where owner_id = ${ownerId} ${pageOf(sql, step)}`,
  );
}

export async function findSession(sql: Sql, ownerId: string, id: string): Promise<Session | undefined> {
  const [row] = await sql<Session[]>`
    select ${columns(sql)} from ${activeSessions(sql)} where owner_id = ${ownerId} and id = ${id}`;
  return row;
}

/** False if there is no such session. */
export async function endSession(sql: Sql, ownerId: string, id: string): Promise<boolean> {
  const ended = await sql`delete from sessions where owner_id = ${ownerId} and id = ${id}`;
  return ended.count > 0;
}

/** Returns the id of the session. Not by owner: whoever has the token may end its session. */
export async function endSessionOf(sql: Sql, token: string): Promise<string | undefined> {
  const [ended] = await sql<{ id: string }[]>`
    delete from sessions where token_hash = ${hashToken(token)} returning id`;
  return ended?.id;
}

interface ActiveSession {
  id: string;
  ownerId: string;
  /** Null for a sign-in link. */
  keyId: string | null;
  scope: KeyScope;
  /** Seconds. */
  expiresIn: number;
  /** `last_used_at` is a minute old or more, so a write is worth it. */
  stale: boolean;
}

/** Runs for every request whose session is not cached. Not by owner: it finds the owner. */
export async function findActiveSession(sql: Sql, token: string): Promise<ActiveSession | undefined> {
  const [row] = await sql<ActiveSession[]>`
    select id, owner_id as "ownerId", key_id as "keyId", scope, extract(epoch from expires_at - now())::float8 as "expiresIn",
      last_used_at < now() - interval '1 minute' as stale
    from ${activeSessions(sql)} where token_hash = ${hashToken(token)}`;
  return row;
}

export async function touchSession(sql: Sql, ownerId: string, id: string): Promise<void> {
  await sql`
    update sessions set last_used_at = now()
    where owner_id = ${ownerId} and id = ${id} and last_used_at < now() - interval '1 minute'`;
}

/** Those of these sessions that have not ended. */
export async function listActiveSessions(sql: Sql, ids: readonly string[]): Promise<Set<string>> {
  const rows = await sql<{ id: string }[]>`
    select id from ${activeSessions(sql)} where id = any (${ids}::uuid[])`;
  return new Set(rows.map(({ id }) => id));
}

export async function createSignInLink(
  sql: Sql,
  ownerId: string,
): Promise<{ token: string; expiresAt: string }> {
  const token = makeToken();
  await sql`delete from sign_in_links where expires_at <= now()`;
  const { expiresAt } = only(
    await sql<{ expiresAt: string }[]>`
      insert into sign_in_links (token_hash, owner_id, expires_at)
      values (${hashToken(token)}, ${ownerId}, now() + interval '10 minutes')
      returning iso_time(expires_at) as "expiresAt"`,
  );
  return { token, expiresAt };
}

/** The owner of the link, which cannot be used again; undefined for a link that is unknown, used or too old. */
export async function useSignInLink(sql: Sql, token: string): Promise<string | undefined> {
  const [link] = await sql<{ ownerId: string }[]>`
    delete from sign_in_links where token_hash = ${hashToken(token)} and expires_at > now()
    returning owner_id as "ownerId"`;
  return link?.ownerId;
}

/**
 * Which process has the connection to an identity's mailbox, and when the next one may be opened. Guarantees: one process has the
 * lease of a connection; when it dies, another can claim the connection after `leaseSeconds`; after wrong credentials nobody calls
 * the server again until the account is changed or verified.
 */
import { only, type Sql, transaction } from '../db/client.ts';
import type { Fragment } from '../db/sql.ts';
import { hashId } from '../lib/ids.ts';
import type { MailServer, ServerError } from '../net/mail-server.ts';

const leaseSeconds = 25;
/** After so many refused logins in a row. A server may lock the account of somebody who goes on. */
const maxRefusedLogins = 3;

export interface ClaimedConnection {
  identityId: string;
  /** The token of the lease. */
  token: string;
  ownerId: string;
  accountId: string;
  /** Of the server, as it is claimed for. */
  version: number;
  failures: number;
  refusedLogins: number;
  requests: number;
  scan: number;
}

/** Joins the server to `identities`. */
function imapServer(sql: Sql) {
  return sql`
    mail_servers server on server.owner_id = identities.owner_id and server.account_id = identities.smtp_account_id
      and server.side = 'imap'`;
}

/**
 * The server of an identity, as one row or none. `offset 0` keeps the two lookups by primary key apart: otherwise a plan that was made
 * while there were few identities may read all identities, or all of the owner.
 */
export function serverOf(sql: Sql, identityId: Fragment) {
  return sql`(
    select server.account_id, server.version
    from (select owner_id, smtp_account_id from identities where identities.id = ${identityId} offset 0) identity
    cross join lateral (
      select account_id, version from mail_servers
      where account_id = identity.smtp_account_id and side = 'imap' and owner_id = identity.owner_id offset 0
    ) server
  )`;
}

/**
 * Schedules a connection for now, whatever failed before. Call it in the transaction that gives an identity its account, or that
 * changes or verifies the account. Does nothing for an account without IMAP, and for a domain.
 */
export async function connectNow(
  sql: Sql,
  ownerId: string,
  of: { accountId: string } | { identityId: string },
): Promise<void> {
  const isWanted =
    'accountId' in of
      ? sql`identities.smtp_account_id = ${of.accountId}`
      : sql`identities.id = ${of.identityId}`;
  await sql`
    insert into imap_connections (identity_id, owner_id)
    select identities.id, identities.owner_id from identities join ${imapServer(sql)}
    where identities.kind = 'email' and identities.owner_id = ${ownerId} and ${isWanted}
    on conflict (identity_id) do update set next_try_at = now()`;
}

/** How many connections one claim makes ready at most. */
const promoteBatch = 1000;
const firstUuid = '00000000-0000-0000-0000-000000000000';

/**
 * For all owners, who take turns: an owner with thousands of mailboxes does not delay the first mailbox of another. `afterOwner`: the
 * owner of the connection that was claimed last. The result is in the order of the turns. Each claim needs a new token: a
 * process that lost a lease must not release or renew a later lease of the same connection.
 */
export async function claimConnections(
  sql: Sql,
  token: string,
  limit: number,
  afterOwner = firstUuid,
): Promise<ClaimedConnection[]> {
  if (limit <= 0) return [];
  await promoteConnections(sql);
  /** Owners with ready connections. Hops along the index: an owner costs the same however many of its connections are ready. */
  const walk = (name: Fragment, start: Fragment, end: Fragment) => {
    const first = sql`order by owner_id, next_try_at limit 1`;
    return sql`
      (select 1 as place, owner_id from imap_connections where ready and ${start} and ${end} ${first})
      union all
      select place + 1, hop.owner_id
      from ${name} last cross join lateral (
        select owner_id from imap_connections where ready and owner_id > last.owner_id and ${end} ${first}
      ) hop
      where place < ${limit}`;
  };
  const isAfter = sql`owner_id > ${afterOwner}`;
  const isBefore = sql`owner_id <= ${afterOwner}`;
  return sql<ClaimedConnection[]>`
    with recursive owners_after as (${walk(sql`owners_after`, isAfter, sql`true`)}),
    owners_before as (${walk(sql`owners_before`, sql`true`, isBefore)}),
    owners as materialized (
      select place, owner_id from owners_after union all select place + ${limit}, owner_id from owners_before
    ), due as materialized (
      select owners.place, waiting.*
      from owners cross join lateral (
        select identity_id, owner_id, next_try_at, row_number() over (order by owner_id, next_try_at) as turn
        from imap_connections
        -- Rows are compared, so that this is a range of the index.
        where ready and (owner_id, next_try_at) >= (owners.owner_id, timestamptz '-infinity')
          and (owner_id, next_try_at) <= (owners.owner_id, timestamptz 'infinity')
        order by owner_id, next_try_at limit ${limit}
      ) waiting
      order by turn, place limit ${limit}
    ), next as materialized (
      select due.*, server.account_id, server.version,
        (connection.account_id, connection.version) is distinct from (server.account_id, server.version) as is_changed
      from due
      join imap_connections connection on connection.identity_id = due.identity_id
      left join lateral ${serverOf(sql, sql`due.identity_id`)} server on true
      -- Checked again on the locked row: another process may have claimed it, or its account may have changed, since.
      where connection.ready and connection.next_try_at = due.next_try_at
        and connection.identity_id = any (array(select identity_id from due))
      for update of connection skip locked
    ), claimed as (
      -- Without a server there is nothing to do until the identity gets one (\`connectNow\`).
      update imap_connections connection
      set ready = false, next_try_at = case when next.version is null then timestamptz 'infinity' else '-infinity' end,
        lease_token = case when next.version is not null then ${token}::uuid end,
        lease_until = case when next.version is not null then now() + ${leaseSeconds} * interval '1 second' end,
        account_id = next.account_id, version = next.version,
        failures = case when is_changed then 0 else failures end,
        refused_logins = case when is_changed or refused_logins >= ${maxRefusedLogins} then 0 else refused_logins end
      from next
      -- Also as a list: a plan from before there were many rows then still uses the primary key.
      where connection.identity_id = next.identity_id and connection.identity_id = any (array(select identity_id from next))
      returning connection.*, turn, place
    )
    select identity_id as "identityId", lease_token as token, owner_id as "ownerId", account_id as "accountId", version, failures,
      refused_logins as "refusedLogins", requests, scan
    from claimed where version is not null order by turn, place`;
}

/** When a scheduled connection is due. The same expression as in the index. */
function dueAt(sql: Sql) {
  return sql`greatest(next_try_at, lease_until)`;
}

/** Queries for `findDueWork`: their first rows say whether there are connections to claim. */
export function dueConnections(sql: Sql) {
  return [
    sql`select true from imap_connections where ready order by owner_id, next_try_at`,
    sql`select ${dueAt(sql)} <= now() from imap_connections where not ready order by ${dueAt(sql)}`,
  ] as const;
}

/**
 * Makes connections ready that are due: the time of the next try has come, or the lease of a process that died has expired. Those that
 * waited longest, and as many of those that became due last: thousands of one owner must not keep another from becoming ready.
 */
async function promoteConnections(sql: Sql): Promise<void> {
  const due = (order: Fragment) => sql`
    array(
      select identity_id from imap_connections where not ready and ${dueAt(sql)} <= now()
      order by ${dueAt(sql)} ${order} limit ${promoteBatch / 2}
      for update skip locked
    )`;
  await sql`
    update imap_connections set ready = true, lease_token = null, lease_until = null
    where identity_id = any (${due(sql`asc`)} || ${due(sql`desc`)})`;
}

export interface LeasedConnection {
  identityId: string;
  token: string;
  requests: number;
  scan: number;
  /** Messages wait to be copied to the Sent folder. */
  hasCopies: boolean;
}

/** The connections that this process may keep: the identity and the account are as they were when it claimed them. */
export async function listLeased(sql: Sql, tokens: readonly string[]): Promise<LeasedConnection[]> {
  return sql<LeasedConnection[]>`
    select identity_id as "identityId", lease_token as token, requests, scan, exists (
        select from outgoing
        where outgoing.owner_id = connection.owner_id and copy_account_id = connection.account_id and is_copy_due
      ) as "hasCopies"
    from imap_connections connection cross join lateral ${serverOf(sql, sql`connection.identity_id`)} server
    where lease_token = any (${tokens}::uuid[]) and connection.account_id = server.account_id and connection.version = server.version`;
}

export type ConnectionLease = Pick<ClaimedConnection, 'identityId' | 'token'>;

/** Only of connections that are open: a lease that could not be given back expires. */
export async function renewLeases(sql: Sql, leases: readonly ConnectionLease[]): Promise<void> {
  await sql`
    update imap_connections set lease_until = now() + ${leaseSeconds} * interval '1 second'
    from unnest(${leases.map(({ identityId }) => identityId)}::uuid[], ${leases.map(({ token }) => token)}::uuid[])
      as lease (identity_id, token)
    where imap_connections.identity_id = lease.identity_id and lease_token = lease.token`;
}

/** The mailbox was read. With `isLasting`, earlier failures no longer count. */
export async function noteConnected(
  sql: Sql,
  { identityId, token }: ConnectionLease,
  isLasting: boolean,
): Promise<void> {
  await sql`
    update imap_connections set failures = case when ${isLasting} then 0 else failures end, refused_logins = 0, error = null
    where identity_id = ${identityId} and lease_token = ${token}
      and (failures > 0 and ${isLasting} or refused_logins > 0 or error is not null)`;
}

export interface ConnectionFailure {
  /** Null: a failure of our own, which is not shown. */
  error: ServerError | null;
  isLoginRefused: boolean;
  retrySeconds: number;
}

/** Gives the lease back. Without a failure anybody may claim the connection at once. */
export async function releaseConnection(
  sql: Sql,
  { identityId, token }: ConnectionLease,
  failure: ConnectionFailure | null,
): Promise<void> {
  const refused = sql`refused_logins + ${failure?.isLoginRefused ? 1 : 0}`;
  await sql`
    update imap_connections
    set lease_token = null, lease_until = null, failures = failures + ${failure ? 1 : 0}, refused_logins = ${refused},
      error = ${failure?.error ? JSON.stringify(failure.error) : null}::text::json,
      next_try_at = case
        -- The account was changed or verified since it was claimed.
        when next_try_at > '-infinity' then now()
        when ${refused} >= ${maxRefusedLogins} then 'infinity'
        else now() + ${failure?.retrySeconds ?? 0} * interval '1 second'
      end
    where identity_id = ${identityId} and lease_token = ${token}`;
}

/** At the stop of a process. */
export async function releaseAll(sql: Sql, tokens: readonly string[]): Promise<void> {
  await sql`
    update imap_connections set lease_token = null, lease_until = null, next_try_at = now()
    where lease_token = any (${tokens}::uuid[])`;
}

export async function countFailing(sql: Sql): Promise<number> {
  const { failing } = only(
    await sql<
      { failing: number }[]
    >`select count(*)::int as failing from imap_connections where error is not null`,
  );
  return failing;
}

export interface SyncRequest {
  /** Also older mail, back to here. */
  since: Date | null;
  /** Whether older mail makes events. */
  events: boolean;
}

type ServerName = Pick<MailServer, 'host' | 'port' | 'username'>;

/** Positions and dates of a connection belong to the server with this key. */
export function serverKeyOf({ host, port, username }: ServerName): string {
  return hashId('server', host, String(port), username);
}

/**
 * Asks for a check now. False: the identity has no mailbox elsewhere. If the account has moved to another server, and no login there
 * has succeeded yet, `since` is kept for the new server: if the account moves back, the old server is read as before.
 */
export function requestSync(
  sql: Sql,
  ownerId: string,
  identityId: string,
  { since, events }: SyncRequest,
): Promise<boolean> {
  return transaction(sql, async (sql) => {
    // Locked first: a change of the account locks the row too, so the server that is read next is the one of the request.
    const [connection] = await sql<{ serverKey: string | null }[]>`
      select server_key as "serverKey" from imap_connections
      where owner_id = ${ownerId} and identity_id = ${identityId} for update`;
    const [server] = await sql<ServerName[]>`
      select host, port, username from identities join ${imapServer(sql)}
      where identities.owner_id = ${ownerId} and identities.id = ${identityId}`;
    if (!connection || !server) return false;
    const key = serverKeyOf(server);
    const hasMoved = connection.serverKey !== null && connection.serverKey !== key;
    const eventsSince = events ? since : null;
    // `least` ignores null.
    const dates = hasMoved
      ? sql`asked_key = ${key},
          asked_since = least(case when asked_key = ${key} then asked_since end, ${since}::timestamptz),
          asked_events_since = least(case when asked_key = ${key} then asked_events_since end, ${eventsSince}::timestamptz)`
      : sql`import_since = least(import_since, ${since}::timestamptz), events_since = least(events_since, ${eventsSince}::timestamptz)`;
    await sql`
      update imap_connections
      set requests = requests + 1, scan = scan + ${since ? 1 : 0},
        next_try_at = case when next_try_at < 'infinity' then least(next_try_at, now()) else next_try_at end,
        ${dates}
      where owner_id = ${ownerId} and identity_id = ${identityId}`;
    return true;
  });
}

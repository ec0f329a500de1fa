/**
 * Which process has the connection to an identity's mailbox, and when the next one may be opened. Guarantees: one process has the
 * lease of a connection; when it dies, another can claim the connection after `leaseSeconds`; after wrong credentials nobody calls
 * the server again until the account is changed or verified.
 */
import { only, type Sql } from '../db/client.ts';
import type { ServerError } from '../net/mail-server.ts';
import { hasCopies } from './sent-copies.ts';

const leaseSeconds = 25;
/** After so many refused logins in a row. A server may lock the account of somebody who goes on. */
const maxRefusedLogins = 3;

export interface ClaimedConnection {
  identityId: string;
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

/** Creates the rows of identities that got a mailbox elsewhere: of all owners, or of one identity. */
export async function addConnections(sql: Sql, of?: { ownerId: string; identityId: string }): Promise<void> {
  const isWanted = of
    ? sql`and identities.owner_id = ${of.ownerId} and identities.id = ${of.identityId}`
    : sql``;
  await sql`
    insert into imap_connections (identity_id, owner_id)
    select identities.id, identities.owner_id from identities join ${imapServer(sql)}
    where identities.kind = 'email' and identities.smtp_account_id is not null ${isWanted}
      and not exists (select from imap_connections where imap_connections.identity_id = identities.id)
    for key share of identities skip locked
    on conflict do nothing`;
}

/** For all owners, who take turns: one with thousands of mailboxes does not keep another from its first. */
export async function claimConnections(sql: Sql, token: string, limit: number): Promise<ClaimedConnection[]> {
  return sql<ClaimedConnection[]>`
    with due as materialized (
      select connection.identity_id, identities.smtp_account_id, server.version, connection.next_try_at,
        row_number() over (partition by connection.owner_id order by connection.next_try_at) as turn,
        (connection.account_id, connection.version) is distinct from (identities.smtp_account_id, server.version) as is_changed
      from imap_connections connection
      join identities on identities.owner_id = connection.owner_id and identities.id = connection.identity_id
      join ${imapServer(sql)}
      where (connection.lease_until is null or connection.lease_until < now()) and (
        connection.next_try_at <= now()
        or (connection.account_id, connection.version) is distinct from (identities.smtp_account_id, server.version)
        -- Each failure that is shown also makes the state of the server \`failing\`: somebody has verified the account since.
        or connection.error is not null and server.state = 'ok'
      )
    ), next as (
      select due.* from (select * from due order by turn, next_try_at limit ${limit}) due
      join imap_connections connection on connection.identity_id = due.identity_id
      -- Checked again on the locked row: another process may have claimed it, and given it back, since.
      where (connection.lease_until is null or connection.lease_until < now()) and connection.next_try_at = due.next_try_at
      for update of connection skip locked
    )
    update imap_connections connection
    set lease_token = ${token}, lease_until = now() + ${leaseSeconds} * interval '1 second',
      account_id = next.smtp_account_id, version = next.version,
      failures = case when is_changed then 0 else failures end,
      refused_logins = case when is_changed or refused_logins >= ${maxRefusedLogins} then 0 else refused_logins end
    from next where connection.identity_id = next.identity_id
    returning connection.identity_id as "identityId", connection.owner_id as "ownerId", connection.account_id as "accountId",
      connection.version, connection.failures, connection.refused_logins as "refusedLogins", connection.requests, connection.scan`;
}

export interface LeasedConnection {
  identityId: string;
  requests: number;
  scan: number;
  /** Messages wait to be copied to the Sent folder. */
  hasCopies: boolean;
}

/** The connections that this process may keep: the identity and the account are as they were when it claimed them. */
export async function listLeased(sql: Sql, token: string): Promise<LeasedConnection[]> {
  return sql<LeasedConnection[]>`
    select identity_id as "identityId", requests, scan, ${hasCopies(sql)} as "hasCopies"
    from imap_connections connection
    join identities on identities.owner_id = connection.owner_id and identities.id = connection.identity_id
    join ${imapServer(sql)}
    where lease_token = ${token} and connection.account_id = identities.smtp_account_id and connection.version = server.version`;
}

/** Only of connections that are open: a lease that could not be given back expires. */
export async function renewLeases(sql: Sql, token: string, identityIds: readonly string[]): Promise<void> {
  await sql`
    update imap_connections set lease_until = now() + ${leaseSeconds} * interval '1 second'
    where lease_token = ${token} and identity_id = any (${identityIds}::uuid[])`;
}

/** The mailbox was read: earlier failures no longer count. */
export async function noteConnected(sql: Sql, token: string, identityId: string): Promise<void> {
  await sql`
    update imap_connections set failures = 0, refused_logins = 0, error = null
    where identity_id = ${identityId} and lease_token = ${token} and (failures > 0 or refused_logins > 0 or error is not null)`;
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
  token: string,
  identityId: string,
  failure: ConnectionFailure | null,
): Promise<void> {
  const refused = sql`refused_logins + ${failure?.isLoginRefused ? 1 : 0}`;
  await sql`
    update imap_connections
    set lease_token = null, lease_until = null, failures = failures + ${failure ? 1 : 0}, refused_logins = ${refused},
      error = ${failure?.error ? JSON.stringify(failure.error) : null}::text::json,
      next_try_at = case
        when ${refused} >= ${maxRefusedLogins} then 'infinity'
        else now() + ${failure?.retrySeconds ?? 0} * interval '1 second'
      end
    where identity_id = ${identityId} and lease_token = ${token}`;
}

/** At the stop of a process. */
export async function releaseAll(sql: Sql, token: string): Promise<void> {
  await sql`
    update imap_connections set lease_token = null, lease_until = null, next_try_at = now() where lease_token = ${token}`;
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

/** Asks for a check now. False: the identity has no mailbox elsewhere. */
export async function requestSync(
  sql: Sql,
  ownerId: string,
  identityId: string,
  { since, events }: SyncRequest,
): Promise<boolean> {
  await addConnections(sql, { ownerId, identityId });
  const noted = await sql`
    update imap_connections connection
    set requests = requests + 1, scan = scan + ${since ? 1 : 0},
      next_try_at = case when next_try_at < 'infinity' then least(next_try_at, now()) else next_try_at end,
      import_since = case when ${since}::timestamptz is null then import_since else least(import_since, ${since}) end,
      events_since = case when ${since}::timestamptz is null or not ${events} then events_since else least(events_since, ${since}) end
    from identities join ${imapServer(sql)}
    where connection.owner_id = ${ownerId} and connection.identity_id = ${identityId}
      and identities.owner_id = ${ownerId} and identities.id = ${identityId}`;
  return noted.count > 0;
}

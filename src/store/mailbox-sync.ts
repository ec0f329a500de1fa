/**
 * How far each mailbox that another server holds has been read. Guarantees: a position moves only from the value it was read at, in
 * the transaction that records the message; a message with a known fingerprint is never recorded again.
 */
import { type Sql, transaction } from '../db/client.ts';
import { type Fragment, list } from '../db/sql.ts';
import type { ServerError } from '../net/mail-server.ts';
import { type MailboxKind, mailboxKinds } from './identities.ts';
import { type ConnectionLease, serverOf } from './imap-connections.ts';

/** The folders that are read. Trash is listed only. */
const readKinds = ['inbox', 'sent', 'spam'] as const satisfies readonly MailboxKind[];
export type ReadKind = (typeof readKinds)[number];

export interface Position {
  mailboxId: string;
  kind: ReadKind;
  path: string;
  /** Null: never read. */
  uidValidity: number | null;
  nextUid: number;
  /** Older mail that is still to be read: from `uid` up to `end`, exclusive. */
  older: { uid: number; end: number } | null;
  scan: number;
}

/** What is common to all mailboxes of an identity. */
export interface SyncRules {
  /** Older mail is not imported. */
  importSince: Date;
  /** Older mail makes no event. */
  eventsSince: Date;
  scan: number;
}

export interface FoundFolder {
  kind: MailboxKind;
  path: string;
}

export interface SyncedIdentity {
  identityId: string;
  ownerId: string;
}

/**
 * First in a transaction that locks several rows of an identity: a deletion of the identity locks them in another order. Rejects with
 * `MailboxGone` if the identity was deleted.
 */
export async function keepIdentity(sql: Sql, { identityId, ownerId }: SyncedIdentity): Promise<void> {
  const { count } = await sql`
    select from identities where owner_id = ${ownerId} and id = ${identityId} for key share`;
  if (count === 0) throw new MailboxGone();
}

/**
 * Notes which folders the server has, after a login. If it is another server than before, reading starts anew: mail that is there at
 * first is not imported. Rejects with `PositionLost` if the lease was lost, or if the account was changed since the claim.
 */
export function noteFolders(
  sql: Sql,
  { identityId, ownerId, token }: SyncedIdentity & ConnectionLease,
  serverKey: string,
  folders: readonly FoundFolder[],
): Promise<{ rules: SyncRules; positions: Position[] }> {
  return transaction(sql, async (sql) => {
    await keepIdentity(sql, { identityId, ownerId });
    const [before] = await sql<{ serverKey: string | null; hasRequest: boolean }[]>`
      select server_key as "serverKey", asked_key is not distinct from ${serverKey} and asked_since is not null as "hasRequest"
      from imap_connections
      where identity_id = ${identityId} and lease_token = ${token} for update`;
    if (!before) throw new PositionLost();
    const isOther = before.serverKey !== null && before.serverKey !== serverKey;
    // To the second, as INTERNALDATE.
    const start = sql`date_trunc('second', now())`;
    const asked = (column: Fragment) =>
      sql`least(${start}, case when asked_key = ${serverKey} then ${column} end)`;
    const [rules] = await sql<SyncRules[]>`
      update imap_connections connection
      set server_key = ${serverKey},
        import_since = ${isOther ? asked(sql`asked_since`) : sql`coalesce(import_since, ${start})`},
        events_since = ${isOther ? asked(sql`asked_events_since`) : sql`coalesce(events_since, ${start})`},
        asked_key = null, asked_since = null, asked_events_since = null
      from ${serverOf(sql, sql`${identityId}`)} server
      where identity_id = ${identityId} and connection.account_id = server.account_id and connection.version = server.version
      returning import_since as "importSince", events_since as "eventsSince", scan`;
    if (!rules) throw new PositionLost();
    const ofIdentity = sql`(select id from mailboxes where owner_id = ${ownerId} and identity_id = ${identityId})`;
    if (isOther) await sql`delete from mailbox_sync where mailbox_id in ${ofIdentity}`;
    const found = list(folders.map(({ kind, path }) => sql`(${kind}::text, ${path}::text)`));
    // A folder that was renamed has another UIDVALIDITY, or is read from where it was.
    await sql`
      insert into mailbox_sync (mailbox_id, owner_id, path, scan)
      select mailboxes.id, mailboxes.owner_id, found.path, ${isOther && !before.hasRequest ? rules.scan : 0}
      from mailboxes left join (values ${found}) as found (kind, path) on found.kind = mailboxes.kind
      where mailboxes.owner_id = ${ownerId} and mailboxes.identity_id = ${identityId}
      on conflict (mailbox_id) do update set path = excluded.path`;
    return { rules, positions: await readPositions(sql, { identityId, ownerId }) };
  });
}

async function readPositions(sql: Sql, { identityId, ownerId }: SyncedIdentity): Promise<Position[]> {
  const rows = await sql<
    (Omit<Position, 'older' | 'nextUid'> & {
      nextUid: number | null;
      olderUid: number | null;
      olderEnd: number | null;
    })[]
  >`
    select mailbox_id as "mailboxId", kind, path, uid_validity::float8 as "uidValidity", next_uid::float8 as "nextUid",
      older_uid::float8 as "olderUid", older_end::float8 as "olderEnd", scan
    from mailboxes join mailbox_sync on mailbox_sync.mailbox_id = mailboxes.id
    where mailboxes.owner_id = ${ownerId} and mailboxes.identity_id = ${identityId} and path is not null
      and kind = any (${readKinds}::text[])
    order by kind = 'inbox' desc, kind`;
  return rows.map(({ olderUid, olderEnd, nextUid, ...row }) => ({
    ...row,
    nextUid: nextUid ?? 1,
    older: olderUid === null || olderEnd === null ? null : { uid: olderUid, end: olderEnd },
  }));
}

/** Rejects with `PositionLost` if the lease was lost. */
export async function readRules(
  sql: Sql,
  { identityId, ownerId, token }: SyncedIdentity & ConnectionLease,
): Promise<SyncRules> {
  const [rules] = await sql<SyncRules[]>`
    select import_since as "importSince", events_since as "eventsSince", scan from imap_connections
    where owner_id = ${ownerId} and identity_id = ${identityId} and lease_token = ${token}`;
  if (!rules) throw new PositionLost();
  return rules;
}

/** The identity was deleted, or its account has no `imap` any more. */
export class MailboxGone extends Error {
  constructor() {
    super('The identity or its account was deleted');
  }
}

/** The position is not the one that was read, the lease was lost, or the account was changed since the claim. */
export class PositionLost extends Error {
  constructor() {
    super('Another process has read this mailbox meanwhile');
  }
}

/** What moves besides the position itself. */
interface Progress {
  total?: number;
  backlog?: number;
}

/** Within the transaction that records the messages up to the new position. */
export async function movePosition(
  sql: Sql,
  ownerId: string,
  from: Position,
  to: Pick<Position, 'uidValidity' | 'nextUid' | 'older' | 'scan'>,
  { total, backlog }: Progress = {},
): Promise<Position> {
  const moved = await sql`
    update mailbox_sync
    set uid_validity = ${to.uidValidity}, next_uid = ${to.nextUid}, older_uid = ${to.older?.uid ?? null},
      older_end = ${to.older?.end ?? null}, scan = ${to.scan}, total = coalesce(${total ?? null}::int, total),
      backlog = ${to.older === null ? 0 : sql`coalesce(${backlog ?? null}::int, backlog)`}
    where owner_id = ${ownerId} and mailbox_id = ${from.mailboxId} and uid_validity is not distinct from ${from.uidValidity}::bigint
      and coalesce(next_uid, 1) = ${from.nextUid} and older_uid is not distinct from ${from.older?.uid ?? null}::bigint
      and older_end is not distinct from ${from.older?.end ?? null}::bigint`;
  if (moved.count === 0) throw new PositionLost();
  return { ...from, ...to };
}

export interface SeenMessage {
  fingerprint: string;
  uid: number;
}

/** Which of these fingerprints the identity already has, in any folder. */
export async function findKnown(
  sql: Sql,
  identityId: string,
  fingerprints: readonly string[],
): Promise<Set<string>> {
  const rows = await sql<{ fingerprint: string }[]>`
    select fingerprint from unnest(${fingerprints}::uuid[]) as given (fingerprint)
    where exists (
      select from mailbox_ledger
      where mailbox_ledger.identity_id = ${identityId} and mailbox_ledger.fingerprint = given.fingerprint
    )`;
  return new Set(rows.map(({ fingerprint }) => fingerprint));
}

/** Fails if one is known already: its message must not be recorded again. */
export async function noteSeen(
  sql: Sql,
  { identityId, ownerId }: SyncedIdentity,
  { mailboxId, uidValidity }: Position,
  seen: readonly SeenMessage[],
): Promise<void> {
  if (seen.length === 0) return;
  await sql`
    insert into mailbox_ledger (identity_id, fingerprint, owner_id, mailbox_id, uid_validity, uid)
    select ${identityId}::uuid, fingerprint, ${ownerId}::uuid, ${mailboxId}::uuid, ${uidValidity}::bigint, uid
    from unnest(${seen.map(({ fingerprint }) => fingerprint)}::uuid[], ${seen.map(({ uid }) => uid)}::bigint[])
      as seen (fingerprint, uid)`;
}

/** Which of these keys belong to messages that the owner sent from here. */
export async function findSentKeys(
  sql: Sql,
  ownerId: string,
  messageKeys: readonly string[],
): Promise<Set<string>> {
  // Only mail in a sent folder has keys, and new mail in the inbox should not wait for a query.
  if (messageKeys.length === 0) return new Set();
  const rows = await sql<{ key: string }[]>`
    select key from unnest(${messageKeys}::uuid[]) as given (key)
    where exists (select from outgoing where owner_id = ${ownerId} and message_key = given.key)`;
  return new Set(rows.map(({ key }) => key));
}

/** What people see of the sync of a mailbox. */
export async function noteMailbox(
  sql: Sql,
  ownerId: string,
  mailboxId: string,
  {
    isSyncing,
    total,
    error = null,
  }: { isSyncing: boolean; total: number | null; error?: ServerError | null },
): Promise<void> {
  await sql`
    update mailbox_sync
    set is_syncing = ${isSyncing}, total = coalesce(${total}::int, total),
      synced_at = case when ${isSyncing || error !== null} then synced_at else now() end,
      error = ${error && JSON.stringify(error)}::text::json
    where owner_id = ${ownerId} and mailbox_id = ${mailboxId}`;
}

export const syncStates = ['off', 'syncing', 'idle', 'failing'] as const;

/** A mailbox in responses. */
export interface Mailbox {
  id: string;
  kind: MailboxKind;
  path: string | null;
  total: number | null;
  sync: {
    state: (typeof syncStates)[number];
    lastSyncedAt: string | null;
    error: ServerError | null;
    backlog: number;
  } | null;
}

/** Undefined: no such identity. */
export async function listMailboxes(
  sql: Sql,
  ownerId: string,
  identityId: string,
): Promise<Mailbox[] | undefined> {
  // Trash is not read, and a folder that the server does not have cannot be. Before the first login nothing is known of the folders: off,
  // or failing if the login fails.
  const isOff = sql`mailboxes.kind = 'trash' or sync.path is null and (connection.server_key is not null or connection.error is null)`;
  const isSyncing = sql`sync.uid_validity is null or sync.is_syncing or sync.older_uid is not null or sync.scan <> connection.scan`;
  const rows = await sql<Mailbox[]>`
    select mailboxes.id, mailboxes.kind, sync.path, sync.total,
      case when server.side is not null and identities.kind = 'email' then json_build_object(
        'state', case
          when ${isOff} then 'off'
          when coalesce(sync.error, connection.error) is not null then 'failing'
          when ${isSyncing} then 'syncing'
          else 'idle'
        end,
        'lastSyncedAt', iso_time(sync.synced_at),
        'error', case when ${isOff} then null else coalesce(sync.error, connection.error) end,
        'backlog', coalesce(sync.backlog, 0)
      ) end as sync
    from identities
    join mailboxes on mailboxes.identity_id = identities.id
    left join mailbox_sync sync on sync.mailbox_id = mailboxes.id
    left join imap_connections connection on connection.identity_id = identities.id
    left join mail_servers server on server.owner_id = identities.owner_id and server.account_id = identities.smtp_account_id
      and server.side = 'imap'
    where identities.owner_id = ${ownerId} and identities.id = ${identityId}
    order by array_position(${mailboxKinds}::text[], mailboxes.kind)`;
  return rows.length > 0 ? rows : undefined;
}

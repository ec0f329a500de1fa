/**
 * The verification of domain identities: which checks are due, the state of each identity, and which identity is the holder of a
 * domain (src/identities/decide.ts explains the words). Guarantee: the identities of one domain are decided one at a time, and a
 * unique index allows only one of them to be verified.
 */
import { only, type Sql } from '../db/client.ts';

export const identityStatuses = ['unverified', 'pending', 'verified', 'failed'] as const;
export type IdentityStatus = (typeof identityStatuses)[number];

export interface IdentityRef {
  ownerId: string;
  id: string;
}

export interface DomainIdentity extends IdentityRef {
  domain: string;
  token: string;
  incomingDomain: boolean;
  /** The newest last. */
  dkimKeys: { selector: string; publicKey: string }[];
}

function domainColumns(sql: Sql) {
  return sql`
    identities.id, identities.owner_id as "ownerId", identities.value_key as domain,
    identities.verification_token as token, identities.incoming_domain as "incomingDomain",
    (
      select coalesce(json_agg(json_build_object('selector', selector, 'publicKey', public_key)
        order by created_at, selector), '[]')
      from dkim_keys where dkim_keys.owner_id = identities.owner_id and dkim_keys.identity_id = identities.id
    ) as "dkimKeys"`;
}

/** Time limit of a check: after it another process may repeat the check. */
const checkSeconds = 120;
const maxOwners = 200;

/**
 * Leases due checks for two minutes: the first of each owner, then the second of each, and so on. If more owners than
 * `maxOwners` have checks due, chance chooses among them, so that no owner always comes last. There is no owner filter: the loop
 * works for all users.
 */
export async function claimDueChecks(sql: Sql, limit: number): Promise<DomainIdentity[]> {
  return sql<DomainIdentity[]>`
    with owners as (
      select owner_id from identities where next_check_at <= now() group by owner_id order by random() limit ${maxOwners}
    ), candidates as materialized (
      select due.id, due.rank from owners cross join lateral (
        select id, row_number() over (order by next_check_at) as rank from identities
        where identities.owner_id = owners.owner_id and kind = 'domain' and next_check_at <= now()
        order by next_check_at limit ${limit}
      ) due
      order by due.rank, random() limit ${limit * 2}
    ), picked as materialized (
      select id from candidates join identities using (id)
      where next_check_at <= now() order by rank limit ${limit} for update of identities skip locked
    )
    update identities
    set next_check_at = now() + ${checkSeconds} * interval '1 second',
      pending_until = case when status = 'unverified' then now() + ${checkSeconds} * interval '1 second'
        else pending_until end
    where id = any (array(select id from picked))
    returning ${domainColumns(sql)}`;
}

/** The identity shows as pending until a requested check ends, or is lost; a verified identity stays verified. */
export async function showPending(sql: Sql, { ownerId, id }: IdentityRef): Promise<void> {
  await sql`
    update identities set pending_until = now() + ${checkSeconds} * interval '1 second'
    where owner_id = ${ownerId} and id = ${id} and status in ('unverified', 'failed')`;
}

/** After a check whose result was not saved. */
export async function clearPending(sql: Sql, { ownerId, id }: IdentityRef): Promise<void> {
  await sql`
    update identities set pending_until = null
    where owner_id = ${ownerId} and id = ${id} and pending_until is not null`;
}

export async function findDomainIdentity(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<DomainIdentity | undefined> {
  const [row] = await sql<DomainIdentity[]>`
    select ${domainColumns(sql)} from identities
    where owner_id = ${ownerId} and id = ${id} and kind = 'domain'`;
  return row;
}

export async function lockDomainIdentity(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<DomainIdentity | undefined> {
  await sql`select from identities where owner_id = ${ownerId} and id = ${id} for no key update`;
  return findDomainIdentity(sql, ownerId, id);
}

export interface VerificationState {
  status: IdentityStatus;
  /** The schedule of checks counts from here: the creation, the last `POST …/verify`, or the failure. */
  since: Date;
  /** When a check first saw that a required record of a verified identity is absent. */
  graceSince: Date | null;
  /** Why the identity has this status, in a sentence. */
  reason: string | null;
  /** The identity of the holder whose domain this claimant is taking over, and the start of the check that began it. */
  takeoverOf: string | null;
  takeoverSince: Date | null;
}

export interface StoredState extends VerificationState, IdentityRef {
  token: string;
  /** JSON text. */
  dnsRecords: string;
  /** Start of the check that this state is the result of. */
  checkStartedAt: Date | null;
}

export interface LockedIdentity {
  now: Date;
  identity: DomainIdentity;
  state: StoredState;
  /** The holder, if it is another identity. Undefined if the domain has no holder, or if this identity is the holder. */
  holder: StoredState | undefined;
}

/** To be locked before any row of the domain's identities: checks and deletions lock those rows in different orders. */
export async function lockDomain(sql: Sql, domain: string): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${`identity ${domain}`}, 0))`;
}

/** Locks the domain, and reads the state of the identity and of the holder. Undefined if the identity was deleted. */
export async function lockForDecision(
  sql: Sql,
  { id, ownerId, domain }: DomainIdentity,
): Promise<LockedIdentity | undefined> {
  await lockDomain(sql, domain);
  // A statement of its own after the lock, so that it sees what the transaction that had the lock before committed.
  const rows = await sql<StoredState[]>`
    select id, owner_id as "ownerId", verification_token as token, status, standing_since as since,
      grace_since as "graceSince", standing_reason as reason, dns_records::text as "dnsRecords",
      looked_at as "checkStartedAt", takeover_of as "takeoverOf", takeover_since as "takeoverSince"
    from identities
    where kind = 'domain' and value_key = ${domain} and (id = ${id} or status = 'verified')
    order by id for no key update`;
  const state = rows.find((row) => row.id === id);
  const now = await readClock(sql);
  const identity = state && (await findDomainIdentity(sql, ownerId, id));
  return identity && { now, identity, state, holder: rows.find((row) => row.id !== id) };
}

/** Returns the time by the database's clock, and the id of the holder, which may be the checked identity itself. */
export async function startCheck(
  sql: Sql,
  { domain }: DomainIdentity,
): Promise<{ startedAt: Date; verifiedId: string | null }> {
  return only(
    await sql<{ startedAt: Date; verifiedId: string | null }[]>`
      select clock_timestamp() as "startedAt", (
        select id from identities
        where kind = 'domain' and value_key = ${domain} and status = 'verified') as "verifiedId"`,
  );
}

/** Checks of several processes are compared by time, so all use the database's clock. */
async function readClock(sql: Sql): Promise<Date> {
  return only(await sql<{ now: Date }[]>`select clock_timestamp() as now`).now;
}

export interface NewState extends VerificationState {
  /** JSON text. */
  dnsRecords: string;
  checkStartedAt: Date;
  /** Until the next check; null for none. */
  waitSeconds: number | null;
  /** Whether anything but the time of the check has changed. */
  changed: boolean;
}

/** Addresses whose status changed with their domain. `each` is empty if there are more than 20. */
export interface ChangedAddresses {
  count: number;
  each: { id: string; value: string; from: IdentityStatus }[];
}

const maxListedAddresses = 20;

/** Gives the owner's addresses at a domain the status of the domain identity. A confirmed address takes nothing but `verified`. */
export async function setAddressStatus(
  sql: Sql,
  { ownerId, id }: IdentityRef,
  status: IdentityStatus,
): Promise<ChangedAddresses> {
  const rows = await sql<(ChangedAddresses['each'][number] & { count: number })[]>`
    with changed as (
      update identities set status = ${status}, updated_at = now()
      from identities as before
      where identities.owner_id = ${ownerId} and identities.domain_identity_id = ${id}
        and identities.status <> ${status} and before.id = identities.id
        and (identities.confirmed_at is null or ${status} = 'verified')
      returning identities.id, identities.value, before.status as "from"
    )
    select id, value, "from", count(*) over ()::int as count from changed limit ${maxListedAddresses + 1}`;
  const count = rows[0]?.count ?? 0;
  return { count, each: count > maxListedAddresses ? [] : rows.map(({ count: _, ...one }) => one) };
}

export async function saveState(
  sql: Sql,
  { ownerId, id }: IdentityRef,
  given: NewState,
): Promise<ChangedAddresses> {
  await sql`
    update identities
    set status = ${given.status}, standing_since = ${given.since}, grace_since = ${given.graceSince},
      standing_reason = ${given.reason}, dns_records = ${given.dnsRecords}::text::json,
      looked_at = greatest(looked_at, ${given.checkStartedAt}), pending_until = null,
      takeover_of = ${given.takeoverOf}, takeover_since = ${given.takeoverSince},
      next_check_at = now() + ${given.waitSeconds}::float8 * interval '1 second',
      updated_at = case when ${given.changed} then now() else updated_at end
    where owner_id = ${ownerId} and id = ${id}`;
  return setAddressStatus(sql, { ownerId, id }, given.status);
}

export async function saveDnsRecords(
  sql: Sql,
  { ownerId, id }: IdentityRef,
  dnsRecords: string,
): Promise<void> {
  await sql`
    update identities set dns_records = ${dnsRecords}::text::json, next_check_at = now(), updated_at = now()
    where owner_id = ${ownerId} and id = ${id}`;
}

/** Makes a check of every claimant due now, also of a claimant that had no next check. */
export async function checkClaimantsNow(sql: Sql, domain: string, holderId: string): Promise<void> {
  await sql`
    update identities set next_check_at = now()
    where kind = 'domain' and value_key = ${domain} and id <> ${holderId} and status <> 'verified'`;
}

/** For a holder whose token was found: every claimant needs both checks of a takeover again. */
export async function cancelTakeovers(sql: Sql, { id, domain }: DomainIdentity): Promise<void> {
  await sql`
    update identities set takeover_of = null, takeover_since = null
    where kind = 'domain' and value_key = ${domain} and takeover_of = ${id}`;
}

export async function checkNow(sql: Sql, ownerId: string, id: string): Promise<void> {
  await sql`
    update identities set next_check_at = now()
    where owner_id = ${ownerId} and id = ${id} and kind = 'domain'`;
}

export async function findDnsRecords(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<{ value: string; dnsRecords: string } | undefined> {
  const [row] = await sql<{ value: string; dnsRecords: string }[]>`
    select value, dns_records::text as "dnsRecords" from identities
    where owner_id = ${ownerId} and id = ${id}`;
  return row;
}

const burst = 10;
const secondsEach = 5;

/** Rate limit of requested checks: 10 at once, then one every 5 s. Returns the seconds to wait if the limit is reached. */
export async function takeCheckAllowance(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<{ waitSeconds: number } | undefined> {
  const allowance = sql`
    least(${burst}::float8, check_allowance + extract(epoch from now() - check_allowance_at) / ${secondsEach}::float8)`;
  const [taken] = await sql`
    update identities set check_allowance = ${allowance} - 1, check_allowance_at = now()
    where owner_id = ${ownerId} and id = ${id} and ${allowance} >= 1
    returning id`;
  if (taken) return undefined;
  const [row] = await sql<{ waitSeconds: number }[]>`
    select ceil((1 - ${allowance}) * ${secondsEach}::float8)::int as "waitSeconds"
    from identities where owner_id = ${ownerId} and id = ${id}`;
  return row && { waitSeconds: Math.max(1, row.waitSeconds) };
}

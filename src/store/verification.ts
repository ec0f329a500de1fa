/**
 * The proof of domain identities: which are due for a look, how they stand, and who holds a value. The identities
 * of one value are decided one at a time, so that never two owners hold it; a unique index stands behind that.
 */
import { only, type Sql } from '../db/client.ts';

export const identityStatuses = ['unverified', 'pending', 'verified', 'failed'] as const;
export type IdentityStatus = (typeof identityStatuses)[number];

/** A domain identity with all that a check of its DNS needs to know. */
export interface DomainIdentity {
  id: string;
  ownerId: string;
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

/** A check that has not ended by then is given up for lost, and made again. */
const checkSeconds = 120;
/** Of more at once, chance picks some. */
const maxOwners = 200;

/**
 * Those that are due, theirs to check for two minutes: one of each owner, then a second of each, whoever has many. Of more
 * owners than that chance picks, so that nobody waits behind those who are always first. Not by owner: the loop works for all.
 */
export async function claimDue(sql: Sql, limit: number): Promise<DomainIdentity[]> {
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

/** From now on it shows as pending, unless it is verified: until the look ends that a person asked for, or is lost. */
export async function showPending(sql: Sql, { ownerId, id }: DomainIdentity): Promise<void> {
  await sql`
    update identities set pending_until = now() + ${checkSeconds} * interval '1 second'
    where owner_id = ${ownerId} and id = ${id} and status in ('unverified', 'failed')`;
}

/** The look ended without a word. */
export async function stopPending(sql: Sql, { ownerId, id }: DomainIdentity): Promise<void> {
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

/** The same, held until the transaction ends: what a look says of it is decided before or after. */
export async function holdDomainIdentity(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<DomainIdentity | undefined> {
  await sql`select from identities where owner_id = ${ownerId} and id = ${id} for no key update`;
  return findDomainIdentity(sql, ownerId, id);
}

/** How an identity stands. */
export interface Standing {
  status: IdentityStatus;
  /** When the present checks began: when it was made, when a person asked again, or when it failed. */
  since: Date;
  /** When required records of a verified identity were first seen to be gone. */
  graceSince: Date | null;
  /** Why it is what it is, in a sentence. */
  reason: string | null;
  /** Whose value this one is about to take over, and when a look first saw that it may. */
  takeoverOf: string | null;
  takeoverSince: Date | null;
}

/** The same with its records as they were last seen. */
export interface Stored extends Standing {
  id: string;
  ownerId: string;
  token: string;
  /** JSON text. */
  dnsRecords: string;
  /** When the look began that this rests on. */
  lookedAt: Date | null;
}

export interface Held {
  now: Date;
  /** As it is now: it may have changed since it was found. */
  identity: DomainIdentity;
  mine: Stored;
  /** Who else holds the value verified. */
  holder: Stored | undefined;
}

/** Decisions about the identities of one domain are made one after the other. Taken before any row of theirs. */
export async function holdDomain(sql: Sql, domain: string): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${`identity ${domain}`}, 0))`;
}

/**
 * Holds a value until the transaction ends, and tells how the identity stands that is to be decided on, and which other one
 * holds the value verified. Undefined when the identity is gone.
 */
export async function holdValue(
  sql: Sql,
  { id, ownerId, domain }: DomainIdentity,
): Promise<Held | undefined> {
  await holdDomain(sql, domain);
  // After the lock, so that what the one before us did is seen.
  const rows = await sql<Stored[]>`
    select id, owner_id as "ownerId", verification_token as token, status, standing_since as since,
      grace_since as "graceSince", standing_reason as reason, dns_records::text as "dnsRecords",
      looked_at as "lookedAt", takeover_of as "takeoverOf", takeover_since as "takeoverSince"
    from identities
    where kind = 'domain' and value_key = ${domain} and (id = ${id} or status = 'verified')
    order by id for no key update`;
  const mine = rows.find((row) => row.id === id);
  const now = await readClock(sql);
  const identity = mine && (await findDomainIdentity(sql, ownerId, id));
  return identity && { now, identity, mine, holder: rows.find((row) => row.id !== id) };
}

/** When a look begins, and who holds the value then; not by owner, since it may be another's. */
export async function beginLook(
  sql: Sql,
  { domain }: DomainIdentity,
): Promise<{ lookedAt: Date; holderId: string | null }> {
  return only(
    await sql<{ lookedAt: Date; holderId: string | null }[]>`
      select clock_timestamp() as "lookedAt", (
        select id from identities
        where kind = 'domain' and value_key = ${domain} and status = 'verified') as "holderId"`,
  );
}

/** By which looks are told apart: the database's clock, whichever process looks. */
async function readClock(sql: Sql): Promise<Date> {
  return only(await sql<{ now: Date }[]>`select clock_timestamp() as now`).now;
}

export interface NewStanding extends Standing {
  /** JSON text. */
  dnsRecords: string;
  /** When the look began. */
  lookedAt: Date;
  /** Until the next look; null for none. */
  waitSeconds: number | null;
  /** Whether anything but the time of the look has changed. */
  changed: boolean;
}

/** Addresses whose status changed with that of their domain: each of them, or only their number where they are many. */
export interface Followers {
  count: number;
  each: { id: string; value: string; from: IdentityStatus }[];
}

const maxFollowersTold = 20;

/** The owner's addresses at a domain take a status. */
export async function setFollowers(
  sql: Sql,
  { ownerId, id }: { ownerId: string; id: string },
  status: IdentityStatus,
): Promise<Followers> {
  const rows = await sql<(Followers['each'][number] & { count: number })[]>`
    with followers as (
      update identities set status = ${status}, updated_at = now()
      from identities as before
      where identities.owner_id = ${ownerId} and identities.domain_identity_id = ${id}
        and identities.status <> ${status} and before.id = identities.id
      returning identities.id, identities.value, before.status as "from"
    )
    select id, value, "from", count(*) over ()::int as count from followers limit ${maxFollowersTold + 1}`;
  const count = rows[0]?.count ?? 0;
  return { count, each: count > maxFollowersTold ? [] : rows.map(({ count: _, ...one }) => one) };
}

/** Writes how a domain identity stands now; the owner's addresses at the domain stand as it does. */
export async function saveStanding(
  sql: Sql,
  { ownerId, id }: { ownerId: string; id: string },
  given: NewStanding,
): Promise<Followers> {
  await sql`
    update identities
    set status = ${given.status}, standing_since = ${given.since}, grace_since = ${given.graceSince},
      standing_reason = ${given.reason}, dns_records = ${given.dnsRecords}::text::json,
      looked_at = greatest(looked_at, ${given.lookedAt}), pending_until = null,
      takeover_of = ${given.takeoverOf}, takeover_since = ${given.takeoverSince},
      next_check_at = now() + ${given.waitSeconds}::float8 * interval '1 second',
      updated_at = case when ${given.changed} then now() else updated_at end
    where owner_id = ${ownerId} and id = ${id}`;
  return setFollowers(sql, { ownerId, id }, given.status);
}

/** Replaces the records that are shown, between two looks; and has it looked at soon. */
export async function saveRecords(
  sql: Sql,
  { ownerId, id }: { ownerId: string; id: string },
  dnsRecords: string,
): Promise<void> {
  await sql`
    update identities set dns_records = ${dnsRecords}::text::json, next_check_at = now(), updated_at = now()
    where owner_id = ${ownerId} and id = ${id}`;
}

/** Other identities of the value, of whichever owner, may have it now: also those that had been given up. */
export async function wakeRivals(sql: Sql, domain: string, id: string): Promise<void> {
  await sql`
    update identities set next_check_at = now()
    where kind = 'domain' and value_key = ${domain} and id <> ${id} and status <> 'verified'`;
}

/** The holder's token stands after all: nobody, of whichever owner, is about to take the value over. */
export async function dropTakeovers(sql: Sql, { id, domain }: DomainIdentity): Promise<void> {
  await sql`
    update identities set takeover_of = null, takeover_since = null
    where kind = 'domain' and value_key = ${domain} and takeover_of = ${id}`;
}

/** Has a domain identity looked at now. */
export async function makeDue(sql: Sql, ownerId: string, id: string): Promise<void> {
  await sql`
    update identities set next_check_at = now()
    where owner_id = ${ownerId} and id = ${id} and kind = 'domain'`;
}

export async function readRecords(
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

/** Takes one of the checks that a person may ask for: 10 at once, then one every 5 s. Answers the seconds to wait, if any. */
export async function takeCheck(
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

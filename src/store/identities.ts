/**
 * Identities and their mailboxes. Guarantee: an address points to the same owner's identity of its domain, whichever of the two
 * was created first.
 */
import { type Sql, transaction } from '../db/client.ts';
import { assignments, type Fragment } from '../db/sql.ts';
import { newId, newPublicId } from '../lib/ids.ts';
import { type ChangedAddress, verifyNextConfirmed } from './confirmations.ts';
import { addDkimKey, type NewDkimKey } from './dkim-keys.ts';
import { connectNow } from './imap-connections.ts';
import {
  collectPage,
  type Listed,
  mergePages,
  type Page,
  type PageRequest,
  pageOf,
  pagesOf,
  pageWithin,
  position,
} from './page.ts';
import { lockUser } from './users.ts';
import {
  type ChangedAddresses,
  checkClaimantsNow,
  type IdentityStatus,
  identityStatuses,
  lockDomain,
  setAddressStatus,
} from './verification.ts';

export const identityKinds = ['email', 'domain'] as const;
export type IdentityKind = (typeof identityKinds)[number];

export const mailboxKinds = ['inbox', 'sent', 'spam', 'trash'] as const;
export type MailboxKind = (typeof mailboxKinds)[number];

/** The identity object of the interface, field by field. */
export interface Identity {
  id: string;
  owner_id: string;
  kind: IdentityKind;
  public_id: string;
  value: string;
  incoming_domain: boolean;
  domain_identity_id: string | null;
  dns_records: string;
  meta: string;
  provider_id: string | null;
  smtp_account_id: string | null;
  status: IdentityStatus;
  created_at: string;
  updated_at: string;
}

/**
 * An identity that is not verified shows as pending while its domain is checked, and an address while a link that confirms it is
 * good. Computed when it is read and never stored, so a check that is lost, or a link that is not used, leaves nothing to repair.
 */
function shownStatus(sql: Sql) {
  return sql`case when ${isUnproven(sql)} and ${isPendingNow(sql)} then 'pending' else identities.status end`;
}

function isUnproven(sql: Sql) {
  return sql`identities.status in ('unverified', 'failed')`;
}

function isPendingNow(sql: Sql) {
  // A scalar subquery runs row by row. For an `exists` PostgreSQL hashed the identities of all owners.
  return sql`
    coalesce(greatest(identities.pending_until, case when identities.domain_identity_id is not null then (
      select domain_identity.pending_until from identities as domain_identity
      where domain_identity.owner_id = identities.owner_id and domain_identity.id = identities.domain_identity_id
    ) end) > now(), false)`;
}

// SQL formats the times, because a Date would lose the microseconds.
function columns(sql: Sql) {
  return sql`
    id, owner_id, kind, public_id, value, incoming_domain, domain_identity_id,
    dns_records::text as dns_records, meta::text as meta, provider_id, smtp_account_id,
    ${shownStatus(sql)} as status,
    to_char(created_at at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.US+00') as created_at,
    to_char(updated_at at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.US+00') as updated_at`;
}

export interface NewIdentity {
  id: string;
  kind: IdentityKind;
  value: string;
  valueKey: string;
  domain: string;
  incomingDomain: boolean;
  providerId: string | null;
  smtpAccountId: string | null;
  /** JSON text. */
  meta: string;
  /** Null for an address. */
  proof: { token: string; dnsRecords: string; dkimKey: NewDkimKey; firstCheckSeconds: number } | null;
}

/** Undefined if the owner already has this identity. */
export function createIdentity(sql: Sql, ownerId: string, given: NewIdentity): Promise<Identity | undefined> {
  return transaction(sql, async (sql) => {
    // An address and its domain that are created at the same moment must see each other, or they stay unlinked.
    await lockUser(sql, ownerId);
    const { id, proof } = given;
    const domain = given.kind === 'email' ? await findDomain(sql, ownerId, given.domain) : undefined;
    const [made] = await sql<{ id: string }[]>`
      insert into identities (id, owner_id, kind, public_id, value, value_key, incoming_domain, provider_id,
        smtp_account_id, meta, domain_identity_id, status)
      values (${id}, ${ownerId}, ${given.kind}, ${newPublicId()}, ${given.value}, ${given.valueKey},
        ${given.incomingDomain}, ${given.providerId}, ${given.smtpAccountId}, ${given.meta}::text::json,
        ${domain?.id ?? null}, ${domain?.status ?? 'unverified'})
      on conflict (owner_id, kind, value_key) do nothing
      returning id`;
    if (!made) return undefined;
    await createMailboxes(sql, ownerId, id);
    if (given.smtpAccountId) await connectNow(sql, ownerId, { identityId: id });
    if (given.kind === 'domain') await linkAddresses(sql, ownerId, given.domain, id);
    if (proof) {
      await sql`
        update identities
        set verification_token = ${proof.token}, dns_records = ${proof.dnsRecords}::text::json,
          next_check_at = now() + ${proof.firstCheckSeconds} * interval '1 second'
        where owner_id = ${ownerId} and id = ${id}`;
      await addDkimKey(sql, { ownerId, id }, proof.dkimKey);
    }
    return findIdentity(sql, ownerId, id);
  });
}

/** Locks the domain's status until the address that copies it is saved. */
async function findDomain(
  sql: Sql,
  ownerId: string,
  domain: string,
): Promise<Pick<Identity, 'id' | 'status'> | undefined> {
  const [row] = await sql<Pick<Identity, 'id' | 'status'>[]>`
    select id, status from identities
    where owner_id = ${ownerId} and kind = 'domain' and value_key = ${domain} for share`;
  return row;
}

async function createMailboxes(sql: Sql, ownerId: string, identityId: string): Promise<void> {
  await sql`
    insert into mailboxes (id, owner_id, identity_id, kind)
    select id, ${ownerId}::uuid, ${identityId}::uuid, kind
    from unnest(${mailboxKinds.map(newId)}::uuid[], ${mailboxKinds}::text[]) as made (id, kind)`;
}

async function linkAddresses(
  sql: Sql,
  ownerId: string,
  domain: string,
  domainIdentityId: string,
): Promise<void> {
  await sql`
    update identities set domain_identity_id = ${domainIdentityId}, updated_at = now()
    where owner_id = ${ownerId} and kind = 'email' and domain = ${domain}`;
}

export interface IdentityFilter {
  kind?: IdentityKind | undefined;
  status?: IdentityStatus | undefined;
  value?: { kind: IdentityKind; key: string } | undefined;
}

export async function listIdentities(
  sql: Sql,
  ownerId: string,
  filter: IdentityFilter,
  page: PageRequest,
): Promise<Page<Listed<Identity>>> {
  const { kind, status, value } = filter;
  const select = (isOnPage: Fragment, from = sql`identities`) => sql<Listed<Identity>[]>`
    select ${columns(sql)}, ${position(sql)} from ${from} where owner_id = ${ownerId} ${isOnPage}`;
  return collectPage(page, (step) => {
    const within = (group: Record<string, Fragment>, isWanted = sql``) =>
      select(sql`${isWanted} ${pageWithin(sql, step, 'identities', group, undefined)}`);
    const thisPage = pageOf(sql, step, 'identities');
    if (value) {
      const wanted = sql`(${value.kind}, ${value.key})`;
      // At most one row. By this order and this limit the planner takes the index that begins with the owner, also where it knows
      // no better, and filters afterwards.
      const named = sql`(
        select * from identities where owner_id = ${ownerId} and (kind, value_key) between ${wanted} and ${wanted}
        order by kind, value_key limit 1) identities`;
      const isKind = kind ? sql`and kind = ${kind}` : sql``;
      const isShown = status ? sql`and ${shownStatus(sql)} = ${status}` : sql``;
      return select(sql`${isKind} ${isShown} limit ${step.limit}`, named);
    }
    if (!kind && !status) return select(thisPage);
    const groups = sql`
      unnest(${kind ? [kind] : identityKinds}::text[]) as wanted (kind)
      cross join unnest(${status ? [status] : identityStatuses}::text[]) as stored (status)`;
    // Not by the shown status: the planner would guess that one row of 200 has it, and read and sort all rows of the group.
    const isStored =
      status === 'unverified' || status === 'failed' ? sql`and not ${isPendingNow(sql)}` : sql``;
    const ofGroup = within(
      { status: sql`stored.status` },
      sql`and identities.kind = wanted.kind ${isStored}`,
    );
    const pages = [pagesOf(sql, groups, ofGroup)];
    if (status === 'pending') {
      const itself = select(sql`and ${isUnproven(sql)} and identities.id = pending.id ${thisPage}`);
      const isListed = sql`coalesce(identities.pending_until > now(), false)`;
      // The condition of the partial index.
      const hasDomain = sql`and ${isUnproven(sql)} and identities.domain_identity_id is not null and not ${isListed}`;
      const addresses = within({ domain_identity_id: sql`pending.id` }, hasDomain);
      for (const one of kind ? [kind] : identityKinds)
        pages.push(pagesOf(sql, pendingNow(sql, ownerId, one), itself));
      if (kind !== 'domain') pages.push(pagesOf(sql, pendingNow(sql, ownerId, 'domain'), addresses));
    }
    return mergePages<Identity>(sql, step, pages);
  });
}

/** A FROM item `pending (id)`: the domains that are checked at this moment, or the addresses with a good link. */
function pendingNow(sql: Sql, ownerId: string, kind: IdentityKind) {
  return sql`(select id from identities where owner_id = ${ownerId} and kind = ${kind} and pending_until > now()) pending`;
}

export async function findIdentity(sql: Sql, ownerId: string, id: string): Promise<Identity | undefined> {
  const [row] = await sql<Identity[]>`
    select ${columns(sql)} from identities where owner_id = ${ownerId} and id = ${id}`;
  return row;
}

export async function hasIdentity(
  sql: Sql,
  ownerId: string,
  kind: IdentityKind,
  valueKey: string,
): Promise<boolean> {
  const found = await sql`
    select from identities where owner_id = ${ownerId} and kind = ${kind} and value_key = ${valueKey}`;
  return found.count > 0;
}

export interface IdentityChanges {
  incoming_domain?: boolean;
  provider_id?: string | null;
  smtp_account_id?: string | null;
  /** JSON text. */
  meta?: string;
}

/** Without changes `updated_at` stays as it is. */
export async function updateIdentity(
  sql: Sql,
  ownerId: string,
  id: string,
  changes: IdentityChanges,
): Promise<Identity | undefined> {
  if (Object.keys(changes).length === 0) return findIdentity(sql, ownerId, id);
  return transaction(sql, async (sql) => {
    const [row] = await sql<Identity[]>`
      update identities set ${assignments({ ...changes })}, updated_at = now()
      where owner_id = ${ownerId} and id = ${id}
      returning ${columns(sql)}`;
    if (changes.smtp_account_id) await connectNow(sql, ownerId, { identityId: id });
    return row;
  });
}

/**
 * Deletes the identity, its mailboxes (by cascade) and the webhooks restricted to it; the purge deletes its mail later. Returns
 * the addresses that lost their status, and the claim of another owner that is verified now; undefined if there is no such identity.
 */
export function deleteIdentity(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<
  { domain: string; addresses: ChangedAddresses; promoted: ChangedAddress | undefined } | undefined
> {
  return transaction(sql, async (sql) => {
    // An address that is created at this moment must not point to a deleted domain.
    await lockUser(sql, ownerId);
    const [known] = await sql<(Pick<NewIdentity, 'kind' | 'domain'> & { key: string })[]>`
      select kind, domain, value_key as key from identities where owner_id = ${ownerId} and id = ${id}`;
    if (!known) return undefined;
    const { kind, domain, key } = known;
    // Before any row: checks of this domain lock some of the same rows in another order.
    await lockDomain(sql, domain);
    const addresses = await setAddressStatus(sql, { ownerId, id }, 'unverified');
    await sql`
      update identities set domain_identity_id = null, updated_at = now()
      where owner_id = ${ownerId} and domain_identity_id = ${id}`;
    await sql`
      update webhooks set deleted_at = now(), enabled = false, identity_id = null
      where owner_id = ${ownerId} and identity_id = ${id}`;
    const [deleted] = await sql<Pick<Identity, 'status'>[]>`
      with deleted as (
        delete from identities where owner_id = ${ownerId} and id = ${id} returning id, owner_id, status
      ), purge as (insert into identity_purges (identity_id, owner_id) select id, owner_id from deleted)
      select status from deleted`;
    if (!deleted) return undefined;
    const wasHolder = deleted.status === 'verified';
    if (kind === 'domain' && wasHolder) await checkClaimantsNow(sql, domain, id);
    const promoted =
      kind === 'email' && wasHolder ? await verifyNextConfirmed(sql, { domain, key }) : undefined;
    return { domain, addresses, promoted };
  });
}

/**
 * Identities and their mailboxes. An email identity points to the same owner's identity of its domain whenever
 * there is one, whichever came first.
 */
import { type Sql, transaction } from '../db/client.ts';
import { assignments } from '../db/sql.ts';
import { newId, newPublicId } from '../lib/ids.ts';
import { addDkimKey, type NewDkimKey } from './dkim-keys.ts';
import { type Page, type PageRequest, pageOf, position, toPage } from './page.ts';
import { type Followers, holdDomain, type IdentityStatus, setFollowers, wakeRivals } from './verification.ts';

export const identityKinds = ['email', 'domain'] as const;
export type IdentityKind = (typeof identityKinds)[number];

export const mailboxKinds = ['inbox', 'sent', 'spam', 'trash'] as const;

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

type ListedIdentity = Identity & { position: string };

/**
 * What is not proven is pending while it, or the domain of an address, is being looked at. Told when it is read and never
 * written: what is decided rests on `status` alone, and a look that is lost leaves nothing to put right.
 */
function shownStatus(sql: Sql) {
  // A scalar subquery, which PostgreSQL asks row by row: an `exists` it hashed, out of all owners' identities.
  return sql`
    case when identities.status in ('unverified', 'failed') and
      case when identities.domain_identity_id is null then identities.pending_until else (
        select proof.pending_until from identities as proof
        where proof.owner_id = identities.owner_id and proof.id = identities.domain_identity_id
      ) end > now()
    then 'pending' else identities.status end`;
}

/** What is verified never shows otherwise. */
function hasStatus(sql: Sql, status: IdentityStatus) {
  return status === 'verified' ? sql`status = 'verified'` : sql`${shownStatus(sql)} = ${status}`;
}

// Timestamps are formatted here because a Date would lose the microseconds.
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
  /** What proves a domain; null for an address. */
  proof: { token: string; dnsRecords: string; dkimKey: NewDkimKey; firstCheckSeconds: number } | null;
}

/** Undefined when the owner has it already. */
export function createIdentity(sql: Sql, ownerId: string, given: NewIdentity): Promise<Identity | undefined> {
  return transaction(sql, async (sql) => {
    // An address and its domain made at the same moment must see each other, or they stay unlinked.
    await holdOwner(sql, ownerId);
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

async function holdOwner(sql: Sql, ownerId: string): Promise<void> {
  await sql`select from users where id = ${ownerId} for no key update`;
}

/** Held as it is until the address that points to it is there: it might be about to lose its proof. */
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
  valueKey?: string | undefined;
}

export async function listIdentities(
  sql: Sql,
  ownerId: string,
  filter: IdentityFilter,
  page: PageRequest,
): Promise<Page<ListedIdentity>> {
  const rows = await sql<ListedIdentity[]>`
    select ${columns(sql)}, ${position(sql)}
    from identities
    where owner_id = ${ownerId}
      ${filter.kind ? sql`and kind = ${filter.kind}` : sql``}
      ${filter.status ? sql`and ${hasStatus(sql, filter.status)}` : sql``}
      ${filter.valueKey ? sql`and value_key = ${filter.valueKey}` : sql``}
      ${pageOf(sql, page, 'identities')}`;
  return toPage(rows, page);
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

/** Changes what is supplied and nothing else; nothing supplied leaves `updated_at` alone too. */
export async function updateIdentity(
  sql: Sql,
  ownerId: string,
  id: string,
  changes: IdentityChanges,
): Promise<Identity | undefined> {
  if (Object.keys(changes).length === 0) return findIdentity(sql, ownerId, id);
  const [row] = await sql<Identity[]>`
    update identities set ${assignments({ ...changes })}, updated_at = now()
    where owner_id = ${ownerId} and id = ${id}
    returning ${columns(sql)}`;
  return row;
}

/**
 * Its mailboxes and their sync state go with it, by the schema's cascades, and the webhooks restricted to it as when deleted.
 * Its mail goes in the background, however much it is. Tells which addresses lost their status; undefined when there is none.
 */
export function deleteIdentity(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<{ domain: string; followers: Followers } | undefined> {
  return transaction(sql, async (sql) => {
    // An address made at this moment must not point to a domain that is on its way out.
    await holdOwner(sql, ownerId);
    // A look at this domain, or at a rival's claim to it, locks some of the same rows in another order.
    const [known] = await sql<Pick<NewIdentity, 'kind' | 'domain'>[]>`
      select kind, domain from identities where owner_id = ${ownerId} and id = ${id}`;
    if (!known) return undefined;
    const { kind, domain } = known;
    if (kind === 'domain') await holdDomain(sql, domain);
    // What the addresses of a domain had from it, their status, they lose with it.
    const followers = await setFollowers(sql, { ownerId, id }, 'unverified');
    await sql`
      update identities set domain_identity_id = null, updated_at = now()
      where owner_id = ${ownerId} and domain_identity_id = ${id}`;
    await sql`
      update webhooks set deleted_at = now(), enabled = false, identity_id = null
      where owner_id = ${ownerId} and identity_id = ${id}`;
    const [gone] = await sql<Pick<Identity, 'status'>[]>`
      with gone as (
        delete from identities where owner_id = ${ownerId} and id = ${id} returning id, owner_id, status
      ), purge as (insert into identity_purges (identity_id, owner_id) select id, owner_id from gone)
      select status from gone`;
    if (!gone) return undefined;
    if (kind === 'domain' && gone.status === 'verified') await wakeRivals(sql, domain, id);
    return { domain, followers };
  });
}

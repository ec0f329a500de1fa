/** Identities as senders: which one may send from an address, and the DKIM keys of its domain. */
import type { Sql } from '../db/client.ts';
import type { IdentityKind } from './identities.ts';

/** The way that mail of an identity leaves by, and whether the identity is verified. */
export interface SenderWay {
  isVerified: boolean;
  /** The SMTP account that its mail leaves through: its own, or that of its domain. */
  accountId: string | null;
  /** The provider that its mail leaves through, if it has no account. */
  providerId: string | null;
  /** Its own account or provider, not that of its domain: it may send through it whatever its status. */
  hasOwnWay: boolean;
}

export interface Sender extends SenderWay {
  id: string;
  ownerId: string;
  publicId: string;
  kind: IdentityKind;
  value: string;
  /** Values are compared by this key. */
  valueKey: string;
  /** Its mailbox for sent mail. */
  sentId: string;
}

function columns(sql: Sql) {
  return sql`
    identities.id, identities.owner_id as "ownerId", public_id as "publicId", identities.kind, value, value_key as "valueKey",
    status = 'verified' as "isVerified", ${wayColumns(sql)},
    mailboxes.id as "sentId"`;
}

/** Of a row of `identities`: the way that its mail leaves by, where that is not the operator's. */
export function wayColumns(sql: Sql) {
  return sql`
    ${accountOf(sql)} as "accountId", ${providerOf(sql)} as "providerId",
    (identities.smtp_account_id is not null or identities.provider_id is not null) as "hasOwnWay"`;
}

/** Whether its mail leaves through an account or a provider. */
export function hasWay(sql: Sql) {
  return sql`coalesce(${accountOf(sql)}, ${providerOf(sql)}) is not null`;
}

/** Its own account, or that of its domain where it has no provider of its own. */
function accountOf(sql: Sql) {
  return sql`
    case
      when identities.smtp_account_id is not null then identities.smtp_account_id
      when identities.provider_id is null and identities.domain_identity_id is not null then (
        select domain_identity.smtp_account_id from identities as domain_identity
        where domain_identity.owner_id = identities.owner_id and domain_identity.id = identities.domain_identity_id)
    end`;
}

/** Its own provider, or that of its domain; null where an account comes first. */
function providerOf(sql: Sql) {
  return sql`
    case
      when identities.smtp_account_id is not null then null
      when identities.provider_id is not null then identities.provider_id
      when identities.domain_identity_id is not null then (
        select case when domain_identity.smtp_account_id is null then domain_identity.provider_id end
        from identities as domain_identity
        where domain_identity.owner_id = identities.owner_id and domain_identity.id = identities.domain_identity_id)
    end`;
}

function sentMailbox(sql: Sql) {
  return sql`join mailboxes on mailboxes.identity_id = identities.id and mailboxes.kind = 'sent'`;
}

export async function findSender(sql: Sql, ownerId: string, id: string): Promise<Sender | undefined> {
  const [row] = await sql<Sender[]>`
    select ${columns(sql)} from identities ${sentMailbox(sql)}
    where identities.owner_id = ${ownerId} and identities.id = ${id}`;
  return row;
}

/** The owner's identity of this address, or of its domain: the address wins. */
export async function findSenderOf(
  sql: Sql,
  ownerId: string,
  { addressKey, domain }: { addressKey: string; domain: string },
): Promise<Sender | undefined> {
  const [row] = await sql<Sender[]>`
    select ${columns(sql)} from identities ${sentMailbox(sql)}
    where identities.owner_id = ${ownerId}
      and (identities.kind = 'email' and value_key = ${addressKey} or identities.kind = 'domain' and value_key = ${domain})
    order by identities.kind = 'email' desc limit 1`;
  return row;
}

export interface SealedSigningKey {
  identityId: string;
  domain: string;
  selector: string;
  publicKey: string;
  /** Encrypted. */
  privateKey: Buffer;
  /** The last check found it in DNS. */
  wasPublished: boolean;
}

/** The keys of the owner's verified domain, the newest first. */
export async function findSigningKeys(
  sql: Sql,
  ownerId: string,
  domain: string,
): Promise<SealedSigningKey[]> {
  return sql<SealedSigningKey[]>`
    select identities.id as "identityId", value_key as domain, selector, public_key as "publicKey", private_key as "privateKey",
      coalesce((
        select bool_or(record ->> 'status' = 'valid') from json_array_elements(dns_records) record
        where record ->> 'purpose' = 'dkim' and starts_with(record ->> 'name', selector || '.')
      ), false) as "wasPublished"
    from identities join dkim_keys on dkim_keys.owner_id = identities.owner_id and dkim_keys.identity_id = identities.id
    where identities.owner_id = ${ownerId} and identities.kind = 'domain' and value_key = ${domain} and status = 'verified'
    order by dkim_keys.created_at desc, selector`;
}

export interface SigningDomain {
  domain: string;
  /** The oldest first. */
  keys: { selector: string; publicKey: string }[];
}

/** Verified domains of all owners, for the operator. */
export async function listSigningDomains(sql: Sql, limit: number): Promise<SigningDomain[]> {
  const rows = await sql<{ domain: string; selectors: string[]; publicKeys: string[] }[]>`
    select value_key as domain, array_agg(selector order by dkim_keys.created_at, selector) as selectors,
      array_agg(public_key order by dkim_keys.created_at, selector) as "publicKeys"
    from identities join dkim_keys on dkim_keys.owner_id = identities.owner_id and dkim_keys.identity_id = identities.id
    where identities.kind = 'domain' and status = 'verified'
    group by value_key order by value_key limit ${limit}`;
  return rows.map(({ domain, selectors, publicKeys }) => ({
    domain,
    keys: selectors.map((selector, n) => ({ selector, publicKey: publicKeys[n] ?? '' })),
  }));
}

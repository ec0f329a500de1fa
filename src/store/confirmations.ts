/**
 * Addresses that are confirmed by mail: the mails that were asked for, and what their links change. Guarantees: a mail is queued in
 * the transaction that counts it; the limits hold for all processes together; a link confirms once; of the owners who confirmed
 * an address one is verified, and the others wait; nobody is verified by mail at a domain of another owner.
 */
import { type Sql, transaction } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { hashToken } from '../lib/tokens.ts';
import type { Lease } from '../queue/leases.ts';
import { leasedRows } from './queue-rows.ts';
import { lockUser } from './users.ts';
import { type IdentityRef, type IdentityStatus, lockDomain } from './verification.ts';

const perHour = 3;
const perDay = 5;
const perMailboxAndDay = 10;

interface ConfirmationRequest {
  /** For one owner and day; 0: no limit. */
  maxAddresses: number;
  laneOf(address: string): string;
  hashFor(id: string): Buffer;
}

/**
 * Queues a confirmation mail. `not_needed`: the address is verified, or confirmed and waiting for another owner. Undefined: the owner
 * has no such address.
 */
export function requestConfirmation(
  sql: Sql,
  { ownerId, id: identityId }: IdentityRef,
  { maxAddresses, laneOf, hashFor }: ConfirmationRequest,
): Promise<'queued' | 'not_needed' | { waitSeconds: number } | undefined> {
  return transaction(sql, async (sql) => {
    await lockUser(sql, ownerId);
    const [address] = await sql<{ value: string; key: string; isDone: boolean }[]>`
      select value, value_key as key, status = 'verified' or confirmed_at is not null as "isDone"
      from identities where owner_id = ${ownerId} and id = ${identityId} and kind = 'email'`;
    if (!address || address.isDone) return address && 'not_needed';
    const mailbox = mailboxOf(address.key);
    await sql`select pg_advisory_xact_lock(hashtextextended(${`confirmation ${mailbox}`}, 0))`;
    const limited = await findLimit(sql, ownerId, mailbox, maxAddresses);
    if (limited) return limited;
    const id = newId();
    await sql`
      with asked as (
        insert into confirmations (id, owner_id, identity_id, address_key, token_hash, expires_at)
        values (${id}, ${ownerId}, ${identityId}, ${mailbox}, ${hashFor(id)}, now() + interval '24 hours')
        returning expires_at
      ), queued as (
        insert into send_queue (id, owner_id, lane_id, message_id, n)
        values (${newId()}, ${ownerId}, ${laneOf(address.value)}, ${id}, 0)
      )
      update identities
      set pending_until = asked.expires_at, updated_at = now(),
        -- An address that failed because of another owner starts again. An address of the owner's own domain has its status.
        status = case when domain_identity_id is null then 'unverified' else status end
      from asked where owner_id = ${ownerId} and identities.id = ${identityId}`;
    return 'queued';
  });
}

/** Without the `+tag`: most servers put the mail to all tags of an address into one mailbox, and the limits protect that mailbox. */
function mailboxOf(key: string): string {
  return key.replace(/^([^+]+)\+.*(?=@)/, '$1');
}

/** A statement of its own after the locks, so that it counts what the transactions that had them before committed. */
async function findLimit(
  sql: Sql,
  ownerId: string,
  mailbox: string,
  maxAddresses: number,
): Promise<{ waitSeconds: number } | undefined> {
  const ofOwner = sql`from confirmations where owner_id = ${ownerId} and address_key`;
  const newest = (limit: number) => sql`order by created_at desc offset ${limit - 1} limit 1`;
  // Not now(): this transaction began before it waited for the locks, perhaps before the requests that it counts.
  const now = sql`statement_timestamp()`;
  const [row] = await sql<{ waitSeconds: number }[]>`
    select ceil(extract(epoch from max(free_at) - ${now}))::int as "waitSeconds" from (
      (select created_at + interval '1 hour' as free_at ${ofOwner} = ${mailbox} ${newest(perHour)})
      union all
      (select created_at + interval '1 day' ${ofOwner} = ${mailbox} ${newest(perDay)})
      union all
      (select created_at + interval '1 day' from confirmations where address_key = ${mailbox} ${newest(perMailboxAndDay)})
      union all
      (select created_at + interval '1 day' from (
        select max(created_at) as created_at ${ofOwner} <> ${mailbox} group by address_key
      ) others where ${maxAddresses > 0} ${newest(Math.max(1, maxAddresses))})
    ) limits
    having max(free_at) > ${now}`;
  return row && { waitSeconds: Math.max(1, row.waitSeconds) };
}

/** A mail that waits in the queue. */
export interface ConfirmationMail {
  /** Of the row in the queue. */
  sendId: string;
  id: string;
  identityId: string;
  address: string;
  domain: string;
  tokenHash: Buffer;
  createdAt: Date;
}

/** Only those whose link can still be used. Not by owner: the loop works for all users, on ids that it claimed. */
export async function readConfirmationMails(
  sql: Sql,
  sendIds: readonly string[],
): Promise<ConfirmationMail[]> {
  return sql<ConfirmationMail[]>`
    select send_queue.id as "sendId", confirmations.id, identities.id as "identityId", identities.value as address,
      identities.domain, token_hash as "tokenHash", confirmations.created_at as "createdAt"
    from send_queue
    join confirmations on confirmations.id = send_queue.message_id
    join identities on identities.owner_id = confirmations.owner_id and identities.id = confirmations.identity_id
    where send_queue.id = any (${sendIds}::uuid[]) and used_at is null and expires_at > now()`;
}

/** Records the tries whose lease is still ours. Returns their ids in the queue. */
export async function recordConfirmationMails(
  sql: Sql,
  tries: readonly (Lease & { status: string; waitSeconds: number | null })[],
): Promise<string[]> {
  const ended = tries.filter(({ status }) => status !== 'queued');
  const putOff = tries.filter(({ status }) => status === 'queued');
  const rows = await sql<{ id: string }[]>`
    with ended as (
      delete from send_queue where ${leasedRows(sql, ended)} returning id
    ), put_off as (
      update send_queue
      set ready = false, tries = tries + 1, next_attempt_at = now() + (
          select seconds from unnest(${putOff.map(({ id }) => id)}::uuid[],
            ${putOff.map(({ waitSeconds }) => waitSeconds)}::float8[]) as wait (id, seconds) where wait.id = send_queue.id
        ) * interval '1 second',
        lease_token = null, lease_until = null
      where ${leasedRows(sql, putOff)} returning id
    )
    select id from ended union all select id from put_off`;
  return rows.map(({ id }) => id);
}

interface OpenConfirmation {
  id: string;
  ownerId: string;
  identityId: string;
  address: string;
  key: string;
  domain: string;
}

/** Not by owner: the token is the permission. Undefined: it is unknown, used or too old, or the identity was deleted. */
export async function findConfirmation(sql: Sql, token: string): Promise<OpenConfirmation | undefined> {
  const [row] = await sql<OpenConfirmation[]>`
    select confirmations.id, confirmations.owner_id as "ownerId", identity_id as "identityId", value as address,
      value_key as key, domain
    from confirmations
    join identities on identities.owner_id = confirmations.owner_id and identities.id = confirmations.identity_id
    where token_hash = ${hashToken(token)} and used_at is null and expires_at > now()`;
  return row;
}

/** A change of status, for the log. */
export interface ChangedAddress extends IdentityRef {
  address: string;
  domain: string;
  from: IdentityStatus;
  to: IdentityStatus;
}

/** `other_domain`: another owner is verified for the domain; the link stays valid. */
export function confirmAddress(
  sql: Sql,
  token: string,
): Promise<ChangedAddress | 'other_domain' | undefined> {
  return transaction(sql, async (sql) => {
    const found = await findConfirmation(sql, token);
    if (!found) return undefined;
    const { ownerId, identityId, key, domain } = found;
    await lockDomain(sql, domain);
    const others = sql`owner_id <> ${ownerId} and status = 'verified'`;
    const [holder] = await sql`
      select from identities where kind = 'domain' and value_key = ${domain} and ${others}`;
    if (holder) return 'other_domain';
    const used = await sql`
      update confirmations set used_at = now()
      where owner_id = ${ownerId} and address_key = any (${[key, mailboxOf(key)]}::text[]) and identity_id = ${identityId} and used_at is null
      returning id`;
    if (!used.some(({ id }) => id === found.id)) return undefined;
    const [changed] = await sql<ChangedAddress[]>`
      update identities
      set confirmed_at = now(), pending_until = null, updated_at = now(), status = case when exists (
        select from identities where kind = 'email' and value_key = ${key} and ${others}
      ) then 'pending' else 'verified' end
      from identities as before
      where identities.owner_id = ${ownerId} and identities.id = ${identityId} and before.id = identities.id
      returning ${changedColumns(sql)}`;
    return changed;
  });
}

function changedColumns(sql: Sql) {
  return sql`
    identities.id, identities.owner_id as "ownerId", identities.value as address, identities.domain,
    before.status as "from", identities.status as "to"`;
}

/** For an address whose holder was deleted: verifies the owner who confirmed it first. The caller has locked the domain. */
export async function verifyNextConfirmed(
  sql: Sql,
  { domain, key }: { domain: string; key: string },
): Promise<ChangedAddress | undefined> {
  const [changed] = await sql<ChangedAddress[]>`
    update identities set status = 'verified', updated_at = now()
    from (
      select id, status from identities
      where domain = ${domain} and value_key = ${key} and confirmed_at is not null order by confirmed_at, id limit 1
    ) before
    where identities.id = before.id and identities.status <> 'verified'
    returning ${changedColumns(sql)}`;
  return changed;
}

/** For a domain whose owner is now verified: addresses that other owners confirmed there fail. The caller has locked the domain. */
export async function failConfirmedByOthers(
  sql: Sql,
  { domain, ownerId }: { domain: string; ownerId: string },
): Promise<ChangedAddress[]> {
  return sql<ChangedAddress[]>`
    update identities set status = 'failed', confirmed_at = null, updated_at = now()
    from identities as before
    where identities.domain = ${domain} and identities.confirmed_at is not null and identities.owner_id <> ${ownerId}
      and before.id = identities.id
    returning ${changedColumns(sql)}`;
}

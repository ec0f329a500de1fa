/** Finds the identities that may receive mail for a recipient. Not by owner: a sender knows only the address. */
import type { Sql } from '../db/client.ts';
import type { IdentityKind } from './identities.ts';

export interface Receiver {
  id: string;
  ownerId: string;
  publicId: string;
  kind: IdentityKind;
  value: string;
  /** Values are compared by this key. */
  valueKey: string;
  verified: boolean;
  inboxId: string;
  spamId: string;
}

/**
 * Identities of these addresses, and of the domain if it is a catch-all domain. `ownerId` restricts them to one owner. `isVouched`: the
 * identity receives whatever its status, because the server that holds its mailbox vouches for the mail.
 */
export async function findReceivers(
  sql: Sql,
  keys: { addresses: readonly string[]; domain: string },
  ownerId?: string,
  isVouched = false,
): Promise<Receiver[]> {
  // Three values instead of an array: PostgreSQL guesses ten elements for an unknown array, finds the generic plan dear, and
  // plans the query anew at every call, which costs eight times as much as running it.
  const [address, withoutTag = null] = keys.addresses;
  return sql<Receiver[]>`
    select receiver.id, receiver.owner_id as "ownerId", public_id as "publicId", receiver.kind, value,
      value_key as "valueKey", status = 'verified' as verified, inbox.id as "inboxId", spam.id as "spamId"
    -- Two of each value are enough, and anyone could create many.
    from (values (${address ?? null}::text), (${withoutTag}::text), (${keys.domain}::text)) as named (key) cross join lateral (
      select id, owner_id, public_id, kind, value, value_key, status from identities
      where value_key = named.key and (kind = 'email' or incoming_domain)
        ${isVouched ? sql`` : sql`and (status = 'verified' or ${isDomainFree(sql)})`}
        ${ownerId === undefined ? sql`` : sql`and owner_id = ${ownerId}`}
      order by status = 'verified' desc limit 2
    ) receiver
    join mailboxes inbox on inbox.identity_id = receiver.id and inbox.kind = 'inbox'
    join mailboxes spam on spam.identity_id = receiver.id and spam.kind = 'spam'`;
}

/** An identity whose mailbox another server holds. */
export interface MailboxOwner extends Receiver {
  sentId: string;
}

/** Whatever its status: the server of its mailbox vouches for the mail. */
export async function findMailboxOwner(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<MailboxOwner | undefined> {
  const [row] = await sql<MailboxOwner[]>`
    select identities.id, identities.owner_id as "ownerId", public_id as "publicId", identities.kind, value,
      value_key as "valueKey", status = 'verified' as verified, inbox.id as "inboxId", spam.id as "spamId", sent.id as "sentId"
    from identities
    join mailboxes inbox on inbox.identity_id = identities.id and inbox.kind = 'inbox'
    join mailboxes spam on spam.identity_id = identities.id and spam.kind = 'spam'
    join mailboxes sent on sent.identity_id = identities.id and sent.kind = 'sent'
    where identities.owner_id = ${ownerId} and identities.id = ${id}`;
  return row;
}

/** An identity that is not verified gets no mail if another user is verified for its domain. */
export function isDomainFree(sql: Sql) {
  return sql`
    not exists (
      select from identities holder
      where holder.kind = 'domain' and holder.value_key = identities.domain and holder.status = 'verified'
        and holder.owner_id <> identities.owner_id
    )`;
}

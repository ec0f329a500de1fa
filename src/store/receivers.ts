/** Identities as the mail door sees them: who may get a recipient's mail. Not by owner: the world knows addresses only. */
import type { Sql } from '../db/client.ts';
import type { IdentityKind } from './identities.ts';

export interface Receiver {
  id: string;
  ownerId: string;
  publicId: string;
  kind: IdentityKind;
  value: string;
  /** What values are compared by. */
  valueKey: string;
  verified: boolean;
  inboxId: string;
  spamId: string;
}

/** Holders of these addresses, and of the domain where it takes all its mail; of one owner, where one is named. */
export async function findReceivers(
  sql: Sql,
  keys: { addresses: readonly string[]; domain: string },
  ownerId?: string,
): Promise<Receiver[]> {
  return sql<Receiver[]>`
    select identities.id, identities.owner_id as "ownerId", public_id as "publicId", identities.kind, value,
      value_key as "valueKey", status = 'verified' as verified, inbox.id as "inboxId", spam.id as "spamId"
    from identities
    join mailboxes inbox on inbox.identity_id = identities.id and inbox.kind = 'inbox'
    join mailboxes spam on spam.identity_id = identities.id and spam.kind = 'spam'
    where value_key = any (${[...keys.addresses, keys.domain]}::text[])
      and (identities.kind = 'email' or incoming_domain)
      ${ownerId === undefined ? sql`` : sql`and identities.owner_id = ${ownerId}`}
    -- A contested address has few claimants worth telling apart, and an attacker may make many.
    order by verified desc limit 50`;
}

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
    select claimant.id, claimant.owner_id as "ownerId", public_id as "publicId", claimant.kind, value,
      value_key as "valueKey", status = 'verified' as verified, inbox.id as "inboxId", spam.id as "spamId"
    -- Of each value two: more do not matter, and anyone may make many.
    from unnest(${[...keys.addresses, keys.domain]}::text[]) as named (key) cross join lateral (
      select id, owner_id, public_id, kind, value, value_key, status from identities
      where value_key = named.key and (kind = 'email' or incoming_domain)
        -- Nor one without proof at a domain that another owner has proven.
        and (status = 'verified' or not exists (
          select from identities proven
          where proven.kind = 'domain' and proven.value_key = identities.domain and proven.status = 'verified'
            and proven.owner_id <> identities.owner_id
        ))
        ${ownerId === undefined ? sql`` : sql`and owner_id = ${ownerId}`}
      order by status = 'verified' desc limit 2
    ) claimant
    join mailboxes inbox on inbox.identity_id = claimant.id and inbox.kind = 'inbox'
    join mailboxes spam on spam.identity_id = claimant.id and spam.kind = 'spam'`;
}

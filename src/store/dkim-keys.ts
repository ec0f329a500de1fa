/** DKIM keys of domain identities. The private keys are encrypted. */
import type { Sql } from '../db/client.ts';
import type { IdentityRef } from './verification.ts';

export interface NewDkimKey {
  selector: string;
  publicKey: string;
  /** Encrypted. */
  privateKey: Buffer;
}

/** The context that the private key is encrypted with. */
export function dkimContext(identityId: string, selector: string): string {
  return `dkim ${identityId} ${selector}`;
}

export async function addDkimKey(sql: Sql, { ownerId, id }: IdentityRef, key: NewDkimKey): Promise<void> {
  await sql`
    insert into dkim_keys (owner_id, identity_id, selector, public_key, private_key)
    values (${ownerId}, ${id}, ${key.selector}, ${key.publicKey}, ${key.privateKey})`;
}

/** Deletes the keys older than the key that a check found in DNS. */
export async function retireDkimKeys(
  sql: Sql,
  { ownerId, id }: IdentityRef,
  selector: string,
): Promise<void> {
  await sql`
    delete from dkim_keys
    where owner_id = ${ownerId} and identity_id = ${id} and created_at < (
      select created_at from dkim_keys
      where owner_id = ${ownerId} and identity_id = ${id} and selector = ${selector})`;
}

/** A new key cannot be replaced sooner, because making a key costs CPU time. */
const rotationSeconds = 60;

export async function findRotationWait(
  sql: Sql,
  { ownerId, id }: IdentityRef,
): Promise<{ waitSeconds: number } | undefined> {
  const [row] = await sql<{ waitSeconds: number }[]>`
    select ceil(${rotationSeconds} - extract(epoch from now() - max(created_at)))::int as "waitSeconds"
    from dkim_keys where owner_id = ${ownerId} and identity_id = ${id}
    having count(*) > 1 and max(created_at) > now() - ${rotationSeconds} * interval '1 second'`;
  return row;
}

/** Keeps the first key, which may be in use, and deletes later ones that no check has found in DNS. */
export async function dropUnseenDkimKeys(sql: Sql, { ownerId, id }: IdentityRef): Promise<void> {
  await sql`
    delete from dkim_keys
    where owner_id = ${ownerId} and identity_id = ${id} and created_at > (
      select min(created_at) from dkim_keys where owner_id = ${ownerId} and identity_id = ${id})`;
}

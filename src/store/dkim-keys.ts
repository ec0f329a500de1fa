/** DKIM keys of domain identities. The private part is sealed. */
import type { Sql } from '../db/client.ts';

export interface NewDkimKey {
  selector: string;
  publicKey: string;
  /** Sealed. */
  privateKey: Buffer;
}

export async function addDkimKey(
  sql: Sql,
  { ownerId, id }: { ownerId: string; id: string },
  key: NewDkimKey,
): Promise<void> {
  await sql`
    insert into dkim_keys (owner_id, identity_id, selector, public_key, private_key)
    values (${ownerId}, ${id}, ${key.selector}, ${key.publicKey}, ${key.privateKey})`;
}

/** The one that was seen in DNS stays; those before it go. */
export async function retireDkimKeys(
  sql: Sql,
  { ownerId, id }: { ownerId: string; id: string },
  selector: string,
): Promise<void> {
  await sql`
    delete from dkim_keys
    where owner_id = ${ownerId} and identity_id = ${id} and created_at < (
      select created_at from dkim_keys
      where owner_id = ${ownerId} and identity_id = ${id} and selector = ${selector})`;
}

/** One that was not seen in DNS yet is not replaced within so much time: to make one takes work. */
const rotationSeconds = 60;

/** How long a new key has to wait, if at all. */
export async function findRotationWait(
  sql: Sql,
  { ownerId, id }: { ownerId: string; id: string },
): Promise<{ waitSeconds: number } | undefined> {
  const [row] = await sql<{ waitSeconds: number }[]>`
    select ceil(${rotationSeconds} - extract(epoch from now() - max(created_at)))::int as "waitSeconds"
    from dkim_keys where owner_id = ${ownerId} and identity_id = ${id}
    having count(*) > 1 and max(created_at) > now() - ${rotationSeconds} * interval '1 second'`;
  return row;
}

/** The first stays, which may be in use; those after it were to replace it and have not been seen yet. */
export async function dropUnseenDkimKeys(
  sql: Sql,
  { ownerId, id }: { ownerId: string; id: string },
): Promise<void> {
  await sql`
    delete from dkim_keys
    where owner_id = ${ownerId} and identity_id = ${id} and created_at > (
      select min(created_at) from dkim_keys where owner_id = ${ownerId} and identity_id = ${id})`;
}

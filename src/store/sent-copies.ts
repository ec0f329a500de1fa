/** Copies of messages that left through an SMTP account, for its Sent folder. Guarantee: a copy is taken once. */
import type { Sql } from '../db/client.ts';
import type { StoredRaw } from './messages.ts';

/** The oldest message that is still to be copied. */
export async function findCopy(sql: Sql, ownerId: string, accountId: string): Promise<StoredRaw | undefined> {
  const [row] = await sql<StoredRaw[]>`
    select messages.owner_id as "ownerId", messages.id, raw_id as "rawId", size, sha256
    from outgoing join messages on messages.id = outgoing.id
    where outgoing.owner_id = ${ownerId} and copy_account_id = ${accountId} and is_copy_due
    order by outgoing.created_at limit 1`;
  return row;
}

/** False: another process has taken it. Commits before the message is appended: a second copy is worse than none. */
export async function takeCopy(sql: Sql, ownerId: string, id: string): Promise<boolean> {
  const taken = await sql`
    update outgoing set is_copy_due = false where owner_id = ${ownerId} and id = ${id} and is_copy_due`;
  return taken.count > 0;
}

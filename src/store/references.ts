/** Checks that an id in a request body belongs to the owner. */
import type { Sql } from '../db/client.ts';
import { identifier } from '../db/sql.ts';

export type ReferencedTable = 'identities' | 'providers' | 'smtp_accounts';

export async function isOwned(
  sql: Sql,
  ownerId: string,
  table: ReferencedTable,
  id: string,
): Promise<boolean> {
  const rows = await sql`select 1 from ${identifier(table)} where owner_id = ${ownerId} and id = ${id}`;
  return rows.count > 0;
}

/** Addresses that an owner's mail no longer goes to: they bounced for good, complained, or the owner said so. */
import type { Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { collectPage, type Listed, type Page, type PageRequest, pageOf, position } from './page.ts';

export const suppressionReasons = ['bounce', 'complaint', 'manual'] as const;
type SuppressionReason = (typeof suppressionReasons)[number];

export interface Suppression {
  address: string;
  reason: SuppressionReason;
  messageId: string | null;
  createdAt: string;
}

export interface NewSuppression {
  ownerId: string;
  address: string;
  addressKey: string;
  reason: SuppressionReason;
  messageId: string | null;
}

function columns(sql: Sql) {
  return sql`address, reason, message_id as "messageId", iso_time(suppressions.created_at) as "createdAt"`;
}

/** An address that is suppressed already stays as it is. */
export async function suppress(sql: Sql, given: readonly NewSuppression[]): Promise<void> {
  if (given.length === 0) return;
  const column = <Key extends keyof NewSuppression>(key: Key) => given.map((one) => one[key]);
  await sql`
    insert into suppressions (owner_id, address_key, address, reason, message_id, id)
    select * from unnest(${column('ownerId')}::uuid[], ${column('addressKey')}::text[], ${column('address')}::text[],
      ${column('reason')}::text[], ${column('messageId')}::uuid[], ${given.map(newId)}::uuid[])
    -- Two statements that suppress the same addresses wait for each other, but never in a circle.
    order by 1, 2
    on conflict (owner_id, address_key) do nothing`;
}

export async function findSuppression(
  sql: Sql,
  ownerId: string,
  addressKey: string,
): Promise<Suppression | undefined> {
  const [row] = await sql<Suppression[]>`
    select ${columns(sql)} from suppressions where owner_id = ${ownerId} and address_key = ${addressKey}`;
  return row;
}

export function listSuppressions(
  sql: Sql,
  ownerId: string,
  page: PageRequest,
): Promise<Page<Listed<Suppression & { id: string }>>> {
  return collectPage(
    page,
    (step) => sql<Listed<Suppression & { id: string }>[]>`
      select id, ${columns(sql)}, ${position(sql)} from suppressions
      where owner_id = ${ownerId} ${pageOf(sql, step)}`,
  );
}

/** Undefined if the address is not suppressed. */
export async function deleteSuppression(
  sql: Sql,
  ownerId: string,
  addressKey: string,
): Promise<true | undefined> {
  const deleted = await sql`
    delete from suppressions where owner_id = ${ownerId} and address_key = ${addressKey}`;
  return deleted.count > 0 || undefined;
}

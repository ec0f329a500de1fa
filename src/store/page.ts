/**
 * Keyset pagination, newest first. A page starts after a position (time of creation, id) and not at an offset, so rows that are
 * added or deleted between two pages neither repeat nor hide others.
 */
import type { Sql } from '../db/client.ts';
import { identifier } from '../db/sql.ts';

export interface Position {
  /** `created_at` in microseconds since 1970. */
  at: string;
  id: string;
}

export interface PageRequest {
  limit: number;
  after: Position | null;
}

export type Listed<Row> = Row & { position: string };

export interface Page<Row> {
  rows: Row[];
  /** Where the next page starts; null on the last page. */
  next: Position | null;
}

/**
 * The end of the WHERE clause of a list, its order, and a limit of one extra row, which shows that there is a next page. Pass
 * `table` if the query selects a text named `created_at`: ordering by the bare name would use that text, which has no index.
 */
export function pageOf(sql: Sql, page: PageRequest, table?: string) {
  const after = page.after
    ? sql`and (created_at, id) <
        (timestamptz 'epoch' + ${page.after.at}::bigint * interval '1 microsecond', ${page.after.id}::uuid)`
    : sql``;
  const createdAt = table === undefined ? sql`created_at` : sql`${identifier(table)}.created_at`;
  return sql`${after} order by ${createdAt} desc, id desc limit ${page.limit + 1}`;
}

export function position(sql: Sql) {
  return sql`(extract(epoch from created_at) * 1000000)::bigint::text as position`;
}

export function toPage<Row extends Listed<{ id: string }>>(rows: Row[], page: PageRequest): Page<Row> {
  const shown = rows.slice(0, page.limit);
  const last = shown.at(-1);
  const more = rows.length > page.limit && last;
  return { rows: shown, next: more ? { at: last.position, id: last.id } : null };
}

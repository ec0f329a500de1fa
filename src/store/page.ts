/**
 * Keyset paging, newest first: a page begins after a position (time of creation, id) and not at an offset, so rows
 * that come or go meanwhile neither repeat nor hide others.
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

export interface Page<Row> {
  rows: Row[];
  /** Where the next page begins; null on the last one. */
  next: Position | null;
}

/**
 * The end of a list query's WHERE clause, its order, and one row more than asked, which tells whether there are more. `table` is
 * for those that show a `created_at`: the bare name would mean that text, which no index has.
 */
export function pageOf(sql: Sql, page: PageRequest, table?: string) {
  const after = page.after
    ? sql`and (created_at, id) <
        (timestamptz 'epoch' + ${page.after.at}::bigint * interval '1 microsecond', ${page.after.id}::uuid)`
    : sql``;
  const createdAt = table === undefined ? sql`created_at` : sql`${identifier(table)}.created_at`;
  return sql`${after} order by ${createdAt} desc, id desc limit ${page.limit + 1}`;
}

/** What list queries select beside what they show. */
export function position(sql: Sql) {
  return sql`(extract(epoch from created_at) * 1000000)::bigint::text as position`;
}

export function toPage<Row extends { id: string; position: string }>(
  rows: Row[],
  page: PageRequest,
): Page<Row> {
  const shown = rows.slice(0, page.limit);
  const last = shown.at(-1);
  const more = rows.length > page.limit && last;
  return { rows: shown, next: more ? { at: last.position, id: last.id } : null };
}

/**
 * Keyset pagination, newest first. A page starts after a position (time of creation, id) and not at an offset, so rows that are
 * added or deleted between two pages neither repeat nor hide others. A page ends at its limit of rows, or at about 1 MiB.
 */
import type { Sql } from '../db/client.ts';
import { type Fragment, identifier, type Value } from '../db/sql.ts';

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

export const maxPageBytes = 1024 * 1024;

/**
 * Reads a page in steps of a few rows, so that rows beyond its end are not in memory, however large they are. `read` returns the
 * rows of one step.
 */
export async function collectPage<Row extends Listed<{ id: string }>>(
  page: PageRequest,
  read: (step: PageRequest) => Promise<Row[]>,
  stepRows = 50,
): Promise<Page<Row>> {
  const rows: Row[] = [];
  let bytes = 0;
  let { after } = page;
  for (;;) {
    // One row more than the page has shows that there is a next page.
    const limit = Math.min(stepRows, page.limit + 1 - rows.length);
    const found = await read({ limit, after });
    for (const row of found) {
      bytes += countBytes(row);
      const isFull = rows.length === page.limit || (rows.length > 0 && bytes > maxPageBytes);
      if (isFull) return { rows, next: after };
      rows.push(row);
      after = { at: row.position, id: row.id };
    }
    if (found.length < limit) return { rows, next: null };
  }
}

/** About the size of the row as JSON. Writing the JSON to count its bytes would cost five times as much. */
export function countBytes(row: object): number {
  let bytes = 0;
  for (const value of Object.values(row)) {
    if (typeof value === 'string') bytes += Buffer.byteLength(value);
    else if (typeof value === 'object' && value !== null) bytes += countBytes(value);
    bytes += 16;
  }
  return bytes;
}

/**
 * The end of the WHERE clause of a list, its order and its limit. Pass `table` if the query selects a text named `created_at`:
 * ordering by the bare name would use that text, which has no index.
 */
export function pageOf(sql: Sql, page: PageRequest, table?: string) {
  const after = page.after
    ? sql`and (created_at, id) <
        (${timeOf(sql, page.after)}, ${page.after.id}::uuid)`
    : sql``;
  const createdAt = table === undefined ? sql`created_at` : sql`${identifier(table)}.created_at`;
  return sql`${after} order by ${createdAt} desc, id desc limit ${page.limit}`;
}

/**
 * The same as `pageOf` for the rows that have these values in these columns, by an index that has the columns before the time and
 * the id. A row comparison, and not `=`: the planner knows nothing of rare values, and with `=` it may read another index that is
 * ordered by time, through all rows that have other values. Only the right index has the order of these columns.
 */
export function pageWithin(
  sql: Sql,
  page: PageRequest,
  table: string,
  values: Record<string, Value | Fragment>,
  since: string | undefined,
) {
  const names = Object.keys(values).map((name) => sql`${identifier(table)}.${identifier(name)}`);
  const columns = listOf(sql, names);
  const wanted = listOf(
    sql,
    Object.values(values).map((value) => sql`${value}`),
  );
  const time = sql`${identifier(table)}.created_at`;
  const id = sql`${identifier(table)}.id`;
  const before = page.after
    ? sql`${timeOf(sql, page.after)}, ${page.after.id}::uuid`
    : sql`timestamptz 'infinity', uuid 'ffffffff-ffff-ffff-ffff-ffffffffffff'`;
  const oldest = since ? sql`${since}::text::timestamptz` : sql`timestamptz '-infinity'`;
  return sql`
    and (${columns}, ${time}, ${id}) < (${wanted}, ${before}) and (${columns}, ${time}) >= (${wanted}, ${oldest})
    order by ${listOf(
      sql,
      [...names, time, id].map((column) => sql`${column} desc`),
    )} limit ${page.limit}`;
}

function listOf(sql: Sql, parts: Fragment[]): Fragment {
  return parts.reduce((list, next) => sql`${list}, ${next}`);
}

/**
 * The pages of several groups of rows, to be merged. `groups` is a FROM item, and `rows` selects the page of one group. So one index
 * serves several filters: a filter that is not given is a group for each of its values.
 */
export function pagesOf(sql: Sql, groups: Fragment, rows: Fragment) {
  return sql`select listed.* from ${groups} cross join lateral (${rows}) listed`;
}

/** The newest rows of all these pages. */
export function mergePages<Row>(sql: Sql, page: PageRequest, [first = sql``, ...others]: Fragment[]) {
  const all = others.reduce((pages, next) => sql`${pages} union all ${next}`, first);
  return sql<Listed<Row>[]>`
    select * from (${all}) merged order by position::bigint desc, id desc limit ${page.limit}`;
}

/** A FROM item `kinds (event)`: the events that occur in these rows. The arguments are those of `valuesOf`. */
export function kindsOf(sql: Sql, rows: Fragment, within: Record<string, Value | Fragment> = {}) {
  return sql`${valuesOf(sql, rows, within, 'event', sql`text ''`)} kinds`;
}

/**
 * A subquery: the values of a column in `rows`, a table with its conditions, among the rows that have the values `within`. It hops
 * from one value to the next along an index that has the columns of `within` before this column, so its cost does not grow with the
 * number of rows. It compares rows for the same reason as `pageWithin`. `lowest` is a value below all others.
 */
export function valuesOf(
  sql: Sql,
  rows: Fragment,
  within: Record<string, Value | Fragment>,
  column: string,
  lowest: Fragment,
) {
  const fixed = Object.entries(within).map(([name, value]) => ({ name: identifier(name), value }));
  const columns = listOf(sql, [...fixed.map(({ name }) => name), identifier(column)]);
  const last = listOf(sql, [...fixed.map(({ value }) => sql`${value}`), sql`found.value`]);
  const notBeyond = fixed.reduce((all, { name, value }) => sql`${all} and ${name} <= ${value}`, sql``);
  return sql`(
    with recursive found (value) as (
      select ${lowest}
      union all
      select (
        select ${identifier(column)} from ${rows} and (${columns}) > (${last}) ${notBeyond}
        order by ${columns} limit 1
      )
      from found where found.value is not null
    )
    select found.value as ${identifier(column)} from found where found.value > ${lowest}
  )`;
}

export function position(sql: Sql) {
  return sql`(extract(epoch from created_at) * 1000000)::bigint::text as position`;
}

export function timeOf(sql: Sql, { at }: Position) {
  return sql`(timestamptz 'epoch' + ${at}::bigint * interval '1 microsecond')`;
}

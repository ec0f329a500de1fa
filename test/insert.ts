import type { Sql } from '../src/db/client.ts';
import { Fragment, identifier, type Value } from '../src/db/sql.ts';

/** Rows as a test writes them down, past everything that guards the tables but the database itself. */
export async function insertRows(
  sql: Sql,
  table: string,
  rows: readonly Record<string, unknown>[],
): Promise<void> {
  for (const row of rows) {
    const names = Object.keys(row).map((name) => `"${name}"`);
    const places = [`(${names.join(', ')}) values (`, ...names.slice(1).map(() => ', '), ')'];
    const values = Object.values(row) as Value[];
    await sql`insert into ${identifier(table)} ${new Fragment(places, values)}`;
  }
}

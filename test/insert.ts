import { randomBytes } from 'node:crypto';
import type { Sql } from '../src/db/client.ts';
import { Fragment, identifier, type Value } from '../src/db/sql.ts';
import { newId } from '../src/lib/ids.ts';

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

/** A provider that can only be referred to: its credentials open under no key. */
export async function insertProvider(sql: Sql, ownerId: string): Promise<string> {
  const id = newId();
  const sealed = { credentials: randomBytes(40), hook_secret: randomBytes(40), hook_hash: randomBytes(32) };
  await insertRows(sql, 'providers', [{ id, owner_id: ownerId, kind: 'postmark', ...sealed }]);
  return id;
}

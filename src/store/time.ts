/** Times as the interface shows them. */
import type { Sql } from '../db/client.ts';

/** ISO 8601 in UTC with milliseconds. `column` is ours, never a caller's. */
export function isoTime(sql: Sql, column: string) {
  return sql`to_char(${sql.unsafe(column)} at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`;
}

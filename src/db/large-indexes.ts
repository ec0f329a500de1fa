/**
 * Indexes of tables that can be large when a database is upgraded. A migration that builds them blocks the service: a million messages
 * took 41 s. An empty database gets these indexes with its migrations. In other databases the service builds them while it runs; until
 * then some lists are slower. An index that replaces others is built before the others are dropped.
 */
import { isRefusal, only, type Pool, type Sql } from './client.ts';

export interface LargeIndex {
  name: string;
  /** Table, columns and options: what follows `on` in `create index`. */
  on: string;
  replaces?: readonly string[];
}

export const largeIndexes: readonly LargeIndex[] = [
  // The event stream and `GET /events`.
  { name: 'events_by_xact', on: 'events (owner_id, xact, id)', replaces: ['events_by_owner'] },
  { name: 'events_by_message', on: 'events (message_id) where message_id is not null' },
  // The direction comes before the time. A list of one direction is a range of the index; a list of both merges two ranges.
  {
    name: 'messages_by_direction',
    on: 'messages (owner_id, direction, created_at, id)',
    replaces: ['messages_by_owner'],
  },
  {
    name: 'messages_by_identity_and_direction',
    on: 'messages (owner_id, identity_id, direction, created_at, id)',
    replaces: ['messages_by_owner_and_identity'],
  },
  // The filter `thread_id`, which clients use each time they show a message. A thread can have thousands of messages, so the identity
  // comes before the time: both filters together read the messages of this identity alone.
  {
    name: 'messages_by_thread_and_direction',
    on: 'messages (owner_id, thread_id, identity_id, direction, created_at, id)',
    replaces: ['messages_by_thread'],
  },
  // `GET /deliveries`, with every filter.
  { name: 'ended_deliveries_of_owner', on: 'ended_deliveries (owner_id, event, status, created_at, id)' },
  // For retention: neither an event nor the queue knows the age of such a message.
  { name: 'messages_silent', on: 'messages (created_at) where is_silent' },
  // `GET /messages?q=`. Without "fastupdate": the message that fills its pending list would wait until the whole list is moved.
  {
    name: 'messages_by_words',
    on: 'messages using gin (word_slots(words, period_of(created_at))) with (fastupdate = off) where words is not null',
  },
];

/** Creates all of them if nothing is stored yet. Call it in a transaction that has the lock of migrations. */
export async function indexEmptyTables(sql: Sql): Promise<void> {
  const stored = await sql`
      (select from messages limit 1) union all (select from events limit 1) union all (select from ended_deliveries limit 1)`;
  if (stored.count > 0) return;
  for (const { name, on, replaces = [] } of await listUnbuilt(sql)) {
    await sql.script(`create index if not exists ${name} on ${on}`);
    for (const old of replaces) await sql.script(`drop index if exists ${old}`);
  }
}

/** The indexes that are missing or not valid, and those whose predecessors are not dropped yet. */
export async function listUnbuilt(sql: Sql): Promise<LargeIndex[]> {
  const rows = await sql<{ name: string; isValid: boolean }[]>`
    select relname as name, indisvalid as "isValid" from pg_index join pg_class on pg_class.oid = indexrelid
    where relnamespace = (select oid from pg_namespace where nspname = current_schema())`;
  const found = new Map(rows.map(({ name, isValid }) => [name, isValid]));
  return largeIndexes.filter(
    ({ name, replaces }) => !found.get(name) || replaces?.some((old) => found.has(old)),
  );
}

/** For a query that takes very long without this index. */
export async function isBuilt(sql: Sql, name: string): Promise<boolean> {
  const built = await sql`select from pg_index where indexrelid = to_regclass(${name}) and indisvalid`;
  return built.count > 0;
}

/**
 * Builds an index while the table is used. `by another`: another process is building an index. The pool must have one connection,
 * which has the lock, and no statement timeout.
 */
export async function buildIndex(
  sql: Pool,
  { name, on, replaces = [] }: LargeIndex,
): Promise<'built' | 'by another'> {
  // Without the lock, two builds on one table wait for each other until PostgreSQL ends one of them as a deadlock.
  const lock = sql`hashtext('posthorn indexes')`;
  const { isOurs } = only(await sql<{ isOurs: boolean }[]>`select pg_try_advisory_lock(${lock}) as "isOurs"`);
  if (!isOurs) return 'by another';
  try {
    const [found] = await sql<{ isValid: boolean }[]>`
      select indisvalid as "isValid" from pg_index where indexrelid = to_regclass(${name})`;
    // PostgreSQL keeps an index whose build was interrupted, as not valid.
    if (found && !found.isValid) await sql.script(`drop index concurrently if exists ${name}`);
    if (!found?.isValid)
      await sql.script(`create index concurrently if not exists ${name} on ${on}`).catch(async (error) => {
        // The unfinished index would take disk space until the next try. After a lost connection the lock is lost too, and another process
        // may be building the index.
        if (isRefusal(error)) await sql.script(`drop index concurrently if exists ${name}`).catch(() => {});
        throw error;
      });
    for (const old of replaces) await sql.script(`drop index concurrently if exists ${old}`);
    return 'built';
  } finally {
    await sql`select pg_advisory_unlock(${lock})`;
  }
}

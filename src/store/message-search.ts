/** `GET /messages?q=`: the newest messages that have all these words. */
import type { Sql } from '../db/client.ts';
import { isBuilt } from '../db/large-indexes.ts';
import type { Fragment } from '../db/sql.ts';
import {
  asksForSent,
  groupsOf,
  type ListedMessage,
  type MessageFilter,
  summariesAtOnce,
} from './message-lists.ts';
import { identityExists, madeWith } from './messages.ts';
import {
  collectPage,
  type Listed,
  mergePages,
  type Page,
  type PageRequest,
  type Position,
  pagesOf,
  pageWithin,
  position,
  timeOf,
} from './page.ts';
import { sendingOfMessage } from './sending-json.ts';
import { wordKey } from './words.ts';

type FoundId = Listed<{ id: string }>;

/** Enough for a page of words that every tenth message has: for these, the index would give far more than a page. */
const recentRows = 1000;

/** The search would read too many messages, because its index is not built yet. */
export class SearchNotReady extends Error {}

/** `maxReadWithoutIndex`: how many messages a search reads one after the other while its index is not built. */
export async function searchMessages(
  sql: Sql,
  ownerId: string,
  words: readonly string[],
  filter: MessageFilter,
  page: PageRequest,
  maxReadWithoutIndex = 100_000,
): Promise<Page<ListedMessage>> {
  if (asksForSent(filter) && filter.direction === 'incoming') return { rows: [], next: null };
  const direction = asksForSent(filter) ? 'outgoing' : filter.direction;
  const search: Search = {
    ...{ ownerId, maxReadWithoutIndex },
    keys: words.map((word) => wordKey(ownerId, word)),
    filter: { ...filter, direction },
  };
  const found = await findIds(sql, search, { ...page, limit: page.limit + 1 });
  const collected = await collectPage(page, (part) => readFound(sql, ownerId, found, part), summariesAtOnce);
  // All that was found was read. Messages that are deleted at this moment must not look like the end of the list.
  const last = found.length > page.limit && collected.next === null ? found.at(-1) : undefined;
  return last ? { ...collected, next: { at: last.position, id: last.id } } : collected;
}

interface Search {
  ownerId: string;
  keys: readonly bigint[];
  filter: MessageFilter;
  maxReadWithoutIndex: number;
}

/**
 * The newest messages are read whatever their words, and the older ones by the index of words. Where all messages are among the
 * newest, the index is not used: mail of other owners shares its slots. While the index is not built, more messages are read.
 */
async function findIds(sql: Sql, search: Search, { limit, after }: PageRequest): Promise<FoundId[]> {
  const newest = await findAmongNext(sql, search, { limit, after }, recentRows);
  if (newest.found.length === limit || !newest.last) return newest.found;
  const next = { limit: limit - newest.found.length, after: newest.last };
  if (await isBuilt(sql, 'messages_by_words'))
    return [...newest.found, ...(await findByPeriod(sql, search, next))];
  const older = await findAmongNext(sql, search, next, search.maxReadWithoutIndex);
  if (older.found.length < next.limit && older.last) throw new SearchNotReady();
  return [...newest.found, ...older.found];
}

interface NextRead {
  found: FoundId[];
  /** The oldest message that was read; null if there are no older ones. */
  last: Position | null;
}

/** Reads the next messages after a position that have the identity, thread and direction, and returns those that have the words. */
async function findAmongNext(
  sql: Sql,
  search: Search,
  { limit, after }: PageRequest,
  maxRead: number,
): Promise<NextRead> {
  const { ownerId, keys, filter } = search;
  const next = { limit: maxRead, after };
  const { groups, values } = groupsOf(sql, ownerId, filter);
  const ofOwner = sql`
    select id, ${position(sql)} from messages
    where owner_id = ${ownerId} ${pageWithin(sql, next, 'messages', values, filter.since)}`;
  const read = await sql<(FoundId & { isLast: boolean })[]>`
    with next as materialized (${mergePages(sql, next, [pagesOf(sql, groups, ofOwner)])})
    (
      select messages.id, next.position, false as "isLast" from next cross join lateral (
        select * from messages
        where messages.id = next.id and words @> ${keys}::bigint[]
        offset 0
      ) messages
      where ${isWanted(sql, search)}
      order by messages.created_at desc, messages.id desc limit ${limit}
    )
    union all
    (select id, position, true from next order by position::bigint desc, id desc offset ${maxRead - 1})`;
  const last = read.find(({ isLast }) => isLast);
  return {
    found: read.filter(({ isLast }) => !isLast),
    last: last ? { at: last.position, id: last.id } : null,
  };
}

/**
 * Period by period (`words.ts`), the newest first, until the page is full: the loop ends at the limit, because nothing sorts its result.
 * The messages of a period are found by the index of words alone; the planner, which knows nothing of rare words, would take another.
 */
function findByPeriod(
  sql: Sql,
  search: Search,
  { limit, after }: { limit: number; after: Position },
): Promise<FoundId[]> {
  const { ownerId, keys, filter } = search;
  const newest = timeOf(sql, after);
  const since = filter.since ? sql`${filter.since}::text::timestamptz` : sql`timestamptz '-infinity'`;
  const { groups } = groupsOf(sql, ownerId, { direction: filter.direction });
  return sql<FoundId[]>`
    with oldest as materialized (
      select greatest(min(first.created_at), ${since}) as at from ${groups} cross join lateral (
        select created_at from messages
        where owner_id = ${ownerId} and (direction, created_at) >= (directions.direction, timestamptz '-infinity')
        order by direction, created_at limit 1
      ) first
      having count(*) > 0
    )
    select listed.id, listed.position
    from oldest
    cross join lateral generate_series(period_of(${newest}), period_of(oldest.at), -1) as periods (period)
    -- The same as word_slots(), which PostgreSQL does not inline: a period costs 4 µs instead of 13.
    cross join lateral (
      select array(
        select (period % 768 * 32768 + (key & 32767))::int from unnest(${keys}::bigint[]) as word (key)
      ) as slots offset 0
    ) wanted
    cross join lateral (
      with messages as materialized (
        select id, owner_id, identity_id, thread_id, direction, created_at from messages
        where word_slots(words, period_of(created_at)) @> wanted.slots and words is not null
          and words @> ${keys}::bigint[] and period_of(created_at) = periods.period
      )
      select id, ${position(sql)} from messages
      where ${isWanted(sql, search)} and created_at >= ${since} and (created_at, id) < (${newest}, ${after.id}::uuid)
      order by created_at desc, id desc limit ${limit}
    ) listed
    limit ${limit}`;
}

function isWanted(sql: Sql, { ownerId, filter }: Search): Fragment {
  const { identityId, threadId, direction, status, keyId } = filter;
  return sql`
    messages.owner_id = ${ownerId} and ${identityExists(sql)} ${madeWith(sql, keyId ?? null)}
    ${identityId ? sql`and messages.identity_id = ${identityId}` : sql``}
    ${threadId ? sql`and messages.thread_id = ${threadId}` : sql``}
    ${direction ? sql`and messages.direction = ${direction}` : sql``}
    ${status ? sql`and exists (select from outgoing where outgoing.id = messages.id and outgoing.status = ${status})` : sql``}`;
}

/** The part of what was found. Messages that were deleted meanwhile are left out. */
async function readFound(
  sql: Sql,
  ownerId: string,
  found: readonly FoundId[],
  { limit, after }: PageRequest,
): Promise<ListedMessage[]> {
  const rest = found.slice(found.findIndex(({ id }) => id === after?.id) + 1);
  const rows: ListedMessage[] = [];
  while (rows.length < limit && rest.length > 0) {
    const ids = rest.splice(0, limit - rows.length).map(({ id }) => id);
    rows.push(
      ...(await sql<ListedMessage[]>`
        select id, summary::text as summary, ${sendingOfMessage(sql)} as sending, ${position(sql)} from messages
        where owner_id = ${ownerId} and id = any (${ids}::uuid[]) order by created_at desc, id desc`),
    );
  }
  return rows;
}

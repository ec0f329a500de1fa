/** `GET /messages?q=`: the newest messages that have all these words. */
import type { Sql } from '../db/client.ts';
import { type Fragment, list } from '../db/sql.ts';
import { directions, type ListedMessage, type MessageFilter, summariesAtOnce } from './message-lists.ts';
import { identityExists, madeWith } from './messages.ts';
import {
  collectPage,
  type Listed,
  mergePages,
  type Page,
  type PageRequest,
  pagesOf,
  pageWithin,
  position,
} from './page.ts';
import { sendingOfMessage } from './sending-json.ts';
import { wordKey } from './words.ts';

type FoundId = Listed<{ id: string }>;

/** Enough for a page of words that every tenth message has: for these, the index would give far more than a page. */
const recentRows = 1000;

export async function searchMessages(
  sql: Sql,
  ownerId: string,
  words: readonly string[],
  filter: MessageFilter,
  page: PageRequest,
): Promise<Page<ListedMessage>> {
  const search = { ownerId, keys: words.map((word) => wordKey(ownerId, word)), filter };
  const step = { ...page, limit: page.limit + 1 };
  const recent = await findAmongRecent(sql, search, step);
  const found = recent.length === step.limit ? recent : await findByDay(sql, search, step);
  const collected = await collectPage(page, (part) => readFound(sql, ownerId, found, part), summariesAtOnce);
  const last = found[page.limit - 1];
  // A message that is deleted at this moment must not look like the end of the list.
  const isMore = found.length > page.limit && last && collected.next === null;
  return isMore ? { ...collected, next: { at: last.position, id: last.id } } : collected;
}

interface Search {
  ownerId: string;
  keys: readonly bigint[];
  filter: MessageFilter;
}

/** Of the newest messages of the owner, whatever their words. */
function findAmongRecent(sql: Sql, search: Search, step: PageRequest): Promise<FoundId[]> {
  const { ownerId, keys, filter } = search;
  const rows = sql`
    select id, created_at, ${position(sql)} from messages
    where owner_id = ${ownerId}
      ${pageWithin(sql, { ...step, limit: recentRows }, 'messages', { direction: sql`ways.direction` }, filter.since)}`;
  const recent = mergePages(sql, { ...step, limit: recentRows }, [pagesOf(sql, waysOf(sql, filter), rows)]);
  return sql<FoundId[]>`
    select messages.id, recent.position from (${recent}) recent cross join lateral (
      select * from messages
      where messages.id = recent.id and words @> ${keys}::bigint[]
      offset 0
    ) messages
    where ${isWanted(sql, search)}
    order by messages.created_at desc, messages.id desc limit ${step.limit}`;
}

/**
 * Day by day, the newest first, until the page is full: the loop over the days ends at the limit, because nothing sorts its result.
 * The messages of a day are found by the index of the words alone; the planner, which knows nothing of rare words, would take another.
 */
function findByDay(sql: Sql, search: Search, step: PageRequest): Promise<FoundId[]> {
  const { ownerId, keys, filter } = search;
  const newest = step.after
    ? sql`timestamptz 'epoch' + ${step.after.at}::bigint * interval '1 microsecond'`
    : sql`now()`;
  const since = filter.since ? sql`${filter.since}::text::timestamptz` : sql`timestamptz '-infinity'`;
  const before = step.after ? sql`and (created_at, id) < (${newest}, ${step.after.id}::uuid)` : sql``;
  return sql<FoundId[]>`
    with oldest as materialized (
      select greatest(min(first.created_at), ${since}) as at from ${waysOf(sql, filter)} cross join lateral (
        select created_at from messages
        where owner_id = ${ownerId} and (direction, created_at) >= (ways.direction, timestamptz '-infinity')
        order by direction, created_at limit 1
      ) first
      having count(*) > 0
    )
    select listed.id, listed.position
    from oldest
    cross join lateral generate_series(day_of(${newest}), day_of(oldest.at), -1) as days (day)
    cross join lateral (
      with messages as materialized (
        select id, owner_id, identity_id, thread_id, direction, created_at from messages
        where word_slots(words, day_of(created_at)) @> word_slots(${keys}, days.day) and words is not null
          and words @> ${keys}::bigint[] and day_of(created_at) = days.day
      )
      select id, ${position(sql)} from messages
      where ${isWanted(sql, search)} and created_at >= ${since} ${before}
      order by created_at desc, id desc limit ${step.limit}
    ) listed
    limit ${step.limit}`;
}

function waysOf(sql: Sql, { direction }: MessageFilter): Fragment {
  const ways = list((direction ? [direction] : directions).map((way) => sql`(${way}::text)`));
  return sql`(values ${ways}) as ways (direction)`;
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

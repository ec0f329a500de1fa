/** Lists of messages, newest first: all, by what they have in common, or by the words in them. */
import type { Sql } from '../db/client.ts';
import { list } from '../db/sql.ts';
import { identityExists } from './messages.ts';
import {
  collectPage,
  type Listed,
  mergePages,
  type Page,
  type PageRequest,
  pagesOf,
  pageWithin,
  position,
  valuesOf,
} from './page.ts';
import { sendingOf, sendingOfMessage } from './sending-json.ts';

export const directions = ['incoming', 'outgoing'] as const;

export interface MessageFilter {
  identityId?: string | undefined;
  threadId?: string | undefined;
  direction?: (typeof directions)[number] | undefined;
  /** The status of its sending. */
  status?: string | undefined;
  /** Only messages that were made with this API key. */
  keyId?: string | null | undefined;
  since?: string | undefined;
}

export type ListedMessage = Listed<{
  id: string;
  /** JSON text. */
  summary: string;
  /** JSON text; null for a message that was not sent from here. */
  sending: string | null;
}>;

/** A summary can have hundreds of KB: few of them are in memory beyond the end of a page. */
export const summariesAtOnce = 8;

function lowestId(sql: Sql) {
  return sql`uuid '00000000-0000-0000-0000-000000000000'`;
}

export async function listMessages(
  sql: Sql,
  ownerId: string,
  filter: MessageFilter,
  page: PageRequest,
): Promise<Page<ListedMessage>> {
  if (asksForSent(filter) && filter.direction === 'incoming') return { rows: [], next: null };
  const read = asksForSent(filter) ? readSent : readMessages;
  return collectPage(page, (step) => read(sql, ownerId, filter, step), summariesAtOnce);
}

/** Only messages that were sent from here have a status and the key they were sent with. */
export function asksForSent({ status, keyId }: MessageFilter): boolean {
  return status !== undefined || (keyId ?? null) !== null;
}

function readMessages(
  sql: Sql,
  ownerId: string,
  filter: MessageFilter,
  step: PageRequest,
): Promise<ListedMessage[]> {
  const { groups, values } = groupsOf(sql, ownerId, filter);
  const rows = sql`
    select id, summary::text as summary, ${sendingOfMessage(sql)} as sending, ${position(sql)}
    from messages
    where owner_id = ${ownerId} and ${identityExists(sql)} ${pageWithin(sql, step, 'messages', values, filter.since)}`;
  return mergePages<ListedMessage>(sql, step, [pagesOf(sql, groups, rows)]);
}

/** The messages of an identity, a thread and a direction, as groups for `pagesOf`, with the values of each for `pageWithin`. */
export function groupsOf(sql: Sql, ownerId: string, { identityId, threadId, direction }: MessageFilter) {
  // The indexes have the direction before the time: the pages of both directions are merged.
  const rows = list((direction ? [direction] : directions).map((one) => sql`(${one}::text)`));
  const eachDirection = sql`(values ${rows}) as directions (direction)`;
  const ofGroup = { direction: sql`directions.direction` };
  if (!threadId)
    return {
      groups: eachDirection,
      values: { ...(identityId ? { identity_id: identityId } : {}), ...ofGroup },
    };
  const ofOwner = sql`messages where owner_id = ${ownerId}`;
  const members = identityId
    ? sql`(select ${identityId}::uuid as identity_id)`
    : valuesOf(sql, ofOwner, { thread_id: threadId }, 'identity_id', lowestId(sql));
  return {
    groups: sql`${members} members cross join ${eachDirection}`,
    values: { thread_id: threadId, identity_id: sql`members.identity_id`, ...ofGroup },
  };
}

/** Messages that were sent from here, by what only they have. The filter by thread, if there is one, reads all of these. */
function readSent(
  sql: Sql,
  ownerId: string,
  { identityId, threadId, status, keyId, since }: MessageFilter,
  step: PageRequest,
): Promise<ListedMessage[]> {
  const group = {
    ...(status === undefined ? { key_id: keyId ?? null } : {}),
    ...(identityId && status !== undefined ? { identity_id: identityId } : {}),
    ...(status === undefined ? {} : { status }),
  };
  const further = sql`
    ${keyId ? sql`and outgoing.key_id = ${keyId}` : sql``}
    ${identityId ? sql`and outgoing.identity_id = ${identityId}` : sql``}`;
  return sql<ListedMessage[]>`
    select outgoing.id, summary, ${sendingOf(sql)} as sending, ${position(sql)}
    from outgoing cross join lateral (
      select summary::text as summary from messages
      where messages.id = outgoing.id and ${identityExists(sql)}
        ${threadId ? sql`and thread_id = ${threadId}` : sql``}
      offset 0
    ) message
    where outgoing.owner_id = ${ownerId} ${further} ${pageWithin(sql, step, 'outgoing', group, since)}`;
}

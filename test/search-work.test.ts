/** How much of the database a search reads: short lists of messages need no index of words, and no cursor makes it read for ever. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Sql } from '../src/db/client.ts';
import { largeIndexes } from '../src/db/large-indexes.ts';
import type { MessageFilter } from '../src/store/message-lists.ts';
import { SearchNotReady, searchMessages } from '../src/store/message-search.ts';
import type { PageRequest, Position } from '../src/store/page.ts';
import { startTestService } from './harness.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { sql, call, user } = service;

async function receive(address: string): Promise<{ id: string; identityId: string; threadId: string }> {
  const made = await call('POST', '/identities', { body: { value: address } });
  assert.equal(made.status, 201, made.text);
  const body = Buffer.from(`From: zoe@shop.example\r\nTo: ${address}\r\nSubject: Report\r\n\r\nbody\r\n`);
  const headers = { 'content-type': 'message/rfc822' };
  const taken = await call('POST', `/inbound?recipient=${address}`, { body, headers });
  assert.equal(taken.status, 202, taken.text);
  const id: string = taken.body.messageIds[0];
  return { id, identityId: made.body.id, threadId: (await call('GET', `/messages/${id}`)).body.threadId };
}

/** Copies of a message, one a minute before it; the newest comes first. */
async function copy(id: string, count: number): Promise<string[]> {
  const copies = await sql<{ id: string }[]>`
    insert into messages (id, owner_id, identity_id, size, sha256, thread_id, summary, content, created_at, words)
    select gen_random_uuid(), owner_id, identity_id, size, sha256, gen_random_uuid(), summary, content,
      created_at - n * interval '1 minute', words
    from messages, generate_series(1, ${count}::int) n
    where id = ${id}
    order by n
    returning id`;
  return copies.map((made) => made.id);
}

/** The ids that a search finds, and how many periods it read through the index of words. */
async function search(words: string[], filter: MessageFilter = {}, page: Partial<PageRequest> = {}) {
  return sql.begin(async (sql) => {
    const before = await countScans(sql);
    const found = await searchMessages(sql, user.userId, words, filter, { limit: 50, after: null, ...page });
    const periods = (await countScans(sql)) - before;
    return { ids: found.rows.map(({ id }) => id), next: found.next, periods };
  });
}

async function countScans(sql: Sql): Promise<number> {
  const [row] = await sql<{ scans: number }[]>`
    select coalesce(pg_stat_get_xact_numscans(to_regclass('messages_by_words')), 0)::int as scans`;
  return row?.scans ?? assert.fail();
}

const many = await receive('many@search.example');
const manyIds = [many.id, ...(await copy(many.id, 2500))];
const few = await receive('few@search.example');
await sql`update messages set created_at = created_at - interval '3 days' where id = ${few.id}`;

test('a cursor of the far future does not make a search read empty periods', async () => {
  const after: Position = { at: '9999999999999999', id: 'ffffffff-ffff-ffff-ffff-ffffffffffff' };
  const all = await search(['report', 'few'], {}, { after });
  assert.deepEqual(all.ids, [few.id]);
  assert.ok(all.periods > 0 && all.periods < 100, `${all.periods} periods`);
});

test('with few messages of an identity or a thread, a search reads these alone', async () => {
  const ofIdentity = await search(['report'], { identityId: few.identityId });
  assert.deepEqual([ofIdentity.ids, ofIdentity.periods], [[few.id], 0]);
  const ofThread = await search(['report'], { threadId: few.threadId });
  assert.deepEqual([ofThread.ids, ofThread.periods], [[few.id], 0]);
  const outgoing = await search(['report'], { direction: 'outgoing' });
  assert.deepEqual([outgoing.ids, outgoing.periods], [[], 0]);
});

test('a message that a clock dated ahead is found', async (t) => {
  const move = (by: string) =>
    sql`update messages set created_at = created_at + ${by}::interval where id = ${few.id}`;
  await move('10 days');
  t.after(() => move('-10 days'));
  assert.deepEqual((await search(['few'])).ids, [few.id]);
});

test('a message that is deleted while a search runs does not make the next page repeat one', async () => {
  const [first = '', second, third] = manyIds;
  const deleting = new Proxy(sql, {
    apply(_, __, [strings, ...values]: Parameters<typeof sql>) {
      const readsFound = strings.some((text) => text.includes('summary::text'));
      const run = () => sql(strings, ...values);
      return readsFound ? sql`delete from messages where id = ${first}`.then(run) : run();
    },
  });
  const page = await searchMessages(deleting, user.userId, ['report'], {}, { limit: 1, after: null });
  const next = await search(['report'], {}, { limit: 1, after: page.next });
  assert.deepEqual([page.rows[0]?.id, next.ids[0]], [second, third]);
  manyIds.shift();
});

test('until the index of words is built, a search finds the same by reading one message after the other', async () => {
  const index = largeIndexes.find(({ name }) => name === 'messages_by_words') ?? assert.fail();
  await sql.script(`drop index ${index.name}`);
  const rare = await search(['few']);
  assert.deepEqual([rare.ids, rare.periods], [[few.id], 0]);
  const listed: string[] = [];
  let after: Position | null = null;
  do {
    const page = await search(['report'], {}, { limit: 999, after });
    listed.push(...page.ids);
    after = page.next;
  } while (after);
  assert.deepEqual(listed, [...manyIds, few.id]);
});

test('without the index of words, a search that would read very many messages asks for patience', async () => {
  const page = { limit: 50, after: null };
  await assert.rejects(searchMessages(sql, user.userId, ['few'], {}, page, 1200), SearchNotReady);
  const read = await searchMessages(sql, user.userId, ['report'], {}, page, 1200);
  assert.equal(read.rows.length, 50);
});

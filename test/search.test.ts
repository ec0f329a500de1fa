/** `GET /messages?q=` finds messages by whole words of the subject and of the addresses, among the owner's own. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { changeOverBatch } from '../src/store/change-over.ts';
import { readWords, wordKey } from '../src/store/words.ts';
import { startTestService, type TestUser } from './harness.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { sql, call } = service;
const [ada, bob] = [await service.makeUser(), await service.makeUser()];

async function makeIdentity(as: TestUser, value: string): Promise<string> {
  const made = await call('POST', '/identities', { as, body: { value } });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}

const adaId = await makeIdentity(ada, 'ada@search.example');
const officeId = await makeIdentity(ada, 'office@search.example');
await makeIdentity(bob, 'bob@search.example');

async function arrive(
  as: TestUser,
  to: string,
  subject: string,
  from = 'Zoë Muster <zoe@shop.example>',
): Promise<string> {
  const raw = `From: ${from}\r\nTo: ${to}\r\nSubject: ${subject}\r\n\r\nbody\r\n`;
  const headers = { 'content-type': 'message/rfc822' };
  const taken = await call('POST', `/inbound?recipient=${to}`, { as, body: Buffer.from(raw), headers });
  assert.equal(taken.status, 202, taken.text);
  return taken.body.messageIds[0];
}

async function find(as: TestUser, q: string, more = ''): Promise<string[]> {
  const answer = await call('GET', `/messages?q=${encodeURIComponent(q)}${more}`, { as });
  assert.equal(answer.status, 200, answer.text);
  return answer.body.map(({ id }: { id: string }) => id);
}

/** Moves a message to another day, as if it had come then. */
async function age(id: string, days: number): Promise<void> {
  await sql`update messages set words = null, created_at = created_at - ${days} * interval '1 day' where id = ${id}`;
  await sql`
    insert into change_over (position, until) values ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')`;
  assert.equal(await changeOverBatch(sql), 1);
  assert.equal(await changeOverBatch(sql), null);
}

const invoice = await arrive(ada, 'ada@search.example', 'Your INVOICE no. 4711');
const second = await arrive(ada, 'office@search.example', 'Invoice 4712, überfällig');
const meeting = await arrive(
  ada,
  'ada@search.example',
  '=?utf-8?B?5Lya6K2w44Gu5LqI5a6a?=',
  'tanaka@firm.example',
);
await arrive(bob, 'bob@search.example', 'Invoice of somebody else');

test('whole words are found, in any case, the newest first', async () => {
  assert.deepEqual(await find(ada, 'invoice'), [second, invoice]);
  assert.deepEqual(await find(ada, 'InVoIcE 4711'), [invoice]);
  assert.deepEqual(await find(ada, 'ÜBERFÄLLIG'), [second]);
  assert.deepEqual(await find(ada, 'invoic'), [], 'a part of a word');
  assert.deepEqual(await find(ada, 'invoice meeting'), [], 'all words must match');
});

test('names and addresses are found, whole or in part', async () => {
  assert.deepEqual(await find(ada, 'zoe@shop.example'), [second, invoice]);
  assert.deepEqual(await find(ada, 'muster'), [second, invoice]);
  assert.deepEqual(await find(ada, 'to office'), [], '"to" is no word of a message');
  assert.deepEqual(await find(ada, 'office@search.example'), [second]);
});

test('text without spaces is found by its characters', async () => {
  assert.deepEqual(readWords('会議の予定 at 10'), ['会', '議', 'の', '予', '定', 'at', '10']);
  assert.deepEqual(await find(ada, '予定'), [meeting]);
});

test('a search never finds what belongs to another user', async () => {
  assert.equal((await find(bob, 'invoice')).length, 1);
  assert.deepEqual(await find(bob, 'invoice 4711'), []);
  assert.deepEqual(await find(bob, 'invoice', `&identity_id=${adaId}`), []);
});

test('the other filters apply too', async () => {
  assert.deepEqual(await find(ada, 'invoice', `&identity_id=${officeId}`), [second]);
  assert.deepEqual(await find(ada, 'invoice', '&direction=outgoing'), []);
  assert.deepEqual(await find(ada, 'invoice', '&status=sent'), []);
  assert.deepEqual(
    await find(ada, 'invoice', `&since=${new Date(Date.now() + 3_600_000).toISOString()}`),
    [],
  );
  const { threadId } = (await call('GET', `/messages/${invoice}`, { as: ada })).body;
  assert.deepEqual(await find(ada, 'invoice', `&thread_id=${threadId}`), [invoice]);
});

test('mail that was sent is found by its recipients, also the hidden ones', async () => {
  const body = {
    ...{ identityId: adaId, to: 'kim@shop.example', bcc: 'auditor@watch.example' },
    ...{ subject: 'Contract', text: 'Here.' },
  };
  const sent = await call('POST', '/messages', { as: ada, body });
  assert.equal(sent.status, 202, sent.text);
  assert.deepEqual(await find(ada, 'auditor'), [sent.body.id]);
  assert.deepEqual(await find(ada, 'contract', '&direction=outgoing'), [sent.body.id]);
  assert.deepEqual(await find(ada, 'contract', '&status=queued'), [sent.body.id]);
  assert.deepEqual(await find(ada, 'contract', '&direction=incoming'), []);
});

test('pages follow each other over many days, and miss nothing', async () => {
  const ids: string[] = [];
  for (const days of [0, 0, 1, 1, 40, 400]) {
    const id = await arrive(ada, 'ada@search.example', `Paged ${ids.length}`);
    if (days > 0) await age(id, days);
    ids.push(id);
  }
  const expected = [ids[1], ids[0], ids[3], ids[2], ids[4], ids[5]];
  assert.deepEqual(await find(ada, 'paged'), expected);
  for (const limit of [1, 2, 4]) {
    const listed: string[] = [];
    let next: string | undefined = `/messages?q=paged&limit=${limit}`;
    while (next) {
      const answer = await call('GET', next, { as: ada });
      listed.push(...answer.body.map(({ id }: { id: string }) => id));
      next = /<[^>]*(\/messages\?[^>]*)>/.exec(answer.headers.get('link') ?? '')?.[1];
    }
    assert.deepEqual(listed, expected, `pages of ${limit}`);
  }
});

test('a word of very many messages of older days is found page by page, and nothing is missed', async () => {
  const carol = await service.makeUser();
  const identityId = await makeIdentity(carol, 'carol@search.example');
  const known = await arrive(carol, 'carol@search.example', 'Report of one');
  const copy = (count: number, daysAgo: number, words: 'with' | 'without', skipped = 0) => sql<
    { id: string }[]
  >`
    insert into messages (id, owner_id, identity_id, size, sha256, thread_id, summary, content, created_at, words)
    select copies.id, owner_id, identity_id, size, sha256, thread_id,
      replace(summary::text, ${known}, copies.id::text)::json, content,
      created_at - (${daysAgo}::int * 86400 + ${skipped}::int + n) * interval '1 second',
      ${words === 'with' ? sql`words` : sql`array[1]::bigint[]`}
    from messages, (select gen_random_uuid() as id, n from generate_series(1, ${count}::int) n) copies
    where messages.id = ${known}
    returning id`;
  await copy(1200, 0, 'without');
  await copy(1100, 35, 'without');
  const older = [
    ...(await copy(1500, 35, 'with', 1100)),
    ...(await copy(2500, 70, 'with')),
    ...(await copy(2, 100, 'with')),
  ].map(({ id }) => id);
  await sql`update messages set words = array[1]::bigint[] where id = ${known}`;

  const listed: string[] = [];
  let next: string | undefined = '/messages?q=report&limit=100';
  while (next) {
    const answer = await call('GET', next, { as: carol });
    assert.equal(answer.status, 200, answer.text);
    listed.push(...answer.body.map(({ id }: { id: string }) => id));
    next = /<[^>]*(\/messages\?[^>]*)>/.exec(answer.headers.get('link') ?? '')?.[1];
  }
  assert.deepEqual(listed, older);
  assert.deepEqual(await find(carol, 'report', `&identity_id=${identityId}&limit=3`), older.slice(0, 3));
  assert.deepEqual(await find(carol, 'report', '&direction=outgoing'), []);
  assert.deepEqual(await find(carol, 'report', '&status=sent'), []);
  assert.deepEqual(await find(carol, 'report', '&status=sent&direction=incoming'), []);
});

test('periods that share their slots do not mix, and neither do words that share one', async () => {
  const shared = findWordsThatShareASlot(ada.userId);
  const [one, other] = shared.map((word) => `slot ${word}`);
  assert.ok(one && other);
  const ages = [0, 1, 32, 33, 64];
  const ids: string[] = [];
  for (const days of ages) {
    const id = await arrive(ada, 'ada@search.example', one, `day${days}@slots.example`);
    await age(id, days);
    ids.push(id);
  }
  const last = await arrive(ada, 'ada@search.example', other);
  assert.deepEqual(await find(ada, one), ids);
  assert.deepEqual(await find(ada, other), [last]);
  const [slots] = await sql<{ most: number }[]>`select max(slot) as most
    from messages, unnest(word_slots(words, period_of(created_at))) as slot`;
  assert.ok(slots && slots.most < 768 * 2 ** 15, `${slots?.most}`);
});

function findWordsThatShareASlot(ownerId: string): [string, string] {
  const seen = new Map<bigint, string>();
  for (let n = 0; ; n += 1) {
    const word = `w${n}`;
    const slot = wordKey(ownerId, word) & 32767n;
    const before = seen.get(slot);
    if (before) return [before, word];
    seen.set(slot, word);
  }
}

test('a deleted message is not found', async () => {
  const id = await arrive(ada, 'ada@search.example', 'Ephemeral');
  assert.deepEqual(await find(ada, 'ephemeral'), [id]);
  assert.equal((await call('DELETE', `/messages/${id}`, { as: ada })).status, 204);
  assert.deepEqual(await find(ada, 'ephemeral'), []);
});

test('a query without words, or with too many, is refused', async () => {
  for (const [q, code] of [
    ['', 'too_short'],
    ['@ . !', 'invalid_value'],
    ['a\u0000b', 'invalid_value'],
    [Array.from({ length: 21 }, (_, n) => n).join(' '), 'too_long'],
    ['x'.repeat(201), 'too_long'],
  ] as const) {
    const answer = await call('GET', `/messages?q=${encodeURIComponent(q)}`, { as: ada });
    assert.equal(answer.status, 400, answer.text);
    assert.equal(answer.body.code, 'invalid_query');
    assert.deepEqual(
      answer.body.errors.map(({ pointer }: { pointer: string }) => pointer),
      ['/q'],
    );
    assert.equal(answer.body.errors[0].code, code, answer.text);
  }
});

test('a message with thousands of words is found by the first ones', async () => {
  const words = Array.from({ length: 5000 }, (_, n) => `word${n}`).join(' ');
  const id = await arrive(ada, 'ada@search.example', words);
  assert.deepEqual(await find(ada, 'word0 word20'), [id]);
  const [row] = await sql<
    { count: number }[]
  >`select cardinality(words) as count from messages where id = ${id}`;
  assert.equal(row?.count, 100);
});

test('a subject of combining marks is read in linear time', () => {
  // Sorting a run of so many marks takes longer than the test may.
  const marks = '\u0301\u0316'.repeat(500_000);
  assert.equal(readWords(`a${marks} Cafe\u0301`).at(-1), 'caf\u00e9');
});

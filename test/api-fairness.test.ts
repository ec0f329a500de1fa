/** One owner's requests, however many, do not make the requests of another owner wait. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { startTestService, type TestUser, waitFor } from './harness.ts';

const service = await startTestService();
const { call, sql } = service;

async function makeIdentity(as: TestUser): Promise<string> {
  const value = `a${randomBytes(5).toString('hex')}@api.example`;
  const { status, text, body } = await call('POST', '/identities', { as, body: { value } });
  assert.equal(status, 201, text);
  return body.id;
}

/** Sends many changes of an identity whose row is locked, runs `work`, then unlocks the row. */
async function whileBlocked(as: TestUser, count: number, work: (answers: number[]) => Promise<void>) {
  const id = await makeIdentity(as);
  const answers: number[] = [];
  let blocked: Promise<unknown> = Promise.resolve();
  await sql.begin(async (sql) => {
    await sql`select from identities where id = ${id} for update`;
    const change = async (n: number) => {
      answers.push((await call('PATCH', `/identities/${id}`, { as, body: { meta: { n } } })).status);
    };
    blocked = Promise.all(Array.from({ length: count }, (_, n) => change(n)));
    await work(answers);
  });
  await blocked;
  assert.deepEqual([...new Set(answers)], [200]);
  assert.equal(answers.length, count);
}

describe('while 40 requests of one owner wait for a lock in the database', () => {
  test('another owner reads and writes', async () => {
    const other = await service.makeUser();
    await whileBlocked(service.user, 40, async (answers) => {
      const { status } = await call('GET', '/identities', { as: other });
      assert.equal(status, 200);
      await makeIdentity(other);
      assert.equal(answers.length, 0, 'the lock was held all the time');
    });
  });

  test('requests whose client leaves before their first query are never run', async () => {
    await whileBlocked(service.user, 10, async () => {
      const leaving = new AbortController();
      const left = Array.from({ length: 10 }, (_, n) =>
        fetch(`${service.url}/identities`, {
          method: 'POST',
          headers: {
            authorization: `Bearer ${service.user.apiKey}`,
            'content-type': 'application/json',
          },
          body: JSON.stringify({ value: `left${n}@api.example` }),
          signal: leaving.signal,
        }),
      );
      const other = await service.makeUser();
      assert.equal((await call('GET', '/identities', { as: other })).status, 200);
      leaving.abort();
      await Promise.allSettled(left);
      assert.equal((await call('GET', '/identities', { as: other })).status, 200);
    });
    const [found] = await sql<{ count: number }[]>`
      select count(*)::int as count from identities where value like 'left%'`;
    assert.equal(found?.count, 0);
  });
});

test('one piece of raw messages is read at a time for an owner, however many requests want one', {
  timeout: 120_000,
}, async () => {
  const [one, other] = await Promise.all([service.makeUser(), service.makeUser()]);
  const makeMessage = async (as: TestUser): Promise<string> => {
    const value = `raw${randomBytes(5).toString('hex')}@api.example`;
    assert.equal((await call('POST', '/identities', { as, body: { value } })).status, 201);
    const headers = { 'content-type': 'message/rfc822' };
    const body = Buffer.alloc(100_000, 'Subject: large\r\n');
    const sent = await call('POST', `/inbound?recipient=${value}`, { as, body, headers });
    assert.equal(sent.status, 202, sent.text);
    return sent.body.messageIds[0];
  };
  const messages = new Map([
    [one, await makeMessage(one)],
    [other, await makeMessage(other)],
  ]);
  const readByte = async (as: TestUser) =>
    (await call('GET', `/messages/${messages.get(as)}/raw`, { as, headers: { range: 'bytes=5-5' } })).status;
  const countReading = async () =>
    (
      await sql`
        select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query like '%raw_chunks%'`
    ).count;

  const { read } = await sql.begin(async (sql) => {
    await sql`lock table raw_chunks in access exclusive mode`;
    const read = Array.from({ length: 4 }, () => readByte(one));
    await waitFor('the first piece', async () => (await countReading()) >= 1);
    // Their queries come after those of the requests above.
    for (let times = 0; times < 20; times += 1)
      assert.equal((await call('GET', '/identities', { as: one })).status, 200);
    assert.equal(await countReading(), 1);
    read.push(readByte(other));
    await waitFor('the piece of the other owner', async () => (await countReading()) === 2);
    return { read: Promise.all(read) };
  });
  assert.deepEqual([...new Set(await read)], [206]);
});

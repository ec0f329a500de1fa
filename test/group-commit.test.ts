/** Mail that is committed together: in which batches, in whose turn, and what happens when a batch fails. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { zstdCompressSync, zstdDecompressSync } from 'node:zlib';
import { connect, type Pool } from '../src/db/client.ts';
import { newId } from '../src/lib/ids.ts';
import { GroupCommit } from '../src/receiving/group-commit.ts';
import { MessageRecorder } from '../src/receiving/record.ts';
import { findFirst, type NewMessage } from '../src/store/messages.ts';
import { startTestService, type TestUser, waitFor } from './harness.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { sql, user } = service;

function openPool(lockTimeoutMs = 250): Pool {
  const pool = connect(service.databaseUrl, { max: 1, applicationName: 'test mail', lockTimeoutMs });
  after(() => pool.end({ timeoutMs: 0 }));
  return pool;
}

async function makeIdentity(as: TestUser = user): Promise<{ id: string; ownerId: string }> {
  const value = `a${randomBytes(5).toString('hex')}@group.example`;
  const answer = await service.call('POST', '/identities', { as, body: { value } });
  assert.equal(answer.status, 201, answer.text);
  return { id: answer.body.id, ownerId: as.userId };
}

function write(identity: { id: string; ownerId: string }, changed: Partial<NewMessage> = {}): NewMessage {
  const id = newId();
  return {
    ...{ id, ownerId: identity.ownerId, identityId: identity.id, eventId: newId(), rawId: id, threadId: id },
    ...{
      raw: randomBytes(40),
      sha256: randomBytes(32),
      summary: '{}',
      data: '{"message":{}}',
      inline: true,
      isVouched: false,
      inlineBytes: 40,
    },
    content: zstdCompressSync('{"message":{}}'),
    ...{ messageKey: newId(), repeatKey: newId(), words: [], ...changed },
  };
}

const stored = async (messages: readonly NewMessage[]) => {
  const ids = messages.map(({ id }) => id);
  const rows = await sql<{ id: string; commit: string }[]>`
    select id, xmin::text as commit from messages where id = any (${ids}::uuid[])`;
  return new Map(rows.map(({ id, commit }) => [id, commit]));
};

/** A group whose batches end when the test says so. */
function startGroup(limits = { items: 4, bytes: 100, rows: 100 }) {
  const batches: { items: string[]; end(): void; fail(error: Error): void }[] = [];
  const group = new GroupCommit<string, string>({
    commitAll: (items) =>
      new Promise((resolve, reject) => {
        const end = () => resolve(items.map((item) => `${item} committed`));
        batches.push({ items: [...items], end, fail: reject });
      }),
    measure: (item) => ({ bytes: item.length, rows: 1 }),
    limits,
  });
  const batch = (n: number) => waitFor(`batch ${n}`, () => batches[n]);
  return { group, batches, batch };
}

describe('batches', () => {
  test('an item that comes alone is committed at once; those that come meanwhile wait and go together', async () => {
    const { group, batches, batch } = startGroup();
    const first = group.commit('o', 'a');
    assert.deepEqual(batches[0]?.items, ['a']);
    const others = ['b', 'c'].map((item) => group.commit('o', item));
    assert.equal(batches.length, 1);
    batches[0]?.end();
    assert.equal(await first, 'a committed');
    assert.deepEqual((await batch(1)).items, ['b', 'c']);
    batches[1]?.end();
    assert.deepEqual(await Promise.all(others), ['b committed', 'c committed']);
  });

  test('owners take turns: many items of one owner delay another owner by one batch', async () => {
    const { group, batch } = startGroup();
    void group.commit('o', 'a');
    for (const item of ['b', 'c', 'd', 'e', 'f', 'g']) void group.commit('o', item);
    for (const item of ['x', 'y']) void group.commit('p', item);
    void group.commit('q', 'z');
    (await batch(0)).end();
    const second = await batch(1);
    assert.deepEqual(second.items, ['b', 'x', 'z', 'c']);
    second.end();
    const third = await batch(2);
    assert.deepEqual(third.items, ['y', 'd', 'e', 'f']);
    third.end();
    assert.deepEqual((await batch(3)).items, ['g']);
  });

  test('end at the limit of bytes or rows, and an item beyond the limit goes alone', async () => {
    const { group, batch } = startGroup({ items: 9, bytes: 10, rows: 3 });
    for (const item of ['a', 'bbbb', 'cccccc', 'd'.repeat(99), 'e', 'f', 'g', 'h'])
      void group.commit('o', item);
    const expected = [['a'], ['bbbb', 'cccccc'], ['d'.repeat(99)], ['e', 'f', 'g'], ['h']];
    for (const [n, items] of expected.entries()) {
      const { items: found, end } = await batch(n);
      assert.deepEqual(found, items);
      end();
    }
  });

  test('a lost connection fails the batch and all that wait; what comes later is committed', async () => {
    const { group, batch } = startGroup();
    const lost = ['a', 'b', 'c'].map((item) => group.commit('o', item));
    (await batch(0)).fail(new Error('Connection terminated'));
    for (const one of lost) await assert.rejects(one, /terminated/);
    const later = group.commit('o', 'd');
    (await batch(1)).end();
    assert.equal(await later, 'd committed');
  });
});

describe('messages', () => {
  /** Records a message that must wait for a transaction, and meanwhile these messages: they are one batch. */
  async function recordTogether(messages: readonly NewMessage[], recorder: MessageRecorder) {
    const blocker = await makeIdentity();
    const first = write(blocker);
    const repeat = write(blocker, { repeatKey: first.repeatKey });
    let recording: Promise<PromiseSettledResult<string>[]> | undefined;
    const recordOne = async (message: NewMessage) =>
      (await recorder.record(sql, message, new DisposableStack())).outcome;
    await sql.begin(async (own) => {
      await recorder.record(own, first, new DisposableStack());
      // Waits for the transaction.
      const waiting = recordOne(repeat);
      recording = Promise.allSettled([waiting, ...messages.map(recordOne)]);
    });
    const [waited, ...others] = (await recording) ?? [];
    assert.deepEqual(waited, { status: 'fulfilled', value: 'repeat' });
    return others.map((one) => (one.status === 'fulfilled' ? one.value : `failed: ${one.reason.code}`));
  }
  const makeRecorder = (groupSql = openPool(0)) =>
    new MessageRecorder({ groupSql, acceptUnverified: true, offerDeliveries: null });

  test('that wait at the same moment are one commit, each with its event, bytes and deliveries', async () => {
    const stranger = await service.makeUser();
    const mine = await service.makeWebhook('https://hooks.example/mine');
    const theirs = await service.makeWebhook('https://hooks.example/theirs', {}, stranger);
    const identities = [await makeIdentity(), await makeIdentity(stranger), await makeIdentity()];
    const messages = identities.flatMap((identity) => [
      write(identity),
      write(identity, { repeatKey: null }),
    ]);
    assert.deepEqual(
      await recordTogether(messages, makeRecorder()),
      messages.map(() => 'recorded'),
    );
    assert.equal(new Set((await stored(messages)).values()).size, 1);
    for (const { id, eventId, ownerId, raw, content } of messages) {
      const [row] = await sql`
        select raw_chunks.bytes, content, webhook_id as "webhookId", delivery_queue.owner_id as "ownerId", lease_token as token,
          array[events.xmin, raw_chunks.xmin, delivery_queue.xmin] = array_fill(messages.xmin, array[3]) as "isOneCommit"
        from messages join raw_chunks using (raw_id) join events on events.message_id = messages.id
        join delivery_queue on delivery_queue.event_id = events.id
        where messages.id = ${id} and events.id = ${eventId}`;
      const webhookId = ownerId === user.userId ? mine.id : theirs.id;
      const { bytes, ...others } = row ?? {};
      assert.deepEqual(zstdDecompressSync(bytes), raw);
      assert.deepEqual(others, { content, webhookId, ownerId, token: null, isOneCommit: true });
    }
  });

  test('that go to hundreds of webhooks are recorded apart from the others, which would wait for them', async () => {
    const owner = await service.makeUser();
    await sql`
      insert into webhooks (id, owner_id, url, events, secret)
      select uuidv7(), ${owner.userId}, 'https://hooks.example/', '{message.received}', 'x' from generate_series(1, 201)`;
    const busy = await makeIdentity(owner);
    const groupSql = connect(service.databaseUrl, { max: 1, applicationName: 'posthorn test' });
    const recorder = makeRecorder(groupSql);
    const recordOne = (message: NewMessage) => recorder.record(sql, message, new DisposableStack());
    assert.equal((await recordOne(write(busy))).deliveries.length, 201);
    await groupSql.end();
    assert.equal((await recordOne(write(busy))).outcome, 'recorded');
    await assert.rejects(recordOne(write(await makeIdentity())));
  });

  test('that repeat each other in one batch are stored once: the first', async () => {
    const identity = await makeIdentity();
    const first = write(identity);
    const { repeatKey } = first;
    const other = write(await makeIdentity(), { repeatKey });
    const messages = [first, write(identity, { repeatKey }), other, write(identity, { repeatKey })];
    const outcomes = await recordTogether(messages, makeRecorder());
    assert.deepEqual(outcomes, ['recorded', 'repeat', 'recorded', 'repeat']);
    assert.deepEqual([...(await stored(messages)).keys()].sort(), [first.id, other.id].sort());
    assert.equal(await findFirst(sql, first), first.id);
  });

  test('a bad one fails alone', async () => {
    const identity = await makeIdentity();
    const bad = write(identity, { summary: 'not JSON' });
    const messages = [write(identity), bad, write(identity)];
    assert.deepEqual(await recordTogether(messages, makeRecorder()), [
      'recorded',
      'failed: 22P02',
      'recorded',
    ]);
    assert.equal((await stored(messages)).size, 2);
  });

  test('one whose identity is gone is not stored, and the others are', async () => {
    const [gone, kept] = [await makeIdentity(), await makeIdentity()];
    await service.call('DELETE', `/identities/${gone.id}`);
    const messages = [write(gone), write(kept)];
    assert.deepEqual(await recordTogether(messages, makeRecorder()), ['gone', 'recorded']);
  });

  test('one that waits for a lock delays the others by the lock timeout, not by the lock', async () => {
    const identity = await makeIdentity();
    const recorder = makeRecorder(openPool());
    const first = write(identity);
    const ended: string[] = [];
    const record = async (name: string, message: NewMessage) => {
      const { outcome } = await recorder.record(service.sql, message, new DisposableStack());
      ended.push(`${name} ${outcome}`);
    };
    const lock = connect(service.databaseUrl, { max: 1, applicationName: 'test lock' });
    let blocked: Promise<void> | undefined;
    await lock.begin(async (own) => {
      await recorder.record(own, first, new DisposableStack());
      blocked = record('blocked', write(identity, { repeatKey: first.repeatKey }));
      await record('other', write(identity));
    });
    await blocked;
    assert.deepEqual(ended, ['other recorded', 'blocked repeat']);
    await lock.end();
  });

  test('after a lost connection nobody knows: all fail, and the repeated message is stored once', async () => {
    const identity = await makeIdentity();
    const recorder = makeRecorder();
    const [first, waiting] = [write(identity), write(identity)];
    const lock = connect(service.databaseUrl, { max: 1, applicationName: 'test lock' });
    let recording: Promise<PromiseSettledResult<unknown>[]> | undefined;
    await lock.begin(async (own) => {
      await own`lock table raw_chunks in exclusive mode`;
      recording = Promise.allSettled(
        [first, waiting].map((message) => recorder.record(sql, message, new DisposableStack())),
      );
      await waitFor('the kill', async () => {
        const killed = await sql`
          select pg_terminate_backend(pid) from pg_stat_activity
          where application_name = 'test mail' and wait_event_type = 'Lock'`;
        return killed.count > 0;
      });
    });
    const failed = (await recording) ?? [];
    assert.deepEqual(
      failed.map(({ status }) => status),
      ['rejected', 'rejected'],
    );
    const again = write(identity, { repeatKey: first.repeatKey });
    assert.equal((await recorder.record(sql, again, new DisposableStack())).outcome, 'recorded');
    assert.equal((await stored([first, waiting, again])).size, 1);
    await lock.end();
  });
});

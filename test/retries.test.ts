/** Leases and the schedule: who may try a delivery, when, and whose outcome counts. By the store's functions, by hand. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import {
  claimDeliveries,
  promoteDue,
  recordTries,
  releaseLeases,
  renewLeases,
  type TriedDelivery,
} from '../src/store/delivery-queue.ts';
import { clearDeliveries } from './delivery-rows.ts';
import { startTestService, type TestWebhook } from './harness.ts';

// Nobody delivers here but the tests.
const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { sql, call, makeWebhook, makeEvent } = service;

async function claim(token: string, more: Partial<Parameters<typeof claimDeliveries>[1]> = {}) {
  const start = { afterGroup: null, afterLanes: new Map(), skippedGroups: [] };
  const wanted = { allowances: new Map(), allowance: 16, maxLanes: 64 };
  return [...(await claimDeliveries(sql, { token, ...start, ...wanted, ...more }))];
}

type Untold = Omit<TriedDelivery, 'token'>;
const record = (token: string, tries: Untold[]) =>
  recordTries(
    sql,
    tries.map((one) => ({ ...one, token })),
  );
const hold = (token: string, ids: readonly string[]) => ids.map((id) => ({ id, token }));
const renew = (token: string, ids: readonly string[]) => renewLeases(sql, hold(token, ids));
const release = (token: string, ids: readonly string[]) => releaseLeases(sql, hold(token, ids));

function tried(id: string, more: Partial<Untold> = {}): Untold {
  return {
    ...{ id, status: 'delivered', waitSeconds: null, durationMs: 5, responseStatus: 200 },
    ...{
      responseHeaders: '{}',
      responseBody: 'ok',
      error: null,
      errorDetail: null,
      tries: 0,
      startedAt: performance.now(),
    },
    ...more,
  };
}

const failed = (id: string, waitSeconds: number) =>
  tried(id, { status: 'pending', waitSeconds, responseStatus: 500, error: 'http_error' });

/** A webhook of a user of its own, with so many deliveries; all of them are gone when the test is over. */
async function prepare(t: { after(work: () => Promise<unknown>): void }, count = 1) {
  const owner = await service.makeUser();
  const webhook = await makeWebhook('https://example.com/', {}, owner);
  for (let index = 0; index < count; index++) await makeEvent({ ownerId: owner.userId });
  const rows = await sql`select id from deliveries where webhook_id = ${webhook.id} order by id`;
  t.after(() => clearDeliveries(sql, sql`webhook_id = ${webhook.id}`));
  const ids = rows.map(({ id }) => id as string);
  return { owner, webhook, ids, id: ids[0] ?? '' };
}

const expire = (id: string) =>
  sql`update delivery_queue set lease_until = now() - interval '1 second' where id = ${id}`;
const read = async (id: string, owner: Parameters<typeof call>[2]) =>
  (await call('GET', `/deliveries/${id}`, owner)).body;

describe('a lease', () => {
  test('keeps everyone else away, its holder included', async (t) => {
    const { id } = await prepare(t);
    const [mine, other] = [randomUUID(), randomUUID()];
    assert.deepEqual(
      (await claim(mine)).map((one) => one.id),
      [id],
    );
    assert.deepEqual(await claim(other), []);
    assert.deepEqual(await claim(mine), []);
  });

  test('lasts 20 s by the clock of the database', async (t) => {
    const { id } = await prepare(t);
    await claim(randomUUID());
    const [row] = await sql`
      select lease_until > now() and lease_until <= now() + interval '20 seconds' as fits
      from delivery_queue where id = ${id}`;
    assert.equal(row?.fits, true);
  });

  test('that has run out is claimable again', async (t) => {
    const { id } = await prepare(t);
    const other = randomUUID();
    await claim(randomUUID());
    await expire(id);
    assert.deepEqual(
      (await claim(other)).map((one) => one.id),
      [id],
    );
  });

  test('that was taken over: the late outcome is not recorded, the other one is', async (t) => {
    const { id, owner } = await prepare(t);
    const [mine, other] = [randomUUID(), randomUUID()];
    await claim(mine);
    await expire(id);
    await claim(other);
    assert.deepEqual(await record(mine, [tried(id)]), []);
    const under = await read(id, { as: owner });
    assert.deepEqual([under.status, under.attemptCount, under.attempts], ['pending', 0, []]);
    assert.deepEqual(await record(other, [failed(id, 60)]), [id]);
    const { attempts, attemptCount } = await read(id, { as: owner });
    assert.equal(attemptCount, 1);
    assert.equal(attempts[0].error, 'http_error');
    assert.deepEqual(await record(other, [tried(id)]), [], 'nor is one twice');
  });

  test('that has run out and that nobody took is still ours to record under', async (t) => {
    const { id } = await prepare(t);
    const mine = randomUUID();
    await claim(mine);
    await expire(id);
    assert.deepEqual(await record(mine, [tried(id)]), [id]);
  });

  test('that is renewed stays, and only its holder can renew it', async (t) => {
    const { id } = await prepare(t);
    const [mine, other] = [randomUUID(), randomUUID()];
    await claim(mine);
    await expire(id);
    await renew(other, [id]);
    await renew(mine, [id]);
    assert.deepEqual(await claim(other), []);
    await expire(id);
    await renew(other, [id]);
    assert.equal((await claim(other)).length, 1);
  });

  test('that is given back is free at once, and only its holder can give it back', async (t) => {
    const { id } = await prepare(t);
    const [mine, other] = [randomUUID(), randomUUID()];
    await claim(mine);
    await release(other, [id]);
    assert.deepEqual(await claim(other), []);
    await release(mine, [id]);
    assert.deepEqual(
      (await claim(other)).map((one) => one.id),
      [id],
    );
  });

  test('outlives a redelivery of what is under way, so that it is not tried twice at once', async (t) => {
    const { id, owner } = await prepare(t);
    const [mine, other] = [randomUUID(), randomUUID()];
    await claim(mine);
    assert.equal((await call('POST', `/deliveries/${id}/redeliver`, { as: owner })).status, 202);
    assert.deepEqual(await claim(other), []);
    assert.deepEqual(await record(mine, [tried(id)]), [id]);
    assert.equal((await read(id, { as: owner })).status, 'delivered');
  });
});

describe('a claim', () => {
  test('takes each delivery once, whoever claims at the same time', async (t) => {
    const { ids } = await prepare(t, 40);
    const claims = Array.from({ length: 8 }, () => claim(randomUUID(), { allowance: 5 }));
    const taken = (await Promise.all(claims)).flat().map(({ id }) => id);
    const rest = (await claim(randomUUID(), { allowance: 100 })).map(({ id }) => id);
    assert.deepEqual([...taken, ...rest].sort(), ids);
  });

  test('takes the oldest of a webhook first, as many as it is allowed', async (t) => {
    const { ids, webhook } = await prepare(t, 5);
    const two = await claim(randomUUID(), { allowances: new Map([[webhook.id, 2]]) });
    assert.deepEqual(two.map(({ id }) => id).sort(), ids.slice(0, 2));
    assert.deepEqual(await claim(randomUUID(), { allowances: new Map([[webhook.id, 0]]) }), []);
  });

  test('walks the owners in turn, a few at a time', async (t) => {
    const made = [await prepare(t, 3), await prepare(t, 3), await prepare(t, 3)];
    const order = made.map(({ owner }) => owner.userId).sort();
    const seen: string[] = [];
    for (let afterGroup: string | null = null, turn = 0; turn < 3; turn++) {
      const [claimed] = await claim(randomUUID(), { afterGroup, allowance: 1, maxLanes: 1 });
      afterGroup = claimed?.ownerId ?? null;
      seen.push(String(afterGroup));
    }
    assert.deepEqual(seen, order);
    assert.deepEqual(await claim(randomUUID(), { afterGroup: order[2] ?? '' }), []);
  });

  test('walks the webhooks of each owner in turn, owners first', async (t) => {
    const made = [await prepare(t), await prepare(t)];
    for (const { owner } of made) {
      for (let n = 0; n < 3; n += 1) await makeWebhook('https://example.com/', {}, owner);
      await makeEvent({ ownerId: owner.userId });
    }
    t.after(() => clearDeliveries(sql, sql`true`));
    const owners = made.map(({ owner }) => owner.userId).sort();
    const afterLanes = new Map<string, string>();
    const seen: string[][] = [];
    for (let turn = 0; turn < 4; turn++) {
      const claimed = await claim(randomUUID(), { afterLanes, allowance: 1, maxLanes: 2 });
      assert.deepEqual(claimed.map(({ ownerId }) => ownerId).sort(), owners, `one of each in turn ${turn}`);
      for (const { ownerId, webhookId } of claimed) afterLanes.set(ownerId, webhookId);
      seen.push(claimed.map(({ webhookId }) => webhookId));
    }
    assert.equal(new Set(seen.flat()).size, 8);
    assert.deepEqual(await claim(randomUUID(), { afterLanes, maxLanes: 2 }), []);
  });

  test('leaves out the owners that it is told to', async (t) => {
    const [one, two] = [await prepare(t, 2), await prepare(t, 2)];
    const claimed = await claim(randomUUID(), { skippedGroups: [one.owner.userId] });
    assert.deepEqual(claimed.map(({ id }) => id).sort(), two.ids);
  });

  test('tells what a try needs to know', async (t) => {
    const { id, webhook, owner } = await prepare(t);
    const [claimed] = await claim(randomUUID());
    assert.ok(claimed);
    assert.deepEqual(Object.keys(claimed), [
      'id',
      'token',
      'eventId',
      'webhookId',
      'ownerId',
      'tries',
      'isNew',
      'waitedSeconds',
    ]);
    assert.equal(claimed.id, id);
    assert.equal(claimed.webhookId, webhook.id);
    assert.equal(claimed.ownerId, owner.userId);
    assert.equal(claimed.tries, 0);
    assert.ok(claimed.waitedSeconds >= 0);
  });

  const switches: [string, (webhook: TestWebhook) => Promise<unknown>][] = [
    ['disabled', ({ id }) => sql`update webhooks set enabled = false where id = ${id}`],
    ['deleted', ({ id }) => sql`update webhooks set deleted_at = now() where id = ${id}`],
  ];
  for (const [name, turnOff] of switches) {
    test(`passes over a webhook that is ${name}`, async (t) => {
      const off = await prepare(t, 2);
      const on = await prepare(t, 2);
      await turnOff(off.webhook);
      const claimed = await claim(randomUUID());
      assert.deepEqual(claimed.map(({ id }) => id).sort(), on.ids);
    });
  }
});

describe('a retry', () => {
  test('is scheduled by the clock of the database, and not claimable before it is due', async (t) => {
    const { id, owner } = await prepare(t);
    const mine = randomUUID();
    await claim(mine);
    await record(mine, [failed(id, 300)]);
    const [row] = await sql`
      select next_attempt_at between now() + interval '200 seconds' and now() + interval '300 seconds' as fits,
        lease_token, lease_until, tries
      from delivery_queue where id = ${id}`;
    assert.deepEqual({ ...row }, { fits: true, lease_token: null, lease_until: null, tries: 1 });
    const { nextAttemptAt, completedAt } = await read(id, { as: owner });
    assert.match(nextAttemptAt, /^\d{4}-.*Z$/);
    assert.equal(completedAt, null);
    await promoteDue(sql);
    assert.deepEqual(await claim(randomUUID()), []);
  });

  test('is promoted when its time has come, and knows how many tries there were', async (t) => {
    const { id } = await prepare(t);
    for (const tries of [1, 2]) {
      const mine = randomUUID();
      await claim(mine);
      await record(mine, [failed(id, 300)]);
      await sql`update delivery_queue set next_attempt_at = now() where id = ${id}`;
      assert.equal((await promoteDue(sql)).promoted, 1);
      const token = randomUUID();
      const [claimed] = await claim(token);
      assert.equal(claimed?.tries, tries);
      await release(token, [id]);
    }
  });

  test('that is due soon is announced by the promotion, and a later one is not', async (t) => {
    const { id } = await prepare(t);
    const mine = randomUUID();
    await claim(mine);
    await record(mine, [failed(id, 300)]);
    assert.deepEqual(await promoteDue(sql), { promoted: 0, nextInMs: null });
    // In one transaction, in which now() stands still.
    await sql.begin(async (sql) => {
      await sql`update delivery_queue set next_attempt_at = now() + interval '1.5 seconds' where id = ${id}`;
      assert.deepEqual(await promoteDue(sql), { promoted: 0, nextInMs: 1500 });
    });
  });

  test('promotion goes in batches, the longest due first', async (t) => {
    const { ids } = await prepare(t, 3);
    const mine = randomUUID();
    await claim(mine);
    await record(
      mine,
      ids.map((id) => failed(id, 0)),
    );
    for (const [index, id] of ids.entries()) {
      await sql`update delivery_queue set next_attempt_at = now() - ${index} * interval '1 minute' where id = ${id}`;
    }
    assert.equal((await promoteDue(sql, 2)).promoted, 2);
    assert.deepEqual((await claim(randomUUID())).map(({ id }) => id).sort(), ids.slice(1));
    assert.equal((await promoteDue(sql, 2)).promoted, 1);
    assert.equal((await promoteDue(sql, 2)).promoted, 0);
  });

  test('no longer comes when the delivery is over', async (t) => {
    const { id, owner } = await prepare(t);
    const mine = randomUUID();
    await claim(mine);
    await record(mine, [tried(id, { status: 'failed', error: 'http_error', responseStatus: 500 })]);
    assert.equal((await promoteDue(sql)).promoted, 0);
    assert.deepEqual(await claim(randomUUID()), []);
    const over = await read(id, { as: owner });
    assert.equal(over.nextAttemptAt, null);
    assert.match(over.completedAt, /Z$/);
  });
});

test('what another owner holds is recorded under its own', async (t) => {
  const [one, two] = [await prepare(t), await prepare(t)];
  const mine = randomUUID();
  await claim(mine);
  const recorded = await record(mine, [tried(one.id), tried(two.id), tried(newId())]);
  assert.deepEqual([...recorded].sort(), [one.id, two.id].sort());
  assert.equal((await call('GET', `/deliveries/${one.id}`, { as: two.owner })).status, 404);
  assert.equal((await read(one.id, { as: one.owner })).attempts.length, 1);
  assert.equal((await read(two.id, { as: two.owner })).attempts.length, 1);
});

test('a redelivery asked for during the last try outlives that try', async (t) => {
  const { ids, owner } = await prepare(t);
  const [id = ''] = ids;
  await sql`update delivery_queue set tries = 9 where id = ${id}`;
  const token = newId();
  const [claimed] = (await claim(token)).filter((one) => one.id === id);
  assert.equal(claimed?.tries, 9);
  assert.equal((await call('POST', `/deliveries/${id}/redeliver`, { as: owner })).status, 202);
  await record(token, [tried(id, { status: 'failed', error: 'http_error', tries: 9 })]);
  const { body } = await call('GET', `/deliveries/${id}`, { as: owner });
  assert.equal(body.status, 'pending');
  assert.equal((await claim(newId())).filter((one) => one.id === id).length, 1, 'it can be tried at once');
});

test('a redelivery asked for during a late try starts the schedule anew, whatever that try was to wait', async (t) => {
  const { ids, owner } = await prepare(t);
  const [id = ''] = ids;
  await sql`update delivery_queue set tries = 3 where id = ${id}`;
  const token = newId();
  await claim(token);
  assert.equal((await call('POST', `/deliveries/${id}/redeliver`, { as: owner })).status, 202);
  await record(token, [{ ...failed(id, 7725), tries: 3 }]);
  assert.equal((await claim(newId())).filter((one) => one.id === id).length, 1, 'it can be tried at once');
});

test('webhooks whose every delivery is being tried do not hide those behind them', async (t) => {
  const wanted = [await prepare(t), await prepare(t)].flatMap(({ ids }) => ids);
  const found = [...(await claim(newId(), { maxLanes: 1 })), ...(await claim(newId(), { maxLanes: 1 }))];
  assert.deepEqual(found.map(({ id }) => id).sort(), wanted.sort());
});

/**
 * Redeliveries and replays at the very moment at which a result is recorded: a delivery is always in exactly one of its two
 * tables, keeps all its attempts, and is never lost.
 */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { connect, isUnavailable, only, type Sql, transaction } from '../src/db/client.ts';
import { redeliver } from '../src/store/deliveries.ts';
import {
  cancelDeliveries,
  claimDeliveries,
  recordTries,
  type TriedDelivery,
} from '../src/store/delivery-queue.ts';
import { recordEvent } from '../src/store/events.ts';
import { createReplay, type replaySelections, runReplayBatch } from '../src/store/replays.ts';
import { endDeliveries } from './delivery-rows.ts';
import { startTestService, waitFor } from './harness.ts';

// Nobody delivers here but the tests.
const service = await startTestService({ POSTHORN_ROLES: 'api' });
const sql = connect(service.databaseUrl, { max: 8, applicationName: 'races test' });
after(() => sql.end());

interface Prepared {
  ownerId: string;
  webhookId: string;
  ids: string[];
}

async function prepare(count = 1): Promise<Prepared & { id: string }> {
  const owner = await service.makeUser();
  const webhook = await service.makeWebhook('https://example.com/', {}, owner);
  const given = { ownerId: owner.userId, event: 'message.received', identityId: null, data: '{}' };
  for (let n = 0; n < count; n += 1) await recordEvent(sql, given);
  const rows = await sql<{ id: string }[]>`select id from deliveries where webhook_id = ${webhook.id}`;
  const ids = rows.map(({ id }) => id);
  return { ownerId: owner.userId, webhookId: webhook.id, ids, id: ids[0] ?? '' };
}

async function claim({ webhookId }: Prepared) {
  const start = { afterGroup: null, afterLanes: new Map(), skippedGroups: [] };
  const wanted = { allowances: new Map([[webhookId, 64]]), allowance: 0, maxLanes: 64 };
  return claimDeliveries(sql, { token: randomUUID(), ...start, ...wanted });
}

type Claimed = Awaited<ReturnType<typeof claim>>[number];

function tried({ id, token, tries }: Claimed, status: TriedDelivery['status']): TriedDelivery {
  const waitSeconds = status === 'pending' ? 3600 : null;
  const response = { responseStatus: 500, responseHeaders: '{}', responseBody: '', errorDetail: null };
  const error = status === 'delivered' ? null : 'http_error';
  return {
    id,
    token,
    tries,
    status,
    waitSeconds,
    durationMs: 1,
    startedAt: performance.now(),
    error,
    ...response,
  };
}

function createAndRunReplay(
  { ownerId, webhookId }: Prepared,
  status: (typeof replaySelections)[number],
  on: Sql = sql,
) {
  return transaction(on, async (sql) => {
    await createReplay(sql, ownerId, { webhookId, since: '2020-01-01T00:00:00Z', until: null, status });
    return runReplayBatch(sql);
  });
}

/** In which tables each delivery is, and whether all its attempts are there. */
async function look({ webhookId }: Prepared) {
  const rows = await sql<
    { id: string; status: string; attempts: number; stored: number; ready: boolean | null }[]
  >`
    select deliveries.id, status, deliveries.attempt_count as attempts, delivery_queue.ready,
      (select count(*)::int from attempts where delivery_id = deliveries.id) as stored
    from deliveries left join delivery_queue using (id) where deliveries.webhook_id = ${webhookId} order by id`;
  for (const { attempts, stored } of rows) assert.equal(attempts, stored);
  return rows;
}

async function lookAtOne(prepared: Prepared) {
  const { status, attempts, ready } = only(await look(prepared));
  return { status, attempts, ready };
}

/** Starts `second` while `first` is done but not committed. */
async function inTurn(
  first: (sql: Sql) => Promise<unknown>,
  second: () => Promise<unknown>,
): Promise<unknown> {
  let waiting: Promise<unknown> | undefined;
  await sql.begin(async (own) => {
    await first(own);
    waiting = second();
    await waitFor('the second to wait for a lock', async () => {
      const found = await sql`
        select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
      return found.count > 0;
    });
  });
  return waiting;
}

const again: [string, (prepared: Prepared, on?: Sql) => Promise<unknown>][] = [
  ['a redelivery', ({ ownerId, ids }, on = sql) => redeliver(on, ownerId, ids[0] ?? '')],
  ['a replay of all', (prepared, on) => createAndRunReplay(prepared, 'all', on)],
];

describe('while a result is being recorded,', () => {
  for (const [name, restart] of again)
    for (const status of ['delivered', 'failed', 'pending'] as const) {
      test(`${name} waits for it (${status}), and the delivery is tried again`, async () => {
        const prepared = await prepare();
        const [claimed] = await claim(prepared);
        assert.ok(claimed);
        await inTurn(
          (own) => recordTries(own, [tried(claimed, status)]),
          () => restart(prepared),
        );
        assert.deepEqual(await lookAtOne(prepared), { status: 'pending', attempts: 1, ready: true });
        assert.equal((await claim(prepared)).length, 1);
      });
    }

  test('a replay of failed deliveries finds the one that failed', async () => {
    const prepared = await prepare();
    const [claimed] = await claim(prepared);
    assert.ok(claimed);
    await inTurn(
      (own) => recordTries(own, [tried(claimed, 'failed')]),
      () => createAndRunReplay(prepared, 'failed'),
    );
    assert.deepEqual(await lookAtOne(prepared), { status: 'pending', attempts: 1, ready: true });
  });

  test('a replay of missing deliveries adds none', async () => {
    const prepared = await prepare();
    const [claimed] = await claim(prepared);
    assert.ok(claimed);
    const step = await inTurn(
      (own) => recordTries(own, [tried(claimed, 'delivered')]),
      () => createAndRunReplay(prepared, 'missing'),
    );
    assert.equal((step as { queued: number }).queued, 0);
    assert.deepEqual(await lookAtOne(prepared), { status: 'delivered', attempts: 1, ready: null });
  });
});

describe('a result that comes', () => {
  for (const [name, restart] of again)
    for (const [status, expected] of [
      ['delivered', { status: 'delivered', attempts: 1, ready: null }],
      ['failed', { status: 'pending', attempts: 1, ready: true }],
      ['pending', { status: 'pending', attempts: 1, ready: true }],
    ] as const) {
      test(`during ${name} waits for it (${status})`, async () => {
        const prepared = await prepare();
        await sql`update delivery_queue set tries = 3 where id = ${prepared.id}`;
        const [claimed] = await claim(prepared);
        assert.ok(claimed);
        const recorded = await inTurn(
          (own) => restart(prepared, own),
          () => recordTries(sql, [tried(claimed, status)]),
        );
        assert.deepEqual(recorded, [prepared.id]);
        assert.deepEqual(await lookAtOne(prepared), expected);
      });
    }

  test('for a delivery whose event is gone, during a redelivery, cancels the delivery once', async () => {
    const prepared = await prepare();
    const claimed = await claim(prepared);
    await inTurn(
      (own) => redeliver(own, prepared.ownerId, prepared.id),
      () => cancelDeliveries(sql, claimed),
    );
    assert.deepEqual(await lookAtOne(prepared), { status: 'cancelled', attempts: 0, ready: null });
    await cancelDeliveries(sql, claimed);
    assert.deepEqual(await lookAtOne(prepared), { status: 'cancelled', attempts: 0, ready: null });
  });
});

describe('two at once for a delivery that has ended:', () => {
  for (const [first, restartFirst] of again)
    for (const [second, restartSecond] of again) {
      test(`${first}, then ${second}`, async () => {
        const prepared = await prepare();
        await endDeliveries(sql, sql`id = ${prepared.id}`, 'failed');
        const result = await inTurn(
          (own) => restartFirst(prepared, own),
          () => restartSecond(prepared),
        );
        assert.ok(result, 'the second finds the delivery, too');
        assert.deepEqual(await lookAtOne(prepared), { status: 'pending', attempts: 0, ready: true });
      });
    }
});

/** As the loops do it: a replay locks many deliveries, and so does a batch of results. */
async function retried<Result>(work: () => Promise<Result>): Promise<Result> {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!isUnavailable(error)) throw error;
    }
  }
}

test('many results, redeliveries and replays at once: each delivery is in one table, with all attempts', async () => {
  const prepared = await prepare(12);
  const { ownerId, ids } = prepared;
  let recorded = 0;
  const outcomes = ['delivered', 'failed', 'pending'] as const;
  const record = async () => {
    for (let round = 0; round < 30; round += 1) {
      const claimed = await claim(prepared);
      const results = claimed.map((one, n) => tried(one, outcomes[(round + n) % 3] ?? 'failed'));
      const ids = results.length > 0 ? await retried(() => recordTries(sql, results)) : [];
      recorded += ids.length;
    }
  };
  const redeliverAll = async () => {
    for (let round = 0; round < 15; round += 1)
      for (const id of ids) assert.ok(await redeliver(sql, ownerId, id), 'a delivery is never missing');
  };
  const replay = async () => {
    for (let round = 0; round < 15; round += 1)
      await retried(() => createAndRunReplay(prepared, round % 2 ? 'all' : 'missing'));
  };
  await Promise.all([record(), record(), redeliverAll(), redeliverAll(), replay(), replay()]);
  const rows = await look(prepared);
  assert.deepEqual(
    rows.map(({ id }) => id),
    [...ids].sort(),
  );
  assert.equal(
    rows.reduce((sum, { attempts }) => sum + attempts, 0),
    recorded,
  );
  assert.ok(recorded > ids.length);
  // Whatever state they are in, none is stuck.
  for (const id of ids) await redeliver(sql, ownerId, id);
  await sql`update delivery_queue set lease_until = now() - interval '1 second'`;
  assert.equal((await claim(prepared)).length, ids.length);
});

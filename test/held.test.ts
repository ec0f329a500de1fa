/** Deliveries of disabled webhooks are held, so that nothing reads them. By the store's functions; no service runs here. */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { after, afterEach, describe, test } from 'node:test';
import { connect, only, type Sql } from '../src/db/client.ts';
import { newId } from '../src/lib/ids.ts';
import { findDelivery, redeliver } from '../src/store/deliveries.ts';
import { claimDeliveries, promoteDue, recordTries } from '../src/store/delivery-queue.ts';
import { recordEvent } from '../src/store/events.ts';
import { holdDeliveries, settleWebhooks } from '../src/store/held.ts';
import { disableGone, noteFailures, readTargets } from '../src/store/targets.ts';
import { ensureUser } from '../src/store/users.ts';
import { createWebhook, deleteWebhook, updateWebhook } from '../src/store/webhooks.ts';
import { makeDatabase, waitFor } from './harness.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 4, applicationName: 'posthorn held test' });
after(async () => {
  await sql.end();
  await database.drop();
});
afterEach(() => sql.script('truncate delivery_queue, ended_deliveries, earlier_attempts, webhooks cascade'));

const url = 'https://example.com/';

async function addOwner(): Promise<string> {
  return (await ensureUser(sql, `${randomBytes(6).toString('hex')}@users.example`)).user.userId;
}

async function addWebhook(ownerId: string): Promise<string> {
  const given = { url, events: ['message.received'], identityId: null, enabled: true, description: null };
  const id = newId();
  assert.ok(await createWebhook(sql, ownerId, { ...given, id, sealedSecret: randomBytes(8) }, 1000));
  return id;
}

function addEvent(sql: Sql, ownerId: string) {
  return recordEvent(sql, { ownerId, event: 'message.received', identityId: null, data: '{}' });
}

/** An owner with a webhook that has so many ready deliveries. */
async function prepare(deliveries: number) {
  const ownerId = await addOwner();
  const id = await addWebhook(ownerId);
  for (let n = 0; n < deliveries; n += 1) await addEvent(sql, ownerId);
  const rows = await sql<{ id: string }[]>`select id from deliveries where webhook_id = ${id} order by id`;
  return { ownerId, id, deliveries: rows.map((row) => row.id) };
}

type Prepared = Awaited<ReturnType<typeof prepare>>;

const enable = ({ ownerId, id }: Prepared, enabled: boolean) => updateWebhook(sql, ownerId, id, { enabled });

function claim(on: Sql = sql) {
  const start = { afterGroup: null, afterLanes: new Map(), skippedGroups: [] };
  const wanted = { allowances: new Map(), allowance: 16, maxLanes: 64 };
  return claimDeliveries(on, { token: randomUUID(), ...start, ...wanted });
}

async function settleAll(): Promise<void> {
  while ((await settleWebhooks(sql)).webhooks > 0);
}

async function count({ id }: { id: string }) {
  const { ready, held } = only(
    await sql<{ ready: number; held: number }[]>`
      select count(*) filter (where ready)::int as ready, count(*) filter (where next_attempt_at = 'infinity')::int as held
      from delivery_queue where webhook_id = ${id}`,
  );
  return { ready, held };
}

/** How many rows of the table the work reads, and how often it searches its indexes or scans it. */
function countReads(table: string, work: (sql: Sql) => Promise<unknown>) {
  return sql.begin(async (sql) => {
    // The counts of a connection are not set to 0 when a transaction starts.
    const read = async () =>
      only(
        await sql<{ rows: number; searches: number }[]>`
          select (seq_tup_read + idx_tup_fetch)::int as rows, (seq_scan + idx_scan)::int as searches
          from pg_stat_xact_user_tables where relname = ${table}`,
      );
    const before = await read();
    await work(sql);
    const { rows, searches } = await read();
    return { rows: rows - before.rows, searches: searches - before.searches };
  });
}

/** Waits until a statement of another connection waits for a lock. */
function lockWait(): Promise<unknown> {
  return waitFor('a statement that waits for a lock', async () => {
    const waiting = await sql`
      select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
    return waiting.count > 0;
  });
}

describe('disabling holds pending deliveries, enabling resumes them', () => {
  const ways: [string, (webhook: Prepared) => Promise<unknown>][] = [
    ['by hand', (webhook) => enable(webhook, false)],
    ['after 410', ({ id }) => readTargets(sql, [id]).then((found) => disableGone(sql, found))],
    [
      'after days of failures',
      async ({ id }) => {
        await sql`update webhooks set first_failure_at = now() - interval '6 days', failed_tries = 20 where id = ${id}`;
        await noteFailures(sql, [id]);
      },
    ],
  ];
  for (const [how, disable] of ways) {
    test(how, async () => {
      const webhook = await prepare(3);
      await disable(webhook);
      assert.deepEqual([...(await claim())], [], 'not claimed, also before they are held');
      await settleAll();
      assert.deepEqual(await count(webhook), { ready: 0, held: 3 });
      for (const id of webhook.deliveries) {
        const found = await findDelivery(sql, webhook.ownerId, id);
        assert.deepEqual([found?.status, found?.nextAttemptAt], ['pending', null]);
      }
      await enable(webhook, true);
      await settleAll();
      assert.deepEqual(await count(webhook), { ready: 3, held: 0 });
      assert.equal((await claim()).length, 3);
    });
  }

  test('in batches, each of them committed: a process that dies in between loses nothing', async () => {
    const webhook = await prepare(5);
    await enable(webhook, false);
    await settleWebhooks(sql, 2);
    assert.deepEqual(await count(webhook), { ready: 3, held: 2 });
    assert.deepEqual([...(await claim())], []);
    await settleAll();
    assert.deepEqual(await count(webhook), { ready: 0, held: 5 });
    await enable(webhook, true);
    assert.equal((await settleWebhooks(sql, 2)).resumed, 2);
    assert.deepEqual(await count(webhook), { ready: 2, held: 3 });
    assert.equal((await claim()).length, 2);
    await settleAll();
    assert.deepEqual(await count(webhook), { ready: 5, held: 0 });
  });

  test('whatever changes in between: the last change counts', async () => {
    const webhook = await prepare(6);
    for (const [enabled, expected] of [
      [false, { ready: 4, held: 2 }],
      [true, { ready: 6, held: 0 }],
      [false, { ready: 4, held: 2 }],
      [false, { ready: 2, held: 4 }],
      [true, { ready: 4, held: 2 }],
      [true, { ready: 6, held: 0 }],
    ] as const) {
      await enable(webhook, enabled);
      await settleWebhooks(sql, 2);
      assert.deepEqual(await count(webhook), expected);
    }
    await settleAll();
    assert.equal((await claim()).length, 6);
  });

  test('of one webhook of each owner in turn', async () => {
    const many = await prepare(1);
    for (let n = 0; n < 150; n += 1) await addWebhook(many.ownerId);
    const other = await prepare(1);
    await sql`update webhooks set enabled = false where owner_id = ${many.ownerId}`;
    await enable(other, false);
    await settleWebhooks(sql);
    assert.deepEqual(await count(other), { ready: 0, held: 1 });
  });

  test('by several processes at once', async () => {
    const webhook = await prepare(30);
    for (const enabled of [false, true]) {
      await enable(webhook, enabled);
      while (
        (await Promise.all([1, 2, 3].map(() => settleWebhooks(sql, 7)))).some((one) => one.webhooks > 0)
      );
      assert.deepEqual(await count(webhook), enabled ? { ready: 30, held: 0 } : { ready: 0, held: 30 });
    }
  });

  test('but not the deliveries of a webhook that was deleted: the purge has them', async () => {
    const webhook = await prepare(2);
    await deleteWebhook(sql, webhook.ownerId, webhook.id);
    await settleAll();
    assert.deepEqual(await count(webhook), { ready: 2, held: 0 });
    assert.deepEqual([...(await claim())], []);
  });
});

describe('a delivery that is claimed when its webhook is disabled', () => {
  test('keeps its lease, and its outcome is recorded', async () => {
    const webhook = await prepare(2);
    const [first, second] = await claim();
    assert.ok(first && second);
    await enable(webhook, false);
    await settleAll();
    const result = {
      durationMs: 1,
      responseStatus: 200,
      responseHeaders: null,
      responseBody: null,
      errorDetail: null,
    };
    const tried = { ...result, startedAt: performance.now(), tries: 0 };
    await recordTries(sql, [
      { ...first, ...tried, status: 'delivered', waitSeconds: null, error: null },
      { ...second, ...tried, status: 'pending', waitSeconds: 0, error: 'http_error' },
    ]);
    assert.equal((await findDelivery(sql, webhook.ownerId, first.id))?.status, 'delivered');
    assert.equal((await promoteDue(sql)).promoted, 1);
    assert.deepEqual(await count(webhook), { ready: 0, held: 1 }, 'the retry is held');
    await enable(webhook, true);
    await settleAll();
    assert.deepEqual(
      (await claim()).map(({ id }) => id),
      [second.id],
    );
  });

  test('is not claimed a second time when the webhook is enabled during the try', async () => {
    const webhook = await prepare(1);
    await claim();
    for (const enabled of [false, true]) {
      await enable(webhook, enabled);
      await settleAll();
    }
    assert.deepEqual([...(await claim())], []);
  });
});

describe('a delivery that becomes ready while its webhook is disabled', () => {
  /** The webhook is disabled, and its deliveries are held. */
  async function prepareDisabled(deliveries: number): Promise<Prepared> {
    const webhook = await prepare(deliveries);
    await enable(webhook, false);
    await settleAll();
    return webhook;
  }

  async function assertResumes(webhook: Prepared, deliveries: number): Promise<void> {
    await enable(webhook, true);
    await settleAll();
    assert.equal((await claim()).length, deliveries);
  }

  test('because it is redelivered: it is claimed, then held', async () => {
    const webhook = await prepareDisabled(1);
    const [id = ''] = webhook.deliveries;
    await redeliver(sql, webhook.ownerId, id);
    const claimed = await claim();
    assert.equal(claimed.length, 1);
    await holdDeliveries(sql, claimed);
    assert.deepEqual(await count(webhook), { ready: 0, held: 1 });
    await assertResumes(webhook, 1);
  });

  test('because its event was committed after the webhook was settled: it is claimed, then held', async () => {
    const webhook = await prepare(0);
    await sql.begin(async (late) => {
      await addEvent(late, webhook.ownerId);
      await enable(webhook, false);
      await settleAll();
    });
    const claimed = await claim();
    assert.equal(claimed.length, 1);
    await holdDeliveries(sql, claimed);
    assert.deepEqual([...(await claim())], []);
    await assertResumes(webhook, 1);
  });

  test('because its webhook is gone: it is claimed, then held', async () => {
    const webhook = await prepare(1);
    await sql`delete from webhooks where id = ${webhook.id}`;
    await holdDeliveries(sql, await claim());
    assert.deepEqual(await count(webhook), { ready: 0, held: 1 });
    assert.deepEqual([...(await claim())], []);
  });

  test('is not held if the webhook is enabled at that moment', async () => {
    const webhook = await prepareDisabled(1);
    await redeliver(sql, webhook.ownerId, webhook.deliveries[0] ?? '');
    const claimed = await claim();
    let holding: Promise<void> | undefined;
    await sql.begin(async (enabling) => {
      await updateWebhook(enabling, webhook.ownerId, webhook.id, { enabled: true });
      holding = holdDeliveries(sql, claimed);
      await lockWait();
    });
    await holding;
    assert.deepEqual(await count(webhook), { ready: 1, held: 0 });
    assert.equal((await claim()).length, 1);
  });

  test('is not held if the webhook is enabled when a retry becomes due', async () => {
    const webhook = await prepareDisabled(1);
    await sql`update delivery_queue set next_attempt_at = now()`;
    let promoting: ReturnType<typeof promoteDue> | undefined;
    await sql.begin(async (enabling) => {
      await updateWebhook(enabling, webhook.ownerId, webhook.id, { enabled: true });
      promoting = promoteDue(sql);
      await lockWait();
    });
    assert.equal((await promoting)?.promoted, 1);
    assert.deepEqual(await count(webhook), { ready: 1, held: 0 });
  });

  test('stays held until the webhook is enabled, if that is asked for meanwhile', async () => {
    const webhook = await prepareDisabled(1);
    await redeliver(sql, webhook.ownerId, webhook.deliveries[0] ?? '');
    const claimed = await claim();
    let enabling: Promise<unknown> | undefined;
    await sql.begin(async (holding) => {
      await holdDeliveries(holding, claimed);
      enabling = enable(webhook, true);
      await lockWait();
    });
    await enabling;
    await settleAll();
    assert.deepEqual(await count(webhook), { ready: 1, held: 0 });
  });
});

test('neither claims nor promotions read held deliveries: 20,000 of 1,000 webhooks', async () => {
  const [ownerId, busy] = [await addOwner(), await prepare(3)];
  await sql.script(`
    insert into webhooks (id, owner_id, url, events, secret)
    select gen_random_uuid(), '${ownerId}', '${url}', '{message.received}', '' from generate_series(1, 1000);
    insert into delivery_queue (id, owner_id, event_id, webhook_id, event)
    select gen_random_uuid(), '${ownerId}', gen_random_uuid(), id, 'message.received'
    from webhooks, generate_series(1, 20) where owner_id = '${ownerId}';
    update webhooks set enabled = false where owner_id = '${ownerId}'`);
  await sql.script('analyze delivery_queue, webhooks');
  const claimThree = async (sql: Sql) => assert.equal((await claim(sql)).length, 3);
  const walking = await countReads('delivery_queue', claimThree);
  assert.ok(walking.searches > 1000, 'before they are held, each webhook costs a claim a search');

  await sql`update delivery_queue set lease_token = null, lease_until = null where webhook_id = ${busy.id}`;
  await settleAll();
  const claiming = await countReads('delivery_queue', claimThree);
  assert.ok(claiming.rows < 20 && claiming.searches < 20, JSON.stringify(claiming));
  const promoting = await countReads('delivery_queue', promoteDue);
  assert.ok(promoting.rows < 10 && promoting.searches < 10, JSON.stringify(promoting));
  await sql.script('analyze webhooks');
  const webhooks = await countReads('webhooks', async (sql) => {
    await claim(sql);
    await promoteDue(sql);
    await settleWebhooks(sql);
  });
  assert.ok(webhooks.rows < 5, JSON.stringify(webhooks));
});

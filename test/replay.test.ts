/** Replays: which past events are sent again, how far one is, and that none is queued twice. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { purgeDeletedWebhooks } from '../src/store/purge.ts';
import { createReplay, replaySelections, runReplayBatch } from '../src/store/replays.ts';
import { deleteWebhook } from '../src/store/webhooks.ts';
import { clearDeliveries, endDeliveries } from './delivery-rows.ts';
import { assertProblem, startTestService, type TestUser, type TestWebhook, waitFor } from './harness.ts';
import { answer, startReceiver } from './receiver.ts';

const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '3600' });
// Beside it one that delivers nothing, for what the tests do by hand.
const idle = await startTestService({ POSTHORN_ROLES: 'api' });
const receiver = await startReceiver();
after(() => receiver.close());

const long = '2020-01-01T00:00:00Z';
const replayFields = [
  ...['id', 'webhookId', 'since', 'until', 'status', 'examined', 'queued', 'createdAt', 'completedAt'],
];

function replay(webhook: TestWebhook, body: object, as: TestUser = service.user) {
  return service.call('POST', `/webhooks/${webhook.id}/replay`, { as, body });
}

/** Asks for it, waits for its end, and gives what it says. */
async function replayed(webhook: TestWebhook, body: object, as: TestUser = service.user) {
  const asked = await replay(webhook, body, as);
  assert.equal(asked.status, 202, asked.text);
  return waitFor('the end of the replay', async () => {
    const { body } = await service.call('GET', asked.headers.get('location') ?? '', { as });
    return body.completedAt ? body : null;
  });
}

describe('over the interface', () => {
  test('202 with a Location, where progress can be read until it is complete', async () => {
    const webhook = await service.makeWebhook(receiver.url('/progress'), { enabled: false });
    const eventId = await service.makeEvent();
    await service.call('PATCH', `/webhooks/${webhook.id}`, { body: { enabled: true } });
    const asked = await replay(webhook, { since: long });
    assert.equal(asked.status, 202);
    assert.deepEqual(Object.keys(asked.body), replayFields);
    assert.equal(asked.body.status, 'missing_or_failed');
    assert.equal(asked.body.completedAt, null);
    assert.equal(asked.body.since, '2020-01-01T00:00:00.000Z');
    const location = asked.headers.get('location') ?? '';
    assert.equal(location, `/webhooks/${webhook.id}/replays/${asked.body.id}`);
    const done = await waitFor('its end', async () => {
      const { body } = await service.call('GET', location);
      return body.completedAt ? body : null;
    });
    assert.deepEqual(Object.keys(done), replayFields);
    assert.deepEqual([done.examined, done.queued], [1, 1]);
    assert.equal((await service.findDelivery(eventId, webhook)).status, 'delivered');
  });

  test('409 while the webhook is disabled', async () => {
    const webhook = await service.makeWebhook(receiver.url('/off'), { enabled: false });
    assertProblem(await replay(webhook, { since: long }), 409, 'webhook_disabled');
    assert.equal((await service.sql`select from replays where webhook_id = ${webhook.id}`).count, 0);
  });

  test("404 for another owner's, and for a replay of another webhook", async () => {
    const webhook = await service.makeWebhook(receiver.url('/mine'));
    const other = await service.makeWebhook(receiver.url('/mine-too'));
    const { id } = await replayed(webhook, { since: long, status: 'missing' });
    const stranger = await service.makeUser();
    assertProblem(await replay(webhook, { since: long }, stranger), 404, 'not_found');
    const get = (of: TestWebhook, replayId: string, as = service.user) =>
      service.call('GET', `/webhooks/${of.id}/replays/${replayId}`, { as });
    assert.equal((await get(webhook, id)).status, 200);
    assertProblem(await get(webhook, id, stranger), 404, 'not_found');
    assertProblem(await get(other, id), 404, 'not_found');
    assertProblem(await get(webhook, newId()), 404, 'not_found');
  });

  for (const body of [
    {},
    { since: 'yesterday' },
    { since: long, status: 'none' },
    { since: long, form: 1 },
    { since: long, until: '2019-12-31T23:59:59Z' },
    { since: long, until: long },
  ]) {
    test(`400 for ${JSON.stringify(body)}`, async () => {
      const webhook = await service.makeWebhook(receiver.url('/bad'));
      assert.equal((await replay(webhook, body)).status, 400);
    });
  }

  test('an event whose delivery failed gets its tries appended to the same delivery', async () => {
    receiver.behaveAt('/repaired', answer(410));
    const webhook = await service.makeWebhook(receiver.url('/repaired'));
    const eventId = await service.makeEvent();
    const failed = await service.findDelivery(eventId, webhook);
    await waitFor('its end', async () => {
      return !(await service.call('GET', `/webhooks/${webhook.id}`)).body.enabled;
    });
    receiver.behaveAt('/repaired', answer(200));
    await service.call('PATCH', `/webhooks/${webhook.id}`, { body: { enabled: true } });
    await replayed(webhook, { since: long, status: 'failed' });
    const again = await service.findDelivery(eventId, webhook, ({ attemptCount }) => attemptCount === 2);
    assert.equal(again.id, failed.id);
    assert.equal(again.status, 'delivered');
    assert.equal(again.attempts.length, 2);
  });

  test('test events are never replayed', async () => {
    const owner = await service.makeUser();
    const webhook = await service.makeWebhook(receiver.url('/tested'), {}, owner);
    const other = await service.makeWebhook(receiver.url('/not-tested'), {}, owner);
    receiver.behaveAt('/tested', answer(500));
    await service.call('POST', `/webhooks/${webhook.id}/test`, { as: owner });
    for (const one of [webhook, other]) {
      const { examined, queued } = await replayed(one, { since: long, status: 'all' }, owner);
      assert.deepEqual([examined, queued], [0, 0]);
    }
    assert.equal(receiver.requests.filter(({ url }) => url === '/tested').length, 1);
  });
});

describe('selections', () => {
  const { sql } = idle;
  const statuses = ['pending', 'delivered', 'failed', 'cancelled'] as const;

  /** A webhook with an event for every status that its delivery can have, and one without a delivery. */
  async function prepare() {
    const owner = await idle.makeUser();
    const webhook = await idle.makeWebhook('https://example.com/', {}, owner);
    const events: Record<string, string> = {};
    for (const status of statuses) {
      const id = await idle.makeEvent({ ownerId: owner.userId });
      events[status] = id;
      await sql`update delivery_queue set tries = 3, attempt_count = 3 where event_id = ${id}`;
      if (status !== 'pending') await endDeliveries(sql, sql`event_id = ${id}`, status);
    }
    await sql`update webhooks set enabled = false where id = ${webhook.id}`;
    events.missing = await idle.makeEvent({ ownerId: owner.userId });
    await sql`update webhooks set enabled = true where id = ${webhook.id}`;
    return { owner, webhook, events };
  }

  const wanted: Record<(typeof replaySelections)[number], string[]> = {
    missing: ['missing'],
    failed: ['cancelled', 'failed'],
    missing_or_failed: ['cancelled', 'failed', 'missing'],
    all: ['cancelled', 'delivered', 'failed', 'missing', 'pending'],
  };
  for (const status of replaySelections) {
    test(`${status}: ${wanted[status].join(', ')}`, async () => {
      const { owner, webhook, events } = await prepare();
      const { id } = await createReplay(sql, owner.userId, {
        webhookId: webhook.id,
        since: long,
        until: null,
        status,
      });
      const step = await runReplayBatch(sql);
      assert.deepEqual([step?.examined, step?.queued], [5, wanted[status].length]);
      const rows =
        await sql`select event_id, tries from delivery_queue where webhook_id = ${webhook.id} and ready`;
      const queued = rows.filter(({ tries }) => tries === 0).map((row) => row.event_id);
      assert.deepEqual(queued.sort(), wanted[status].map((name) => events[name]).sort());
      const [row] = await sql`select completed_at is not null as done from replays where id = ${id}`;
      assert.equal(row?.done, true);
      assert.equal(await runReplayBatch(sql), undefined);
    });
  }

  test('[since, until): the first moment is in, the last is not', async () => {
    const owner = await idle.makeUser();
    const webhook = await idle.makeWebhook('https://example.com/', {}, owner);
    const at = ['10:00:00', '10:00:00.000001', '11:59:59.999999', '12:00:00', '09:59:59.999999'];
    const ids: string[] = [];
    for (const time of at) {
      const id = await idle.makeEvent({ ownerId: owner.userId });
      await sql`update events set created_at = ${`2026-01-31T${time}Z`}::text::timestamptz where id = ${id}`;
      ids.push(id);
    }
    await clearDeliveries(sql, sql`webhook_id = ${webhook.id}`);
    await createReplay(sql, owner.userId, {
      ...{ webhookId: webhook.id, since: '2026-01-31T10:00:00Z', until: '2026-01-31T12:00:00Z' },
      status: 'missing',
    });
    while (await runReplayBatch(sql, 1));
    const rows = await sql`select event_id from deliveries where webhook_id = ${webhook.id}`;
    assert.deepEqual(rows.map((row) => row.event_id).sort(), ids.slice(0, 3).sort());
  });

  test('only events that match the webhook as it is now', async () => {
    const [owner, other] = [await idle.makeUser(), await idle.makeUser()];
    const made = await idle.call('POST', '/identities', { as: owner, body: { value: 'now@match.example' } });
    const identityId = made.body.id;
    const webhook = await idle.makeWebhook('https://example.com/', { enabled: false }, owner);
    const given = { ownerId: owner.userId, identityId };
    await idle.makeEvent(given);
    await idle.makeEvent({ ...given, identityId: null });
    const sent = await idle.makeEvent({ ...given, event: 'message.sent' });
    await idle.makeEvent({ ownerId: other.userId, event: 'message.sent', identityId });
    const body = { enabled: true, events: ['message.sent'], identityId };
    assert.equal((await idle.call('PATCH', `/webhooks/${webhook.id}`, { as: owner, body })).status, 200);
    await createReplay(sql, owner.userId, { webhookId: webhook.id, since: long, until: null, status: 'all' });
    const step = await runReplayBatch(sql);
    assert.deepEqual([step?.examined, step?.queued], [3, 1]);
    const rows = await sql`select event_id from deliveries where webhook_id = ${webhook.id}`;
    assert.deepEqual(
      rows.map((row) => row.event_id),
      [sent],
    );
  });
});

describe('thousands of events', () => {
  const { sql } = idle;
  const count = 5000;
  let owner: TestUser;
  before(async () => {
    owner = await idle.makeUser();
    // Many at the same moment: the position must tell them apart.
    await sql`
      insert into events (id, owner_id, event, data, created_at)
      select gen_random_uuid(), ${owner.userId}, 'message.received', '{}', now() - (number % 7) * interval '1 minute'
      from generate_series(1, ${count}::int) number`;
  });

  test('go in batches, with progress after each', async () => {
    const webhook = await idle.makeWebhook('https://example.com/', {}, owner);
    const { id } = await createReplay(sql, owner.userId, {
      ...{ webhookId: webhook.id, since: long, until: null, status: 'missing' as const },
    });
    const progress: number[] = [];
    while (await runReplayBatch(sql, 1000)) {
      const [row] = await sql`select examined, queued, completed_at from replays where id = ${id}`;
      assert.equal(row?.examined, row?.queued);
      progress.push(row?.examined);
    }
    assert.deepEqual(progress, [1000, 2000, 3000, 4000, 5000, 5000]);
    const [row] = await sql`
      select count(*)::int, count(distinct event_id)::int as events from deliveries where webhook_id = ${webhook.id}`;
    assert.deepEqual({ ...row }, { count, events: count });
  });

  test('with several processes at work on several replays: each event is queued once', async () => {
    const webhooks = await Promise.all(
      [1, 2, 3].map(() => idle.makeWebhook('https://example.com/', {}, owner)),
    );
    for (const webhook of [...webhooks, ...webhooks]) {
      await createReplay(sql, owner.userId, {
        webhookId: webhook.id,
        since: long,
        until: null,
        status: 'missing',
      });
    }
    const open = async () => (await sql`select from replays where completed_at is null`).count > 0;
    const work = async () => {
      let queued = 0;
      while (await open()) queued += (await runReplayBatch(idle.sql, 400))?.queued ?? 0;
      return queued;
    };
    const queued = await Promise.all([work(), work(), work(), work()]);
    assert.equal(
      queued.reduce((sum, one) => sum + one),
      3 * count,
    );
    const totals = await sql`
      select sum(examined)::int as examined, sum(queued)::int as queued from replays
      where webhook_id = any (${webhooks.map(({ id }) => id)})`;
    assert.deepEqual({ ...totals[0] }, { examined: 6 * count, queued: 3 * count });
    const [row] = await sql`
      select count(*)::int from deliveries where webhook_id = any (${webhooks.map(({ id }) => id)})`;
    assert.equal(row?.count, 3 * count);
  });
});

describe('side by side', () => {
  /** The replays of so many webhooks over six events each, worked on in batches of two. */
  async function prepare(count: number) {
    const owner = await idle.makeUser();
    const webhooks = [];
    for (let n = 0; n < count; n += 1) {
      webhooks.push(await idle.makeWebhook('https://example.com/', { enabled: false }, owner));
    }
    for (let n = 0; n < 6; n += 1) await idle.makeEvent({ ownerId: owner.userId });
    await idle.sql`update webhooks set enabled = true where owner_id = ${owner.userId}`;
    const ids = [];
    for (const { id } of webhooks) {
      const given = { webhookId: id, since: long, until: null, status: 'missing' as const };
      ids.push((await createReplay(idle.sql, owner.userId, given)).id);
    }
    return { owner, webhooks, ids };
  }
  const examined = async (ids: string[]) => {
    const rows = await idle.sql`
      select examined from replays where id = any (${ids}::uuid[]) order by array_position(${ids}::uuid[], id)`;
    return rows.map((row) => row.examined);
  };

  test('they take turns, so that a long one does not hold up the others', async () => {
    const { ids } = await prepare(3);
    for (let turn = 0; turn < 3; turn += 1) await runReplayBatch(idle.sql, 2);
    assert.deepEqual(await examined(ids), [2, 2, 2]);
    while (await runReplayBatch(idle.sql, 2));
  });

  test('owners take turns first, so that many replays of one do not hold up another', async () => {
    const many = await prepare(5);
    await runReplayBatch(idle.sql, 6);
    const { ids } = await prepare(1);
    // The first replay of the other owner is complete, and still counts as that owner's turn.
    await runReplayBatch(idle.sql, 6);
    assert.deepEqual(await examined(ids), [6]);
    assert.deepEqual(await examined(many.ids), [6, 0, 0, 0, 0]);
    while (await runReplayBatch(idle.sql));
  });

  test('one whose webhook is turned off waits, and goes on from there when it is on again', async () => {
    const { webhooks, ids } = await prepare(1);
    const turn = (enabled: boolean) => idle.sql`
      update webhooks set enabled = ${enabled} where id = ${webhooks[0]?.id ?? null}`;
    await runReplayBatch(idle.sql, 2);
    await turn(false);
    assert.equal(await runReplayBatch(idle.sql, 2), undefined);
    assert.deepEqual(await examined(ids), [2]);
    await turn(true);
    while (await runReplayBatch(idle.sql, 2));
    const made = await idle.sql`select from deliveries where webhook_id = ${webhooks[0]?.id ?? null}`;
    assert.equal(made.count, 6);
  });

  test('one whose webhook is deleted ends and queues nothing more', async () => {
    const { owner, webhooks, ids } = await prepare(1);
    await deleteWebhook(idle.sql, owner.userId, webhooks[0]?.id ?? '');
    while (await runReplayBatch(idle.sql, 2));
    const [row] = await idle.sql`select completed_at, queued from replays where id = ${ids[0] ?? null}`;
    assert.ok(row?.completed_at);
    assert.equal(row?.queued, 0);
  });

  test('one whose webhook is purged goes with it', async () => {
    const { owner, webhooks, ids } = await prepare(1);
    await idle.call('DELETE', `/webhooks/${webhooks[0]?.id}`, { as: owner });
    while (await purgeDeletedWebhooks(idle.sql));
    assert.equal((await idle.sql`select from replays where id = ${ids[0] ?? null}`).count, 0);
  });
});

test('no replay of this file made the service log an error', () => {
  const errors = service.logged.filter(({ level }) => ['error', 'fatal'].includes(String(level)));
  assert.deepEqual(errors, []);
});

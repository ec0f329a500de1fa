/** What is removed when its time is over, in small batches, and what never is. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { identifier } from '../src/db/sql.ts';
import { recordEvent } from '../src/store/events.ts';
import { purgeDeletedWebhooks, purgeExpired, purgeOld } from '../src/store/purge.ts';
import { ensureUser } from '../src/store/users.ts';
import { deleteWebhook } from '../src/store/webhooks.ts';
import { endDeliveries, setCreated } from './delivery-rows.ts';
import { makeDatabase, startTestService, type TestUser, type TestWebhook, waitFor } from './harness.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 4, applicationName: 'retention test' });
after(async () => {
  await sql.end();
  await database.drop();
});
const days = 30;

interface Made {
  owner: TestUser;
  webhook: TestWebhook;
}

/** Made by a service that has ended by now, so that its own purge does not meddle: an owner each, with a webhook. */
const prepared: Made[] = [];
const service = await startTestService({ POSTHORN_ROLES: 'api', DATABASE_URL: database.url });
for (let n = 0; n < 20; n += 1) {
  const owner = await service.makeUser();
  prepared.push({ owner, webhook: await service.makeWebhook('https://example.com/', {}, owner) });
}
await service.stop();

function prepare(): Made {
  return prepared.pop() ?? assert.fail('prepare more');
}

async function makeEvent(given: { ownerId: string; id?: string }): Promise<string> {
  return (await recordEvent(sql, { event: 'message.received', identityId: null, data: '{}', ...given })).id;
}

/** An id as one of that age has it: it begins with the time. */
async function agedId(ageDays: number): Promise<string> {
  const [row] = await sql`
    select overlay(first_id_at(now() - ${ageDays} * interval '1 day')::text placing
      substr(gen_random_uuid()::text, 15) from 15) as id`;
  return row?.id;
}

/** An event, with its deliveries, that happened so long ago. */
async function makeAged(ageDays: number, ownerId: string, id?: string): Promise<string> {
  const eventId = await makeEvent({ id: id ?? (await agedId(ageDays)), ownerId });
  const then = sql`now() - ${ageDays} * interval '1 day'`;
  await sql`update events set created_at = ${then} where id = ${eventId}`;
  await setCreated(sql, then, sql`event_id = ${eventId}`);
  return eventId;
}

/** An event of that age whose delivery, with one attempt, has come to this status. */
async function addOld({ owner }: Made, ageDays: number, status = 'delivered'): Promise<string> {
  const id = await makeAged(ageDays, owner.userId);
  await sql`update delivery_queue set attempt_count = 1 where event_id = ${id}`;
  if (status !== 'pending') await endDeliveries(sql, sql`event_id = ${id}`, status);
  await sql`
    insert into earlier_attempts (delivery_id, id, owner_id, started_at, duration_ms)
    select id, gen_random_uuid(), owner_id, now(), 1 from deliveries where event_id = ${id}`;
  return id;
}

async function left({ owner }: Made) {
  const [row] = await sql`
    select (select array_agg(id::text order by id) from events where owner_id = ${owner.userId}) as events,
      (select array_agg(event_id::text order by id) from deliveries where owner_id = ${owner.userId}) as deliveries,
      (select count(*)::int from attempts where owner_id = ${owner.userId}) as attempts`;
  return { events: row?.events ?? [], deliveries: row?.deliveries ?? [], attempts: row?.attempts };
}

async function purgeAll(batch?: number): Promise<number> {
  let rounds = 1;
  while (await purgeOld(sql, days, batch)) rounds += 1;
  return rounds;
}

describe('what is past its retention', () => {
  test('goes: events, deliveries of every outcome, attempts; what is younger stays', async () => {
    const made = prepare();
    for (const status of ['delivered', 'failed', 'cancelled']) await addOld(made, 30.01, status);
    const young = [];
    for (const status of ['delivered', 'failed', 'cancelled']) young.push(await addOld(made, 29.99, status));
    young.sort();
    await purgeAll();
    assert.deepEqual(await left(made), { events: young, deliveries: young, attempts: 3 });
  });

  test('of a delivery that was tried very often, a few attempts go at a time, and then the delivery', async () => {
    const made = prepare();
    const id = await addOld(made, 31);
    await sql`
      insert into earlier_attempts (delivery_id, id, owner_id, started_at, duration_ms)
      select deliveries.id, gen_random_uuid(), owner_id, now(), 1
      from deliveries cross join generate_series(1, 64) where event_id = ${id}`;
    const counts = [65];
    while (await purgeOld(sql, days, 2)) counts.push((await left(made)).attempts);
    assert.deepEqual(counts.slice(0, 5), [65, 45, 25, 5, 0]);
    assert.deepEqual(await left(made), { events: [], deliveries: [], attempts: 0 });
  });

  test('what a program made whose clock was behind is as old as PostgreSQL says', async () => {
    const made = prepare();
    const id = await makeEvent({ id: await agedId(31), ownerId: made.owner.userId });
    await endDeliveries(sql, sql`event_id = ${id}`, 'failed');
    await purgeAll();
    assert.deepEqual(await left(made), { events: [id], deliveries: [id], attempts: 0 });
    await sql`update events set created_at = now() - interval '31 days' where id = ${id}`;
    await setCreated(sql, sql`now() - interval '31 days'`, sql`event_id = ${id}`);
    await purgeAll();
    assert.deepEqual((await left(made)).events, []);
  });

  test('secrets that sign no more and replays that ended long ago go, and no others', async () => {
    const { owner, webhook } = prepare();
    for (const age of ['23 hours', '25 hours']) {
      await sql`
        insert into retired_webhook_secrets (webhook_id, owner_id, secret, retired_at)
        values (${webhook.id}, ${owner.userId}, '', now() - ${age}::text::interval)`;
    }
    for (const age of [null, '29 days', '31 days']) {
      await sql`
        insert into replays (id, owner_id, webhook_id, since, until, selection, position_at, completed_at)
        values (gen_random_uuid(), ${owner.userId}, ${webhook.id}, now(), now(), 'all', now(),
          now() - ${age}::text::interval)`;
    }
    assert.equal(await purgeExpired(sql, days), false);
    const count = async (table: string) =>
      (await sql`select from ${identifier(table)} where webhook_id = ${webhook.id}`).count;
    assert.equal(await count('retired_webhook_secrets'), 1);
    assert.equal(await count('replays'), 2);
  });

  test('an event that nobody listened to goes as well', async () => {
    const { user: owner } = await ensureUser(sql, 'nobody@users.example');
    await makeAged(31, owner.userId);
    const kept = await makeAged(29, owner.userId);
    await purgeAll();
    const rows = await sql`select id from events where owner_id = ${owner.userId}`;
    assert.deepEqual(
      rows.map(({ id }) => id),
      [kept],
    );
  });

  test('what is pending stays with its event, however old', async () => {
    const made = prepare();
    const pending = await addOld(made, 40, 'pending');
    await addOld(made, 45);
    await purgeAll();
    assert.deepEqual(await left(made), { events: [pending], deliveries: [pending], attempts: 1 });
    const [row] = await sql`select ready from delivery_queue where event_id = ${pending}`;
    assert.equal(row?.ready, true);

    await endDeliveries(sql, sql`event_id = ${pending}`);
    await purgeAll();
    assert.deepEqual(await left(made), { events: [], deliveries: [], attempts: 0 });
  });

  test('a delivery that a replay made of an old event keeps that event, and no other', async () => {
    const made = prepare();
    const replayed = await addOld(made, 40);
    await setCreated(sql, sql`now()`, sql`event_id = ${replayed}`);
    const other = prepare();
    await addOld(other, 33);
    await purgeAll();
    assert.deepEqual((await left(made)).events, [replayed]);
    assert.deepEqual((await left(other)).events, []);
  });

  const endings: [string, (made: Made) => Promise<unknown>][] = [
    ['disabled', ({ webhook }) => sql`update webhooks set enabled = false where id = ${webhook.id}`],
    ['gone', ({ webhook }) => sql`delete from webhooks where id = ${webhook.id}`],
  ];
  for (const [name, end] of endings) {
    test(`what is pending for a webhook that is ${name} is cancelled, then removed`, async () => {
      const made = prepare();
      await addOld(made, 31, 'pending');
      const young = await addOld(made, 29, 'pending');
      await end(made);
      await purgeAll();
      assert.deepEqual(await left(made), { events: [young], deliveries: [young], attempts: 1 });
      const [row] = await sql`select status from deliveries where event_id = ${young}`;
      assert.equal(row?.status, 'pending');
    });
  }

  test('goes in small batches', async () => {
    const made = prepare();
    for (let index = 0; index < 7; index++) await addOld(made, 31 + index);
    assert.equal(await purgeOld(sql, days, 3), true);
    assert.equal((await left(made)).deliveries.length, 4);
    assert.equal((await left(made)).attempts, 4);
    assert.equal((await left(made)).events.length, 7, 'events after their deliveries');
    assert.ok((await purgeAll(3)) > 2);
    assert.deepEqual(await left(made), { events: [], deliveries: [], attempts: 0 });
  });
});

describe('a deleted webhook', () => {
  const remove = ({ webhook }: Made) =>
    sql`update webhooks set deleted_at = now(), enabled = false where id = ${webhook.id}`;

  test('loses its deliveries and attempts in batches, then goes itself; its events stay', async () => {
    const made = prepare();
    const events = [];
    for (const status of ['pending', 'delivered', 'failed', 'cancelled', 'pending']) {
      events.push(await addOld(made, 1, status));
    }
    await remove(made);
    const counts: number[] = [];
    while (await purgeDeletedWebhooks(sql, 2)) counts.push((await left(made)).deliveries.length);
    assert.deepEqual(counts, [1, 0], 'two that are pending and two that have ended at a time');
    assert.deepEqual(await left(made), { events: events.sort(), deliveries: [], attempts: 0 });
    assert.equal((await sql`select from webhooks where id = ${made.webhook.id}`).count, 0);
  });

  test('in the middle of a purge does not go before its deliveries', async () => {
    const [first, second] = [prepare(), prepare()];
    await addOld(first, 1);
    await addOld(second, 1);
    await remove(first);
    let purging: Promise<boolean> | undefined;
    await sql.begin(async (holder) => {
      // The purge finds this one, has to wait for it, and in the end has none to remove.
      await holder`delete from ended_deliveries where webhook_id = ${first.webhook.id}`;
      purging = purgeDeletedWebhooks(sql);
      await waitFor('the purge to wait', async () => {
        // A transaction sees activity as it was when it first looked.
        await holder`select pg_stat_clear_snapshot()`;
        const waiting = await holder`
          select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
        return waiting.count > 0;
      });
      assert.ok(await deleteWebhook(sql, second.owner.userId, second.webhook.id));
    });
    assert.equal(await purging, false);
    assert.equal((await sql`select from webhooks where id = ${first.webhook.id}`).count, 0);
    assert.equal((await sql`select from webhooks where id = ${second.webhook.id}`).count, 1);
    while (await purgeDeletedWebhooks(sql));
    assert.deepEqual((await left(second)).deliveries, []);
    assert.equal((await sql`select from webhooks where id = ${second.webhook.id}`).count, 0);
  });

  test('takes nothing of any other along', async () => {
    const [gone, stays] = [prepare(), prepare()];
    await addOld(gone, 1);
    const kept = await addOld(stays, 1);
    await remove(gone);
    while (await purgeDeletedWebhooks(sql));
    assert.deepEqual(await left(stays), { events: [kept], deliveries: [kept], attempts: 1 });
  });
});

test('the id of a delivery begins with the time of its event, and is the same for the same pair', async () => {
  const made = prepare();
  const eventId = await addOld(made, 12);
  const [row] = await sql`
    select id, delivery_id(${eventId}, ${made.webhook.id}) as again, id < first_id_at(now() - interval '11 days') as old,
      id >= first_id_at(now() - interval '13 days') as young
    from deliveries where event_id = ${eventId}`;
  assert.equal(row?.id, row?.again);
  assert.equal(row?.id.slice(0, 13), eventId.slice(0, 13));
  assert.deepEqual([row?.old, row?.young], [true, true]);
  assert.match(row?.id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}$/);
});

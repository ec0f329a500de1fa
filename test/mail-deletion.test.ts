/** Deletion of mail: with its identity, at once from every answer and later from the tables; and by retention. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { connect, type Pool } from '../src/db/client.ts';
import { identifier } from '../src/db/sql.ts';
import { deleteIdentity } from '../src/store/identities.ts';
import { findRaw, readRaw } from '../src/store/messages.ts';
import { lockPurge, purgeDeletedIdentities, purgeOld } from '../src/store/purge.ts';
import { endDeliveries } from './delivery-rows.ts';
import { startDns } from './dns.ts';
import {
  assertProblem,
  callUrl,
  makeDatabase,
  startTestService,
  type TestService,
  waitFor,
} from './harness.ts';
import { answer, startReceiver } from './receiver.ts';

const dns = await startDns();
const receiver = await startReceiver();
after(async () => {
  await receiver.close();
  await dns.close();
});

interface Identity {
  id: string;
  value: string;
}

async function makeIdentity(at: TestService, as = at.user): Promise<Identity> {
  const value = `a${randomBytes(5).toString('hex')}@gone.example`;
  const made = await at.call('POST', '/identities', { as, body: { value } });
  assert.equal(made.status, 201, made.text);
  return made.body;
}

/** Sends one message to these identities; returns their message ids in order. */
async function arrive(at: TestService, to: Identity[], text = 'Body', as = at.user): Promise<string[]> {
  const query = to.map(({ value }) => `recipient=${value}`).join('&');
  const headers = { 'content-type': 'message/rfc822' };
  const taken = await at.call('POST', `/inbound?${query}`, {
    as,
    body: `Subject: x\r\n\r\n${text}`,
    headers,
  });
  assert.equal(taken.status, 202, taken.text);
  const rows = await at.sql`select id, identity_id from messages where id = any (${taken.body.messageIds})`;
  return to.map(({ id }) => rows.find((row) => row.identity_id === id)?.id);
}

/** How many rows there are in all. */
async function countRows(sql: Pool): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const table of ['messages', 'events', 'deliveries', 'attempts', 'raw_chunks']) {
    counts[table] = (await sql`select from ${identifier(table)}`).count;
  }
  return counts;
}

/** Too large for the row of its message: it has rows of its own. */
const unpacked = 'x'.repeat(70_000);

const none = { messages: 0, events: 0, deliveries: 0, attempts: 0, raw_chunks: 0 };

describe('an identity that is deleted', async () => {
  const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
  const { call, sql } = service;
  const path = (id: string, more = '') => `/messages/${id}${more}`;

  test('204 at once, also while its mail is being delivered', async () => {
    const identity = await makeIdentity(service);
    await arrive(service, [identity]);
    await sql.begin(async (tx) => {
      await tx`lock table messages, raw_chunks, events, delivery_queue, ended_deliveries, earlier_attempts in share row exclusive mode`;
      assert.equal((await call('DELETE', `/identities/${identity.id}`)).status, 204);
    });
    assertProblem(await call('DELETE', `/identities/${identity.id}`), 404, 'not_found');
  });

  test('its messages, raw and links are gone from every answer: 404', async () => {
    const [gone, stays] = [await makeIdentity(service), await makeIdentity(service)];
    const [lost = '', kept = ''] = await arrive(service, [gone, stays]);
    const [event] = (await call('GET', `/events?identity_id=${gone.id}`)).body;
    const { rawEmailUrl } = (await call('GET', `/events/${event.id}`)).body.data;
    assert.equal((await callUrl('GET', rawEmailUrl, { as: null })).status, 200);
    assert.equal((await call('DELETE', `/identities/${gone.id}`)).status, 204);

    for (const one of [path(lost), path(lost, '/raw'), path(lost, '/attachments/0')]) {
      assertProblem(await call('GET', one), 404, 'not_found');
    }
    assertProblem(await callUrl('GET', rawEmailUrl, { as: null }), 404, 'not_found');
    const listed = (await call('GET', '/messages')).body.map(({ id }: { id: string }) => id);
    assert.ok(!listed.includes(lost) && listed.includes(kept));
    assert.deepEqual((await call('GET', `/messages?identity_id=${gone.id}`)).body, []);
    assert.equal((await call('GET', path(kept, '/raw'))).text, 'Subject: x\r\n\r\nBody');
  });

  test('its events are gone from every answer: 404', async () => {
    const [gone, stays] = [await makeIdentity(service), await makeIdentity(service)];
    await arrive(service, [gone, stays]);
    const [lost] = (await call('GET', `/events?identity_id=${gone.id}`)).body;
    const [kept] = (await call('GET', `/events?identity_id=${stays.id}`)).body;
    await call('DELETE', `/identities/${gone.id}`);
    assert.deepEqual((await call('GET', `/events?identity_id=${gone.id}`)).body, []);
    const listed = (await call('GET', '/events')).body.map(({ id }: { id: string }) => id);
    assert.ok(listed.includes(kept.id));
    assert.ok(!listed.includes(lost.id));
    assert.equal((await call('GET', `/events/${kept.id}`)).status, 200);
    assertProblem(await call('GET', `/events/${lost.id}`), 404, 'not_found');
  });

  test('webhooks restricted to it are gone, others stay', async () => {
    const [gone, stays] = [await makeIdentity(service), await makeIdentity(service)];
    const own = await service.makeWebhook(receiver.url(), { identityId: gone.id });
    const others = [
      await service.makeWebhook(receiver.url(), { identityId: stays.id }),
      await service.makeWebhook(receiver.url()),
    ];
    await call('DELETE', `/identities/${gone.id}`);
    assertProblem(await call('GET', `/webhooks/${own.id}`), 404, 'not_found');
    assertProblem(await call('GET', `/webhooks/${own.id}/deliveries`), 404, 'not_found');
    for (const { id } of others) {
      assert.equal((await call('GET', `/webhooks/${id}`)).status, 200);
      await call('DELETE', `/webhooks/${id}`);
    }
  });

  test('no replay sends its events again', async () => {
    const since = new Date(Date.now() - 60_000).toISOString();
    const [gone, stays] = [await makeIdentity(service), await makeIdentity(service)];
    const [lost = '', kept = ''] = await arrive(service, [gone, stays]);
    await call('DELETE', `/identities/${gone.id}`);
    const webhook = await service.makeWebhook(receiver.url('/replayed'));
    const replay = await call('POST', `/webhooks/${webhook.id}/replay`, { body: { since } });
    assert.equal(replay.status, 202, replay.text);
    const isOf = (id: string) => (request: { url: string; body: Buffer }) =>
      request.url === '/replayed' && request.body.includes(id);
    await receiver.received(1, isOf(kept));
    await waitFor('the replay to end', async () => {
      const { body } = await call('GET', replay.headers.get('location') ?? '');
      return body.completedAt !== null && body.completedAt !== undefined;
    });
    const { count } = await sql`
      select from deliveries join events on events.id = event_id where message_id = ${lost} and webhook_id = ${webhook.id}`;
    assert.equal(count, 0);
    assert.deepEqual(receiver.requests.filter(isOf(lost)), []);
    await call('DELETE', `/webhooks/${webhook.id}`);
  });

  test('its rows are purged in the background', async () => {
    const identity = await makeIdentity(service);
    const [id = ''] = await arrive(service, [identity], unpacked);
    await call('DELETE', `/identities/${identity.id}`);
    await waitFor('the purge', async () => (await sql`select from messages where id = ${id}`).count === 0);
    assert.equal((await sql`select from raw_chunks where raw_id = ${id}`).count, 0);
    assert.equal((await sql`select from events where message_id = ${id}`).count, 0);
  });
});

/** What the service leaves behind, without its own purge at work: for the purge to be looked at step by step. */
async function leave(work: (service: TestService) => Promise<Identity[]>): Promise<Pool> {
  const database = await makeDatabase();
  const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address, DATABASE_URL: database.url });
  const deleted = await work(service);
  await service.stop();
  const sql = connect(database.url, { max: 2, applicationName: 'purge test' });
  for (const { id } of deleted) assert.ok(await deleteIdentity(sql, service.user.userId, id));
  after(async () => {
    await sql.end();
    await database.drop();
  });
  return sql;
}

describe('the purge of deleted identities', () => {
  test('deletes messages, events, deliveries, attempts and bytes, in batches, and nothing of others', async () => {
    receiver.behaveAt('/busy', answer(500));
    const sql = await leave(async (service) => {
      const [gone, stays] = [await makeIdentity(service), await makeIdentity(service)];
      await service.makeWebhook(receiver.url('/fine'));
      await service.makeWebhook(receiver.url('/busy'));
      await Promise.all(Array.from({ length: 22 }, () => arrive(service, [gone])));
      await arrive(service, [gone], 'x'.repeat(2_500_000));
      await arrive(service, [stays]);
      await waitFor('one of them to be told everything, and the other to fail', async () => {
        const delivered = await service.sql`select from deliveries where status = 'delivered'`;
        return delivered.count === 24 && (await service.sql`select from attempts`).count > 24;
      });
      return [gone];
    });
    const before = await countRows(sql);
    assert.deepEqual([before.messages, before.events, before.deliveries, before.raw_chunks], [24, 24, 48, 3]);
    const counts: number[] = [];
    while (await purgeDeletedIdentities(sql, 10)) counts.push((await countRows(sql)).messages ?? -1);
    // The deliveries of ten messages, then these messages.
    assert.deepEqual(counts, [24, 14, 14, 4, 4, 1]);
    const { attempts, ...left } = await countRows(sql);
    assert.deepEqual(left, { messages: 1, events: 1, deliveries: 2, raw_chunks: 0 });
    const orphans = await sql`
      select from attempts where not exists (select from deliveries where deliveries.id = attempts.delivery_id)`;
    assert.equal(orphans.count, 0);
    assert.ok(Number(attempts) >= 1);

    assert.equal(
      (await sql`select from identity_purges`).count,
      1,
      'for mail that was being taken meanwhile',
    );
    await sql`update identity_purges set created_at = now() - interval '2 minutes'`;
    assert.equal(await purgeDeletedIdentities(sql), false);
    assert.equal((await sql`select from identity_purges`).count, 0);
  });

  for (const first of [0, 1]) {
    test(`bytes that two identities share stay until both are deleted, the ${first ? 'second' : 'first'} one first`, async () => {
      let identities: Identity[] = [];
      let owner = '';
      const sql = await leave(async (service) => {
        identities = [await makeIdentity(service), await makeIdentity(service)];
        await arrive(service, identities, 'x'.repeat(1_500_000));
        owner = service.user.userId;
        return [identities[first] as Identity];
      });
      while (await purgeDeletedIdentities(sql));
      assert.deepEqual(await countRows(sql), { ...none, messages: 1, events: 1, raw_chunks: 2 });
      const last = identities[1 - first] as Identity;
      const [{ id } = {}] = await sql`select id from messages where identity_id = ${last.id}`;
      const raw = await findRaw(sql, owner, id);
      assert.ok(raw);
      const pieces: Buffer[] = [];
      for await (const piece of readRaw(sql, raw, 0, raw.size)) pieces.push(piece);
      assert.equal(Buffer.concat(pieces).toString(), `Subject: x\r\n\r\n${'x'.repeat(1_500_000)}`);

      await sql`insert into identity_purges (identity_id, owner_id) values (${last.id}, ${owner})`;
      while (await purgeDeletedIdentities(sql));
      assert.deepEqual(await countRows(sql), none);
    });
  }

  test('deletes a delivery whose result is being recorded', async () => {
    receiver.behaveAt('/recorded', answer(500));
    const sql = await leave(async (service) => {
      const identity = await makeIdentity(service);
      await service.makeWebhook(receiver.url('/recorded'));
      await arrive(service, [identity]);
      await waitFor('the try', async () => (await service.sql`select from attempts`).count === 1);
      return [identity];
    });
    let purging: Promise<boolean> | undefined;
    await sql.begin(async (recording) => {
      await endDeliveries(recording, recording`true`);
      purging = purgeDeletedIdentities(sql);
      await waitFor('the purge to wait', async () => {
        await recording`select pg_stat_clear_snapshot()`;
        const waiting = await recording`
          select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
        return waiting.count > 0;
      });
    });
    assert.equal(await purging, true);
    assert.deepEqual(await countRows(sql), none);
  });

  test('deletes the deliveries of a message in batches, too', async () => {
    receiver.behaveAt('/many', answer(500));
    const sql = await leave(async (service) => {
      const identity = await makeIdentity(service);
      for (let n = 0; n < 25; n++) await service.makeWebhook(receiver.url('/many'));
      await arrive(service, [identity]);
      return [identity];
    });
    const counts: number[] = [];
    while (await purgeDeletedIdentities(sql, 10)) counts.push((await countRows(sql)).deliveries ?? -1);
    assert.deepEqual(counts, [15, 5, 0, 0]);
    assert.deepEqual(await countRows(sql), none);
  });

  test('deletes fewer at once if they are large', async () => {
    const sql = await leave(async (service) => {
      const identity = await makeIdentity(service);
      for (let n = 0; n < 5; n++) await arrive(service, [identity]);
      return [identity];
    });
    await sql`update messages set size = 26214400`;
    const counts: number[] = [];
    while (await purgeDeletedIdentities(sql)) counts.push((await countRows(sql)).messages ?? -1);
    assert.deepEqual(counts, [2, 0]);
    assert.deepEqual(await countRows(sql), none);
  });

  test('waits while a message is deleted, and then goes on at once', async () => {
    const sql = await leave(async (service) => {
      const identity = await makeIdentity(service);
      await arrive(service, [identity]);
      return [identity];
    });
    let purging: Promise<boolean> = Promise.resolve(false);
    await sql.begin(async (tx) => {
      await lockPurge(tx);
      purging = purgeDeletedIdentities(sql);
      await waitFor('the purge to wait', async () => {
        const waiting = await tx`
          select from pg_locks join pg_database on pg_database.oid = database
          where datname = current_database() and locktype = 'advisory' and not granted`;
        return waiting.count === 1 || (await Promise.race([purging, null])) !== null;
      });
    });
    assert.equal(await purging, true);
    assert.deepEqual(await countRows(sql), none);
  });

  test('by two processes at once leaves nothing behind', async () => {
    const sql = await leave(async (service) => {
      const identities = [await makeIdentity(service), await makeIdentity(service)];
      for (let n = 0; n < 12; n++) {
        await Promise.all(Array.from({ length: 10 }, () => arrive(service, identities)));
      }
      return identities;
    });
    const purge = async () => {
      while (await purgeDeletedIdentities(sql));
    };
    await waitFor('both to find nothing more', async () => {
      await Promise.all([purge(), purge()]);
      return (await sql`select from messages`).count === 0;
    });
    assert.deepEqual(await countRows(sql), none);
  });

  test('bytes are never shared between owners', async () => {
    let kept = '';
    const sql = await leave(async (service) => {
      const stranger = await service.makeUser();
      const [mine, theirs] = [await makeIdentity(service), await makeIdentity(service, stranger)];
      await arrive(service, [mine], unpacked);
      [kept = ''] = await arrive(service, [theirs], unpacked, stranger);
      return [mine];
    });
    while (await purgeDeletedIdentities(sql));
    assert.deepEqual(await countRows(sql), { ...none, messages: 1, events: 1, raw_chunks: 1 });
    assert.equal((await sql`select from raw_chunks where raw_id = ${kept}`).count, 1);
  });
});

describe('retention', () => {
  /** As if it had come so many days ago: ids begin with their time. */
  async function age(sql: Pool, messageId: string, days: number): Promise<void> {
    const [row] = await sql`
      select id as old, overlay(first_id_at(now() - ${days} * interval '1 day')::text placing
        substr(gen_random_uuid()::text, 15) from 15)::uuid as young from events where message_id = ${messageId}`;
    const [from, to] = [row?.old, row?.young];
    const then = sql`now() - ${days} * interval '1 day'`;
    await sql`update events set id = ${to}, created_at = ${then} where id = ${from}`;
    await sql`
      update earlier_attempts set delivery_id = delivery_id(${to}, webhook_id) from deliveries
      where delivery_id = deliveries.id and event_id = ${from}`;
    for (const table of ['delivery_queue', 'ended_deliveries'])
      await sql`
        update ${identifier(table)} set id = delivery_id(${to}, webhook_id), event_id = ${to}, created_at = ${then}
        where event_id = ${from}`;
    await sql`update messages set created_at = ${then} where id = ${messageId}`;
  }

  async function purgeAll(sql: Pool): Promise<void> {
    while (await purgeOld(sql, 30));
  }

  test('deletes messages with all their rows; younger and pending ones stay', async () => {
    receiver.behaveAt('/pending', answer(500));
    const ids: string[] = [];
    const sql = await leave(async (service) => {
      const identity = await makeIdentity(service);
      await service.makeWebhook(receiver.url('/fine'));
      for (let n = 0; n < 3; n++) ids.push(...(await arrive(service, [identity], 'x'.repeat(1_100_000))));
      await waitFor('deliveries', async () => {
        return (await service.sql`select from deliveries where status = 'delivered'`).count === 3;
      });
      await service.makeWebhook(receiver.url('/pending'));
      ids.push(...(await arrive(service, [identity], unpacked)));
      await waitFor('all tries', async () => (await service.sql`select from attempts`).count >= 5);
      return [];
    });
    const [old = '', older = '', young = '', pending = ''] = ids;
    await age(sql, old, 31);
    await age(sql, older, 40);
    await age(sql, young, 29);
    await age(sql, pending, 30.5);
    await purgeAll(sql);
    const rows = await sql`select id from messages order by id`;
    assert.deepEqual(
      rows.map(({ id }) => id),
      [young, pending].sort(),
    );
    const { attempts, ...left } = await countRows(sql);
    // Of the one that waits, the delivery that was made is past its time.
    assert.deepEqual(left, { messages: 2, events: 2, deliveries: 2, raw_chunks: 3 });
    assert.ok(Number(attempts) >= 2);

    await endDeliveries(sql, sql`true`, 'failed');
    await purgeAll(sql);
    assert.deepEqual(
      (await sql`select id from messages`).map(({ id }) => id),
      [young],
    );
    assert.equal((await sql`select from raw_chunks`).count, 2);
  });

  test('deletes more than one batch', async () => {
    const sql = await leave(async (service) => {
      const identity = await makeIdentity(service);
      await Promise.all(Array.from({ length: 21 }, () => arrive(service, [identity])));
      return [];
    });
    for (const { id } of await sql`select id from messages`) await age(sql, id, 31);
    assert.equal(await purgeOld(sql, 30, 10), true);
    assert.deepEqual(await countRows(sql), { ...none, messages: 11, events: 11 });
    await purgeAll(sql);
    assert.deepEqual(await countRows(sql), none);
  });

  for (const first of [0, 1]) {
    test(`keeps bytes that a younger message shares, the ${first ? 'second' : 'first'} one first`, async () => {
      let ids: string[] = [];
      const sql = await leave(async (service) => {
        ids = await arrive(service, [await makeIdentity(service), await makeIdentity(service)]);
        return [];
      });
      await age(sql, ids[first] ?? '', 31);
      await purgeAll(sql);
      assert.deepEqual(await countRows(sql), { ...none, messages: 1, events: 1, raw_chunks: 1 });
      await age(sql, ids[1 - first] ?? '', 31);
      await purgeAll(sql);
      assert.deepEqual(await countRows(sql), none);
    });
  }
});

/** The statement that asks which background loops have work. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type Sql, transaction } from '../src/db/client.ts';
import { findDueWork, isPurgeDue } from '../src/store/due-work.ts';
import { recordEvent } from '../src/store/events.ts';
import { createReplay } from '../src/store/replays.ts';
import { startTestService, waitFor } from './harness.ts';

const days = 30;

async function makeService() {
  const service = await startTestService({ POSTHORN_DNS_SERVERS: '127.0.0.1:9' });
  const { user, sql, call } = service;
  const webhook = await service.makeWebhook('http://127.0.0.1:9/', { events: ['message.sent'] });
  const headers = { 'idempotency-key': 'due-work' };
  const domain = await call('POST', '/identities', { body: { value: 'due-work.example' }, headers });
  assert.equal(domain.status, 201);
  assert.equal((await call('POST', `/webhooks/${webhook.id}/secret/rotate`)).status, 200);
  const replay = {
    webhookId: webhook.id,
    since: '2026-01-01T00:00:00Z',
    until: null,
    status: 'all',
  } as const;
  await createReplay(sql, user.userId, replay);
  const isIdle = async () => {
    return !Object.values(await findDueWork(sql)).includes(true);
  };
  await waitFor('all loops to be idle', isIdle);
  return { ...service, webhook, replay };
}

const service = await makeService();
const { sql, user, webhook, replay } = service;

/** The answer after a change of the rows, which is rolled back. No loop sees it. */
async function askAfter<T>(
  change: (sql: Sql) => PromiseLike<unknown>,
  ask: (sql: Sql) => Promise<T>,
): Promise<T> {
  const rollback = new Error('roll back');
  let answer: T | undefined;
  await sql
    .begin(async (sql) => {
      await change(sql);
      answer = await ask(sql);
      throw rollback;
    })
    .catch((error) => assert.equal(error, rollback));
  return answer as T;
}

describe('a loop has work', () => {
  const idle = {
    ...{ checks: false, settling: false, replays: false },
    ...{ deliveries: false, mail: false, mailboxes: false },
  };
  const queue = (sql: Sql, ready: boolean, inSeconds: number) => sql`
    insert into delivery_queue (id, owner_id, webhook_id, event_id, event, ready, next_attempt_at)
    select gen_random_uuid(), ${user.userId}, ${webhook.id}, gen_random_uuid(), 'message.sent', ${ready},
      now() + ${inSeconds} * interval '1 second'`;
  const queueMail = (sql: Sql, ready: boolean, inSeconds: number) => sql`
    insert into send_queue (id, owner_id, lane_id, message_id, n, ready, next_attempt_at)
    select gen_random_uuid(), ${user.userId}, gen_random_uuid(), gen_random_uuid(), 1, ${ready},
      now() + ${inSeconds} * interval '1 second'`;
  const addConnection = (sql: Sql, { ready = false, inSeconds = 0, isLeased = false }) => sql`
    insert into imap_connections (identity_id, owner_id, ready, next_try_at, lease_token, lease_until)
    select id, owner_id, ${ready}, case when ${isLeased} then '-infinity' else now() + ${inSeconds} * interval '1 second' end,
      case when ${isLeased} then gen_random_uuid() end,
      case when ${isLeased} then now() + ${inSeconds} * interval '1 second' end
    from identities`;
  const changes = {
    checks: (sql: Sql) => sql`update identities set next_check_at = now()`,
    settling: (sql: Sql) => sql`update webhooks set enabled = false`,
    replays: (sql: Sql) => createReplay(sql, user.userId, replay),
    deliveries: (sql: Sql) => queue(sql, true, 0),
    mail: (sql: Sql) => queueMail(sql, true, 0),
    mailboxes: (sql: Sql) => addConnection(sql, {}),
  };
  for (const [name, change] of Object.entries(changes))
    test(name, async () => {
      assert.deepEqual(await askAfter(change, findDueWork), { ...idle, [name]: true });
    });

  test('mailboxes that are ready or whose lease has expired, and not those that are due later or leased', async () => {
    for (const [connection, isDue] of [
      [{ ready: true }, true],
      [{ inSeconds: -1, isLeased: true }, true],
      [{ inSeconds: 60 }, false],
      [{ inSeconds: 20, isLeased: true }, false],
    ] as const) {
      const found = await askAfter((sql) => addConnection(sql, connection), findDueWork);
      assert.deepEqual(found, { ...idle, mailboxes: isDue });
    }
  });

  test('deliveries and mail that are due soon, and not those that are due later', async () => {
    for (const [inSeconds, isDue] of [
      [1, true],
      [60, false],
    ] as const) {
      const found = await askAfter(async (sql) => {
        await queue(sql, false, inSeconds);
        await queueMail(sql, false, inSeconds);
      }, findDueWork);
      assert.deepEqual(found, { ...idle, deliveries: isDue, mail: isDue });
    }
  });
});

describe('there is something to purge', () => {
  const old = (sql: Sql) => sql`now() - ${days + 1} * interval '1 day'`;
  const event = { ownerId: user.userId, identityId: null, data: '{}' };
  const makeOld = async (sql: Sql, name: string) => {
    const [row] = await sql<{ id: string }[]>`select first_id_at(${old(sql)}) as id`;
    assert.ok(row);
    await recordEvent(sql, { ...event, event: name, id: row.id });
    return row.id;
  };
  const changes: Record<string, (sql: Sql) => PromiseLike<unknown>> = {
    'a stored response': (sql) =>
      sql`update idempotency_records set created_at = now() - interval '25 hours'`,
    'a deleted webhook': (sql) => sql`update webhooks set deleted_at = now()`,
    'a deleted identity': (sql) =>
      sql`insert into identity_purges (owner_id, identity_id) select owner_id, id from identities`,
    'an event': (sql) => makeOld(sql, 'message.received'),
    'a delivery': async (sql) => {
      const id = await makeOld(sql, 'message.sent');
      const { count } = await sql`delete from events where id = ${id}`;
      assert.equal(count, 1);
    },
    'a replaced secret': (sql) =>
      sql`update retired_webhook_secrets set retired_at = now() - interval '25 hours'`,
    'a replay': (sql) => sql`update replays set completed_at = ${old(sql)}`,
  };
  for (const [name, change] of Object.entries(changes))
    test(name, async () => {
      const isChanged = askAfter(change, (sql) => isPurgeDue(sql, days));
      assert.equal(await isChanged, true);
    });

  test('but nothing before its time', async () => {
    assert.equal(await isPurgeDue(sql, days), false);
  });
});

describe('a loop finds what another process has written, without a notification', () => {
  test('a replay', async () => {
    await createReplay(sql, user.userId, replay);
    await waitFor('its end', async () => {
      const open = await sql`select from replays where completed_at is null`;
      return open.count === 0;
    });
  });

  test('a webhook that was disabled', async () => {
    await sql`update webhooks set enabled = false where id = ${webhook.id}`;
    await waitFor('the settling', async () => {
      const unsettled = await sql`select from webhooks where unsettled_at is not null`;
      return unsettled.count === 0;
    });
  });

  test('a check that is due', async () => {
    await sql`update identities set next_check_at = now()`;
    await waitFor('the check', async () => {
      const due = await sql`select from identities where next_check_at <= now()`;
      return due.count === 0;
    });
  });

  test('a delivery, and a delivery whose process has died', async () => {
    const { id } = await service.makeWebhook('http://127.0.0.1:9/found');
    const tries = async (eventId: string) => {
      const [row] = await sql<{ count: number }[]>`
        select coalesce(max(attempt_count), 0)::int as count from delivery_queue where event_id = ${eventId} and webhook_id = ${id}`;
      return row?.count;
    };
    const event = { event: 'message.received', ownerId: user.userId, identityId: null, data: '{}' };
    const fresh = await recordEvent(sql, event);
    await waitFor('the first try', async () => (await tries(fresh.id)) === 1);
    const orphan = await transaction(sql, async (sql) => {
      const recorded = await recordEvent(sql, event);
      await sql`
        update delivery_queue set lease_token = gen_random_uuid(), lease_until = now() + interval '1 second'
        where event_id = ${recorded.id}`;
      return recorded;
    });
    await waitFor('its first try', async () => (await tries(orphan.id)) === 1);
  });
});

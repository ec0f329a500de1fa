/** `GET /stats`: exact counts by hour and day, and counting that makes no transaction wait. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { purgeExpired } from '../src/store/purge.ts';
import { countEnded, readTraffic, type Traffic } from '../src/store/traffic.ts';
import { assertProblem, callUrl, startTestService, type TestUser, waitFor } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { answer, startReceiver } from './receiver.ts';

const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '0' });
const { call, sql, user } = service;
const receiver = await startReceiver();
after(() => receiver.close());
receiver.behaveAt('/down', answer(500));

type Counts = Omit<Traffic, 'at'>;
const none: Counts = {
  ...{ received: 0, sent: 0, delivered: 0, bounced: 0, complained: 0 },
  ...{ deliveriesDelivered: 0, deliveriesFailed: 0 },
};

async function read(query = '', as: TestUser = user): Promise<Traffic[]> {
  const found = await call('GET', `/stats${query}`, { as });
  assert.equal(found.status, 200, found.text);
  return found.body;
}

function sum(steps: readonly Traffic[]): Counts {
  return steps.reduce(
    (total, { at: _at, ...counts }) =>
      Object.fromEntries(
        Object.entries(counts).map(([name, count]) => [name, total[name as keyof Counts] + count]),
      ) as unknown as Counts,
    none,
  );
}

test('what comes in, goes out and is delivered is counted once', async () => {
  const outbox = openOutbox(service);
  const identityId = await outbox.makeIdentity('ada@counted.example');
  await service.makeWebhook(receiver.url('/fine'), { events: ['message.received', 'message.bounced'] });
  await service.makeWebhook(receiver.url('/down'));
  const body = 'Message-ID: <twice@counted.example>\r\nSubject: a\r\n\r\nhello\r\n';
  const headers = { 'content-type': 'message/rfc822' };
  // The last one repeats the first.
  for (const mail of [
    body,
    body.replace('twice', 'once'),
    `${body.replace('twice', 'big')}${'x'.repeat(2_000_000)}`,
    body,
  ])
    await call('POST', '/inbound?recipient=ada@counted.example', { headers, body: mail });
  await call('POST', '/suppressions', { body: { address: 'unwanted@dest.example' } });
  const { id } = await outbox.send({
    identityId,
    to: ['bob@dest.example', 'eve@dest.example', 'unwanted@dest.example'],
  });
  await outbox.findEnded(id);
  const counts = await waitFor('the end of all deliveries', async () => {
    const now = sum(await read());
    return now.deliveriesDelivered === 4 && now.deliveriesFailed === 3 ? now : null;
  });
  const events = async (name: string) => (await call('GET', `/events?event=${name}`)).body.length;
  assert.deepEqual(counts, {
    ...{ received: 3, sent: await events('message.sent'), delivered: await events('message.delivered') },
    ...{ bounced: 1, complained: 0, deliveriesDelivered: 4, deliveriesFailed: 3 },
  });
  assert.ok(counts.sent + counts.delivered > 0);
  assert.equal(await events('message.received'), 3);
  assert.deepEqual(sum(await read('?step=day')), counts);
});

describe('the answer', () => {
  test('has every hour, oldest first, and zeros where nothing happened', async () => {
    const owner = await service.makeUser();
    const now = new Date('2026-03-29T12:34:56Z');
    const at = (hours: number) => new Date(Date.parse('2026-03-29T12:00:00Z') - hours * 3_600_000);
    for (const [hours, backend] of [
      [0, 1],
      [0, 2],
      [2, 1],
      [30, 1],
      [31, 1],
    ] as const)
      await sql`insert into traffic (owner_id, hour, backend, received) values (${owner.userId}, ${at(hours)}, ${backend}, 1)`;
    const given = { since: new Date(now.getTime() - 30 * 3_600_000), until: now };
    const hours = await readTraffic(sql, owner.userId, { ...given, step: 'hour' });
    assert.deepEqual(
      hours.map((hour) => hour.at),
      Array.from({ length: 31 }, (_, n) => at(30 - n).toISOString()),
    );
    assert.deepEqual(
      hours.flatMap(({ received }, n) => (received > 0 ? [[n, received]] : [])),
      [
        [0, 1],
        [28, 1],
        [30, 2],
      ],
    );
    // Days of UTC, also where the clocks of the machine change.
    await sql.begin(async (sql) => {
      await sql`set local time zone 'Europe/Berlin'`;
      const days = await readTraffic(sql, owner.userId, { ...given, step: 'day' });
      assert.deepEqual(
        days.map((day) => [day.at, day.received]),
        [
          ['2026-03-28T00:00:00.000Z', 2],
          ['2026-03-29T00:00:00.000Z', 3],
        ],
      );
    });
  });

  test('begins 24 hours or 30 days ago, or at `since`', async () => {
    assert.equal((await read()).length, 25);
    assert.equal((await read('?step=day')).length, 31);
    const since = new Date(Date.now() - 7_200_000).toISOString();
    assert.equal((await read(`?since=${since}`))[0]?.at, since.replace(/:.*/, ':00:00.000Z'));
    assert.deepEqual(await read('?since=2100-01-01T00:00:00Z'), []);
  });

  for (const query of [
    'since=2020-01-01T00:00:00Z',
    'since=2020-01-01T00:00:00Z&step=day',
    'since=0001-01-01T00:00:00Z',
    'since=yesterday',
    'step=week',
    'limit=1',
  ])
    test(`${query} is 400`, async () => {
      assertProblem(await call('GET', `/stats?${query}`), 400, 'invalid_query');
    });
});

test('another user has counts of their own, and a stranger none', async () => {
  assert.deepEqual(sum(await read('', await service.makeUser())), none);
  assertProblem(await callUrl('GET', `${service.url}/stats`, {}), 401, 'missing_api_key');
});

test('a transaction that has counted and is still open makes no other wait', async () => {
  const ownerId = newId();
  const count = (on: typeof sql | Parameters<Parameters<typeof sql.begin>[0]>[0]) =>
    on`with ended as (select ${ownerId}::uuid as owner_id, 'delivered' as status), counted as (${countEnded(on)}) select`;
  await sql.begin(async (first) => {
    await count(first);
    await sql.begin(async (second) => {
      await second`set local lock_timeout = '5s'`;
      await count(second);
    });
  });
  const [{ total, rows } = {}] = await sql`
    select sum(deliveries_delivered)::int as total, count(*)::int as rows from traffic where owner_id = ${ownerId}`;
  assert.deepEqual([total, rows], [2, 2]);
});

test('counts go with the retention', async () => {
  const ownerId = newId();
  await sql`
    insert into traffic (owner_id, hour, backend) values (${ownerId}, now() - interval '31 days', 1),
      (${ownerId}, now() - interval '29 days', 1)`;
  while (await purgeExpired(sql, 30));
  assert.equal((await sql`select from traffic where owner_id = ${ownerId}`).count, 1);
});

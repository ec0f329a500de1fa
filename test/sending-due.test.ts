/** Mail that becomes due while a great deal of mail of another owner is due. No service runs here. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { promoteSends } from '../src/store/send-queue.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 1, applicationName: 'posthorn due' });
after(async () => {
  await sql.end();
  await database.drop();
});

async function queueMail(count: number, dueSeconds: number): Promise<string> {
  const ownerId = randomUUID();
  await sql`
    insert into send_queue (id, owner_id, lane_id, message_id, n, ready, next_attempt_at)
    select gen_random_uuid(), ${ownerId}, gen_random_uuid(), gen_random_uuid(), 0, false,
      now() - ${dueSeconds} * interval '1 second'
    from generate_series(1, ${count}::int)`;
  return ownerId;
}

async function countReady(ownerId: string): Promise<number> {
  return (await sql`select from send_queue where ready and owner_id = ${ownerId}`).count;
}

test('is made ready with the next batch, and so is what waited longest', async () => {
  const before = await queueMail(1, 2);
  const many = await queueMail(1000, 1);
  const meanwhile = await queueMail(1, 0);
  const later = await queueMail(1, -3600);
  assert.equal((await promoteSends(sql, 9)).promoted, 5);
  const ready = await Promise.all([before, many, meanwhile, later].map(countReady));
  assert.deepEqual(ready, [1, 3, 1, 0]);
  let promoted = 0;
  do ({ promoted } = await promoteSends(sql, 300));
  while (promoted > 0);
  assert.deepEqual([await countReady(many), await countReady(later)], [1000, 0]);
});

test('at the same moment the owners share a batch', async () => {
  const many = await queueMail(1000, 60);
  const [few, one] = [await queueMail(20, 60), await queueMail(1, 60)];
  await sql`update send_queue set next_attempt_at = '2026-01-01T09:00:00Z' where owner_id = any (${[many, few, one]}::uuid[])`;
  await promoteSends(sql, 60);
  assert.deepEqual(await Promise.all([many, few, one].map(countReady)), [20, 20, 1]);
});

test('after an outage the owners share a batch, however many moments one of them has', async () => {
  await sql`delete from send_queue`;
  const many = await queueMail(3000, 60);
  await sql`
    with numbered as (
      select id, row_number() over () as place from send_queue where owner_id = ${many}
    )
    update send_queue set next_attempt_at = now() - place * interval '1 second' from numbered where numbered.id = send_queue.id`;
  const few = await queueMail(5, 1500);
  const later = await queueMail(5, -3600);
  await promoteSends(sql, 100);
  assert.deepEqual(await Promise.all([many, few, later].map(countReady)), [50, 5, 0]);
  const [oldest] = await sql`
    select min(next_attempt_at) filter (where not ready) > max(next_attempt_at) filter (where ready) as first
    from send_queue where owner_id = ${many}`;
  assert.equal(oldest?.first, true, 'what waited longest comes first');
});

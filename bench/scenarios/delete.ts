/**
 * `DELETE` of an identity with 100,000 messages: how long it takes to answer, and how much slower deliveries are while the
 * mail goes in the background than while the purge is held up.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Pool, Sql } from '../../src/db/client.ts';
import { startDeliveryBench } from '../deliveries.ts';
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { alternate, type Bench, type Figures, median } from '../scenario.ts';
import type { BenchedService } from '../service.ts';

export const name = 'delete';
/** `deliverLoss`: the share of deliveries a second that is lost while the purge runs. */
export const goal: Figures = { answerSeconds: 0.2, deliverLoss: 0.1 };

const messages = 100_000;
const batch = 10_000;
/** Of each turn. */
const count = 8000;
const rounds = 5;

export async function run(bench: Bench): Promise<Figures> {
  const tools = await startMailTools(bench);
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  const { service, sql } = deliveries;
  const identityId = await makeIdentity(service);
  await tools.pace(service.smtpPort, { perSecond: 1, count: 1 });
  await multiply(bench, sql, identityId);

  // One for each turn, filled beforehand, so that nothing else is done between two turns.
  const webhooks = await deliveries.makeWebhooks(1 + 2 * rounds);
  bench.tell('making deliveries');
  for (const id of webhooks) await deliveries.queue([id], count);
  await sql`vacuum analyze`;
  await sql`checkpoint`;
  const measure = () => deliveries.drain(webhooks.splice(0, 1), count);
  bench.tell('warming up');
  await measure();

  const answerSeconds = await deleteIdentity(service, identityId);
  bench.tell(`DELETE answered after ${(answerSeconds * 1000).toFixed(1)} ms; waiting for the purge`);
  let left = messages;
  const look = async () => {
    const before = left;
    left = await countLeft(sql, identityId);
    return before - left;
  };
  while ((await look()) === 0) await delay(100, null, bench);
  const taken = await alternate(bench, rounds, {
    async service() {
      await look();
      const rate = await measure();
      const purged = await look();
      if (left === 0) throw new Error('The purge was over before the measurement was');
      bench.tell(`${purged.toLocaleString('en')} messages went meanwhile`);
      return rate;
    },
    control: () => withoutPurge(sql, measure),
  });
  return { answerSeconds, deliverLoss: 1 - median(taken.map(({ ratio }) => ratio)) };
}

/** The purge waits for this lock, and goes on when it is released. */
function withoutPurge(sql: Pool, work: () => Promise<number>): Promise<number> {
  return sql.begin(async (sql) => {
    await sql`lock table identity_purges`;
    return work();
  }) as Promise<number>;
}

/** Copies the one message, its event and its bytes, spread over a day. */
async function multiply(bench: Bench, sql: Pool, identityId: string): Promise<void> {
  for (let made = 1; made < messages; ) {
    const more = Math.min(batch, messages - made);
    await sql.begin(async (sql) => {
      await sql`set local statement_timeout = 0`;
      await sql`
        with one as materialized (
          select messages.*, events.data, events.bytes, raw_chunks.bytes as raw
          from messages join events on events.id = messages.event_id
            join raw_chunks on raw_chunks.raw_id = messages.raw_id
          where messages.identity_id = ${identityId} order by messages.created_at desc limit 1
        ), copies as materialized (
          select created, ${idOf(sql, '7000')} as id, ${idOf(sql, '7001')} as event_id
          from generate_series(${made}::int, ${made + more - 1}::int) n,
            lateral (select now() - n * interval '800 milliseconds' as created) moment
        ), kept as (
          insert into raw_chunks (raw_id, n, owner_id, bytes) select copies.id, 0, owner_id, raw from copies, one
        ), happened as (
          insert into events (id, owner_id, event, identity_id, data, bytes, message_id, inline_raw_id, created_at)
          select copies.event_id, owner_id, 'message.received', identity_id, data, bytes, copies.id, copies.id, created
          from copies, one
        )
        insert into messages (id, owner_id, identity_id, event_id, raw_id, size, sha256, thread_id, summary, message_key,
          repeat_key, received_on, created_at)
        select copies.id, owner_id, identity_id, copies.event_id, copies.id, size, sha256, gen_random_uuid(), summary,
          gen_random_uuid(), gen_random_uuid(), created::date, created
        from copies, one`;
    });
    made += more;
    bench.tell(`${made.toLocaleString('en')} of ${messages.toLocaleString('en')} messages`);
  }
}

/** An id of that moment, as the service makes them. */
function idOf(sql: Sql, middle: string) {
  return sql`(lpad(to_hex((extract(epoch from created) * 1000)::bigint), 12, '0') || ${middle}::text || '8000'
    || lpad(to_hex(n), 12, '0'))::uuid`;
}

async function deleteIdentity(service: BenchedService, identityId: string): Promise<number> {
  const headers = { authorization: service.headers.authorization };
  const began = performance.now();
  const answer = await fetch(`${service.url}/identities/${identityId}`, { method: 'DELETE', headers });
  const seconds = (performance.now() - began) / 1000;
  if (answer.status !== 204) throw new Error(`DELETE answered ${answer.status}: ${await answer.text()}`);
  return seconds;
}

async function countLeft(sql: Sql, identityId: string): Promise<number> {
  const [row] = await sql<{ left: number }[]>`
    select count(*)::int as left from messages where identity_id = ${identityId}`;
  return row?.left ?? 0;
}

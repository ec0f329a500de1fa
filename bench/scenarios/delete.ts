/**
 * `DELETE` of an identity with 100,000 messages: the response time, and how much slower deliveries are while the purge deletes
 * the messages in the background than while the purge is blocked.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { only, type Pool, type Sql } from '../../src/db/client.ts';
import { copyMessage } from '../copies.ts';
import { startDeliveryBench } from '../deliveries.ts';
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { alternate, type Bench, type Figures, type Taken } from '../scenario.ts';
import type { BenchedService } from '../service.ts';

export const name = 'delete';
/** `deliverLoss`: by which share the delivery rate drops while the purge runs. */
export const goal: Figures = { answerSeconds: 0.2, deliverLoss: 0.1 };

const usualMessages = 100_000;
const usualBatch = 20_000;
/** The messages of one day. */
const spacingMs = 800;
const deletions = 3;
/** In each turn. */
const usualCount = 8000;
const rounds = 5;

export async function run(bench: Bench): Promise<Taken> {
  const count = bench.size(usualCount);
  const tools = await startMailTools(bench);
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  const { service, sql } = deliveries;
  const identityId = await makeIdentity(service);
  await tools.pace(service.smtpPort, { perSecond: 1, count: 1 });
  const identityIds = [identityId];
  while (identityIds.length < deletions)
    identityIds.push(await makeIdentity(service, `inbox${identityIds.length}@customer.example`));
  for (const id of identityIds) await fill(bench, sql, identityId, id);

  // One for each turn, filled before the turns start, so that nothing else runs between two turns.
  const webhooks = await deliveries.makeWebhooks(1 + 2 * rounds);
  bench.log('making deliveries');
  for (const id of webhooks) await deliveries.queue([id], count);
  await sql`vacuum analyze`;
  await checkpoint(sql);
  const measure = () => deliveries.drain(webhooks.splice(0, 1), count);
  bench.log('warming up');
  await measure();

  const answerSeconds: number[] = [];
  for (const id of identityIds) answerSeconds.push(await deleteIdentity(service, id));
  bench.log(`DELETE responded after ${answerSeconds.map((s) => (s * 1000).toFixed(1)).join(', ')} ms`);
  let left = await countLeft(sql, identityIds);
  const countPurged = async () => {
    const before = left;
    left = await countLeft(sql, identityIds);
    return before - left;
  };
  bench.log('waiting for the purge');
  while ((await countPurged()) === 0) await delay(100, null, bench);
  const taken = await alternate(bench, rounds, {
    async service() {
      await countPurged();
      const rate = await measure();
      const purged = await countPurged();
      if (left === 0) throw new Error('The purge ended before the measurement');
      bench.log(`${purged.toLocaleString('en')} messages were deleted meanwhile`);
      return rate;
    },
    control: () => withoutPurge(sql, measure),
  });
  return { answerSeconds, deliverLoss: taken.map(({ ratio }) => 1 - ratio) };
}

/** So that no checkpoint falls into a turn. Not every role may run one. */
async function checkpoint(sql: Sql): Promise<void> {
  const { may } = only(await sql`select pg_has_role(current_user, 'pg_checkpoint', 'usage') as may`);
  if (may) await sql`checkpoint`;
}

/** Gives an identity copies of the first identity's message, spread over the past. */
async function fill(bench: Bench, sql: Pool, from: string, to: string): Promise<void> {
  const [messages, batch] = [bench.size(usualMessages), bench.size(usualBatch)];
  for (let made = 0; made < messages; made += batch) {
    const youngest = new Date(Date.now() - (made + batch) * spacingMs);
    await copyMessage(sql, { from, to, count: batch, youngest, spacingMs });
    bench.log(`${(made + batch).toLocaleString('en')} of ${messages.toLocaleString('en')} messages`);
  }
}

/** The purge waits for this lock, and continues when the lock is released. */
function withoutPurge(sql: Pool, work: () => Promise<number>): Promise<number> {
  return sql.begin(async (sql) => {
    await sql`lock table identity_purges`;
    return work();
  }) as Promise<number>;
}

async function deleteIdentity(service: BenchedService, identityId: string): Promise<number> {
  const headers = { authorization: service.headers.authorization };
  const began = performance.now();
  const answer = await fetch(`${service.url}/identities/${identityId}`, { method: 'DELETE', headers });
  const seconds = (performance.now() - began) / 1000;
  if (answer.status !== 204) throw new Error(`DELETE responded ${answer.status}: ${await answer.text()}`);
  return seconds;
}

async function countLeft(sql: Sql, identityIds: readonly string[]): Promise<number> {
  const { left } = only(
    await sql<{ left: number }[]>`
      select count(*)::int as left from messages where identity_id = any (${identityIds}::uuid[])`,
  );
  return left;
}

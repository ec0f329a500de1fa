/**
 * `kill -9` of one of three processes that take mail and deliver from one database, under load. Other processes continue the
 * claimed deliveries of the killed process when the leases expire; nothing is lost; by the receiver's clock no delivery has two
 * tries at the same time; and every delivery is recorded as delivered, with one try.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Pool } from '../../src/db/client.ts';
import { leaseSeconds } from '../../src/store/queue-rows.ts';
import { waitFor } from '../harness.ts';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import { prepareProcesses } from './processes.ts';
import type { Server } from './server.ts';
import { conclude, keepSending, prepareTrial } from './trial.ts';

/** The lease, and the time to notice its end and to make the waiting deliveries, on a busy machine. */
const withinMs = leaseSeconds * 1000 + 8000;

export const killOneOfThree: Fault = {
  about: 'kill -9 of one of three processes that take mail and deliver',
  rounds: { usual: 5, short: 1 },
  boundMs: (rounds) => 150_000 + rounds * 45_000,
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  const { random, log } = lent;
  const [server, ...three] = await prepareProcesses(lent, [
    'api,smtp',
    'smtp,deliver',
    'smtp,deliver',
    'smtp,deliver',
  ]);
  await Promise.all(three.map((process) => process.start()));
  // Slow enough that every process has running tries at the moment of the kill.
  const otherPorts = three.map(({ smtpPort }) => smtpPort);
  const trial = await prepareTrial(lent, server, { senders: 8, answerMs: 500, otherPorts });
  const { receiver, ledger } = trial;
  const late: string[] = [];

  for (let round = 1; round <= lent.rounds; round += 1) {
    const load = keepSending(trial, round);
    await delay(pick(random, 1500, 3000));
    const victim = pick(random, 0, 2);
    await three[victim]?.kill();
    const killedAt = performance.now();
    const underWay = receiver.requests.filter(({ endedAtMs }) => endedAtMs === null).length;
    await delay(pick(random, 0, 500));
    await load.stop();
    await Promise.all([awaitDelivered(server), three[victim]?.start()]);
    const tookMs = Math.round(performance.now() - killedAt);
    log(
      `round ${round}/${lent.rounds}: killed process ${victim + 1} with ${ledger.letters.length} letters sent and ` +
        `${underWay} tries under way in all; everything was delivered and recorded ${tookMs} ms later`,
    );
    if (tookMs > withinMs)
      late.push(`round ${round}: what was claimed took until ${tookMs} ms after the kill`);
  }
  const outcome = await conclude(trial);
  const unsettled = await server.look(
    (sql) => sql<{ id: string; status: string; attempts: number }[]>`
      select deliveries.id, status, count(attempts.id)::int as attempts
      from deliveries left join attempts on delivery_id = deliveries.id
      group by deliveries.id, status having status <> 'delivered' or count(attempts.id) <> 1`,
  );
  const odd = unsettled.map(
    (row) => `delivery ${row.id} is ${row.status} after ${row.attempts} recorded tries`,
  );
  return { ...outcome, broken: [...outcome.broken, ...late, ...odd] };
}

/** Waits until nothing is pending, or gives up after a long time. */
async function awaitDelivered(server: Server): Promise<void> {
  const count = async (sql: Pool) =>
    (await sql`select from deliveries where status = 'pending' limit 1`).count;
  await server.look((sql) =>
    waitFor('deliveries', async () => (await count(sql)) === 0, 2 * withinMs).catch(() => {}),
  );
}

/**
 * `kill -9` of the service at random moments under SMTP load, sometimes of its PostgreSQL too, also while statements wait, or again
 * during the start. Every message that got a 250 is stored once and reaches every subscribed webhook at least once. A message
 * without a 250 is stored completely or not at all, and is stored once after it is sent again.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { isUnavailable } from '../../src/db/client.ts';
import { waitFor } from '../harness.ts';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import { prepareServer, type Server } from './server.ts';
import { conclude, prepareTrial } from './trial.ts';

/** A kill comes after at most so many messages of its round, or after this time. */
const mostLetters = 400;
const mostMs = 3000;
/**
 * The table that nobody can write to at the kill, by round. A message is stored together with its deliveries, and a delivery leaves
 * the queue together with its entry in the history: what is acknowledged or committed before is found in these rounds, whenever
 * the kill comes.
 */
const blocked: Record<number, string> = { 1: 'delivery_queue', 5: 'ended_deliveries' };

export const kill: Fault = {
  about: 'kill -9 of the service under SMTP load, restart',
  rounds: { usual: 20, short: 2 },
  boundMs: (rounds) => 150_000 + rounds * 20_000,
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  const { random, log } = lent;
  const server = await prepareServer(lent);
  await server.start();
  const trial = await prepareTrial(lent, server);
  const { post, ledger } = trial;

  for (let round = 1; round <= lent.rounds; round += 1) {
    const before = { acknowledged: post.acknowledged, deferred: post.deferred };
    const sending = post.send(round, () => ledger.write());
    await awaitMoment(random, () => post.acknowledged - before.acknowledged);
    const victims = await strike(server, round, random);
    await sending;
    const began = performance.now();
    await server.start();
    const upMs = Math.round(performance.now() - began);
    const { stored, ...found } = await server.look((sql) => ledger.compare(sql, 'new'));
    const cut = post.unanswered;
    log(
      `round ${round}/${lent.rounds}: ${post.acknowledged - before.acknowledged} acknowledged, ` +
        `${post.deferred - before.deferred} put off, ${cut.length} cut off ` +
        `(${cut.filter((letter) => stored.has(letter)).length} of them are stored); ` +
        `killed ${victims}, up again in ${upMs} ms`,
    );
    if (Object.values(found).flat().length > 0) return { acknowledged: ledger.countAcknowledged(), ...found };
  }
  return conclude(trial);
}

/** Kills, and returns what was killed. */
async function strike(server: Server, round: number, random: () => number): Promise<string> {
  const table = blocked[round % 6];
  if (table) {
    await killWhileBlocked(server, table, random);
    await delay(pick(random, 0, 400));
    await server.kill();
    return `the database while nobody could write to ${table}, then the service`;
  }
  if (round % 6 === 2) {
    const dead = server.kill();
    server.killDatabase();
    await dead;
    return 'the service and its database';
  }
  if (round % 6 === 4) {
    server.killDatabase();
    await delay(pick(random, 0, 400));
    await server.kill();
    return 'the database, then the service';
  }
  await server.kill();
  if (round % 6 !== 0) return 'the service';
  server.launch();
  await delay(pick(random, 50, 1000));
  await server.kill();
  return 'the service, and again while it started';
}

/** Statements that write to the table wait, until PostgreSQL is killed and none of them is committed. */
export async function killWhileBlocked(server: Server, table: string, random: () => number): Promise<void> {
  await server.look((sql) =>
    sql
      .begin(async (own) => {
        await own.script(`lock table ${table} in share mode`);
        await delay(pick(random, 50, 400));
        server.killDatabase();
        // Holds the lock until the connection is lost.
        await own`select pg_sleep(60)`;
      })
      .catch((error) => {
        if (!isUnavailable(error)) throw error;
      }),
  );
}

/** After some messages of the round, and not exactly at the moment of a reply. */
async function awaitMoment(random: () => number, countTaken: () => number): Promise<void> {
  const letters = pick(random, 0, mostLetters);
  const restMs = pick(random, 0, 50);
  await waitFor('letters to be taken', () => countTaken() >= letters, mostMs).catch(() => {});
  await delay(restMs);
}

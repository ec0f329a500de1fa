/**
 * PostgreSQL is stopped or killed with `-9` under load, and starts again. Meanwhile clients get 451 and 503 quickly, and their
 * connections stay open; afterwards everything continues by itself; nothing is lost.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import type { Postgres } from '../own-postgres.ts';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import { preparePostgres } from './postgres.ts';
import { Probe } from './probe.ts';
import { prepareServer } from './server.ts';
import { conclude, keepSending, prepareTrial, type Trial } from './trial.ts';

/** After PostgreSQL is back. */
export const backWithinMs = 15_000;

export const databaseStop: Fault = {
  about: 'PostgreSQL stopped for 20 s under load',
  ...outage((postgres) => postgres.stop()),
};

export const databaseKill: Fault = {
  about: 'PostgreSQL killed with -9 under load, back after 20 s',
  ...outage((postgres) => postgres.kill()),
};

function outage(takeAway: (postgres: Postgres) => Promise<void>): Omit<Fault, 'about'> {
  return {
    rounds: { usual: 3, short: 1 },
    boundMs: (rounds, short) => 150_000 + rounds * (short ? 60_000 : 80_000),
    run: (lent) => run(lent, takeAway),
  };
}

async function run(lent: FaultRun, takeAway: (postgres: Postgres) => Promise<void>): Promise<Outcome> {
  const postgres = await preparePostgres(lent);
  await postgres.start();
  const server = await prepareServer(lent, { databaseUrl: postgres.url });
  await server.start();
  const trial = await prepareTrial(lent, server);
  const broken: string[] = [];
  const probe = new Probe(server);
  for (let round = 1; round <= lent.rounds; round += 1) {
    const found = await outlast(trial, probe, round, async () => {
      await takeAway(postgres);
      await delay(lent.short ? pick(lent.random, 3000, 6000) : pick(lent.random, 20_000, 25_000));
      await postgres.start();
    });
    broken.push(...found);
  }
  const outcome = await conclude(trial);
  return { ...outcome, broken: [...outcome.broken, ...broken, ...(await probe.conclude())] };
}

/** Load and API calls before, during and after `trouble`, which ends with a working database. Returns the violations. */
export async function outlast(
  { lent, post, ledger }: Trial,
  probe: Probe,
  round: number,
  trouble: () => Promise<void>,
): Promise<string[]> {
  const before = { deferrals: new Map(post.deferrals), broken: post.broken, unavailable: probe.unavailable };
  const load = keepSending({ post, ledger }, round);
  probe.start();
  const enough = post.acknowledged + pick(lent.random, 20, 200);
  await waitFor('letters to be taken', () => post.acknowledged >= enough);
  const [began, taken] = [performance.now(), post.acknowledged];
  await trouble();
  const awayMs = Math.round(performance.now() - began);
  const readyMs = await probe.recovered(backWithinMs);
  const resumed = post.acknowledged;
  await delay(pick(lent.random, 500, 1500));
  await load.stop();
  await probe.stop();

  const count = (status: number) => (post.deferrals.get(status) ?? 0) - (before.deferrals.get(status) ?? 0);
  const refused = probe.unavailable - before.unavailable;
  lent.log(
    `round ${round}/${lent.rounds}: away for ${awayMs} ms, ready again ${readyMs} ms later; ${taken} letters acknowledged ` +
      `before, ${post.acknowledged - taken} since; 451 ${count(451)} times, 503 ${refused} times; ` +
      `slowest answers ${Math.round(post.slowestMs)} and ${Math.round(probe.slowestMs)} ms`,
  );
  // 421 is for a connection that was deferred for too long.
  const others = [...post.deferrals.keys()].filter((status) => status !== 451 && status !== 421);
  return [
    // A request waits for a database that is away for less than a second, so there may be no 503 in a round.
    ...(count(451) + refused === 0 ? [`round ${round}: nobody was told 451 or 503`] : []),
    ...(post.acknowledged === resumed
      ? [`round ${round}: no letter was taken after it was ready again`]
      : []),
    ...(post.broken > before.broken
      ? [`round ${round}: ${post.broken - before.broken} SMTP connections broke`]
      : []),
    ...others.map((status) => `round ${round}: letters were put off with ${status}`),
  ];
}

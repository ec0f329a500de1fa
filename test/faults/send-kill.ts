/**
 * `kill -9` of the service at random moments while it sends, sometimes of its PostgreSQL too, also while outcomes cannot be recorded.
 * Every recipient of a message that got 202 is sent to at least once; a second copy is sent only when the outcome of the first
 * could not be recorded; every outcome has one event.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import { killWhileBlocked } from './kill.ts';
import { startRelay } from './relay.ts';
import { prepareSendTrial, sendSettings } from './send-trial.ts';
import { prepareServer, type Server } from './server.ts';

/** A kill comes after at most so many messages at the relay in its round, or after this time. */
const mostTaken = 300;
const mostMs = 5000;
const clients = 6;
/** Long enough that some messages are between their final dot and the reply at each kill, for longer than a commit takes. */
const answerMs = 600;

export const sendKill: Fault = {
  about: 'kill -9 of the service while it sends, restart',
  rounds: { usual: 20, short: 2 },
  boundMs: (rounds) => 200_000 + rounds * 25_000,
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  const { random, log } = lent;
  const relay = await startRelay(lent);
  await relay.behave({ answerMs });
  const server = await prepareServer(lent, { settings: sendSettings(relay) });
  await server.start();
  const trial = await prepareSendTrial(lent, server, relay);
  for (let round = 1; round <= lent.rounds; round += 1) {
    const load = trial.keepSubmitting(clients);
    const before = { taken: relay.taken.length, acknowledged: trial.acknowledged };
    const enough = before.taken + pick(random, 1, mostTaken);
    await waitFor('messages at the relay', () => relay.taken.length >= enough, mostMs).catch(() => {});
    await delay(pick(random, 0, 50));
    const victims = await trial.during(`the kill of round ${round}`, async () => {
      const killed = await strike(server, round, random);
      await load.stop();
      return killed;
    });
    await server.start();
    log(
      `round ${round}/${lent.rounds}: ${trial.acknowledged - before.acknowledged} acknowledged, ` +
        `${relay.taken.length - before.taken} taken by the relay; killed ${victims}`,
    );
  }
  return trial.conclude(lent);
}

/** Kills, and returns what was killed. */
async function strike(server: Server, round: number, random: () => number): Promise<string> {
  if (round % 4 === 2) {
    await killWhileBlocked(server, 'send_attempts', random);
    await delay(pick(random, 0, 400));
    await server.kill();
    return 'the database while no outcome could be recorded, then the service';
  }
  if (round % 4 === 3) {
    const dead = server.kill();
    server.killDatabase();
    await dead;
    return 'the service and its database';
  }
  await server.kill();
  return 'the service';
}

/**
 * A relay that is away, replies 421 to every second command, hangs after the final dot, and replies with more than 1 MB. Every recipient
 * is sent to; a second copy only follows a connection that was lost after the final dot; every outcome has one event; the memory
 * of the service does not grow.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import type { Fault, FaultRun, Outcome } from './fault.ts';
import { watchMemory } from './memory.ts';
import { startRelay } from './relay.ts';
import type { Manner } from './relay-manner.ts';
import { prepareSendTrial, sendSettings } from './send-trial.ts';
import { prepareServer } from './server.ts';

const lettersEach = 40;
const clients = 4;
/** Of the service. Large letters are in memory while they are sent. */
const mostGrowthMb = 150;
/** The relay is tired until it has refused often enough, and hangs until others were served. */
const tiredMs = 4000;

export const sendRelay: Fault = {
  about: 'a relay that is away, replies 421, hangs after the final dot or replies with more than 1 MB',
  rounds: { usual: 3, short: 1 },
  boundMs: (rounds, short) => 120_000 + rounds * (short ? 120_000 : 240_000),
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  const relay = await startRelay(lent);
  const server = await prepareServer(lent, { settings: sendSettings(relay) });
  await server.start();
  const trial = await prepareSendTrial(lent, server, relay);
  await trial.submitMany(lettersEach, clients);
  await trial.settle();
  const memory = watchMemory(server);
  const broken: string[] = [];
  const hangMs = lent.short ? 3000 : 20_000;

  async function outlast(what: string, manner: Partial<Manner>, trouble: () => Promise<unknown>) {
    const [began, before] = [performance.now(), relay.taken.length];
    await relay.behave(manner);
    await trial.submitMany(lettersEach, clients);
    await trouble();
    const meanwhile = relay.taken.length - before;
    await relay.behave();
    await trial.settle();
    const taken = relay.taken.length - before;
    const seconds = Math.round((performance.now() - began) / 1000);
    lent.log(
      `${what}: ${meanwhile} of ${taken} taken meanwhile, all after ${seconds} s; ${memory.describe()}`,
    );
    return meanwhile;
  }

  for (let round = 1; round <= lent.rounds; round += 1) {
    lent.log(`round ${round}/${lent.rounds}`);
    await outlast('away', { isThere: false }, () => delay(lent.short ? 5000 : 60_000));
    await outlast('421 to every second command', { isTired: true }, () => delay(tiredMs));
    const before = relay.taken.length;
    await outlast('hangs after the final dot', { hangsOneOf: 5, hangMs }, () =>
      waitFor('messages beside those that hang', () => relay.taken.length - before >= lettersEach),
    );
    const known = relay.taken.length;
    for (const replyBytes of [1_000_000, 3_000_000])
      await outlast(`replies with ${replyBytes} bytes`, { replyBytes }, () => trial.settle());
    const repeated = trial.countRepeated(known);
    if (repeated > 0) broken.push(`${repeated} messages were sent again because the reply was long`);
  }
  memory.stop();
  if (memory.growthMb() > mostGrowthMb) broken.push(`memory grew by ${memory.growthMb()} MB`);
  const outcome = await trial.conclude(lent);
  return { ...outcome, broken: [...outcome.broken, ...broken] };
}

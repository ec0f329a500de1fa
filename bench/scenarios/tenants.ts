/**
 * What one owner notices of another, in a scenario for each attack (tenants/attacks.ts). The first owner sends 20 messages and 20 API
 * requests a second. The figures are the p99 of its waits during the attack, each as a share of what is allowed: three times the p99
 * without the attack, or these limits where they are more:
 * - api: a `GET /identities`, 100 ms
 * - delivery: from the 202 to the complete POST to its webhook, 250 ms
 * - mail: a message of 300 KB, from its `POST /inbound` to the complete POST to its webhook, 1 s
 * - post: a `POST /messages` of 300 KB, 1 s
 * - relay: from `POST /messages` until the operator's relay has the message, 2 s
 * `mb` is the peak memory of the service. `npm run bench -- tenants` runs all of them, `tenants-imap-login` one.
 */
import { startDeliveryBench } from '../deliveries.ts';
import { mailSettings, startMailTools } from '../mail.ts';
import { startChild } from '../processes.ts';
import { type Bench, type BoundedScenario, quantile, type Taken } from '../scenario.ts';
import { readMemory, resetPeak } from '../usage.ts';
import type { Question } from './tenants/attacker.control.ts';
import { type Attack, attacks, type Stage } from './tenants/attacks.ts';
import { makeOwner, type Waits } from './tenants/owner.ts';

const rounds = 3;
const allowedMs: Record<keyof Waits, number> = {
  api: 100,
  delivery: 250,
  mail: 1000,
  post: 1000,
  relay: 2000,
};
const maxMb = 450;

export const scenarios: readonly BoundedScenario[] = attacks.map((attack) => ({
  name: `tenants-${attack.name}`,
  group: 'tenants',
  goal: { ...Object.fromEntries(listWaits(attack).map((wait) => [wait, 1])), mb: maxMb },
  run: (bench) => measure(bench, attack),
}));

function listWaits({ extras = [] }: Attack): (keyof Waits)[] {
  const large = extras.includes('large') ? (['mail', 'post'] as const) : [];
  const relayed = extras.includes('relayed') ? (['relay'] as const) : [];
  return ['api', 'delivery', ...large, ...relayed];
}

async function measure(bench: Bench, attack: Attack): Promise<Taken> {
  const tools = await startMailTools(bench);
  const relay = attack.extras?.includes('relayed') ? start(bench, 'relay.control.ts') : null;
  const relayPort = (await relay?.printed(/port (\d+)/))?.[1];
  const deliveries = await startDeliveryBench(bench, {
    ...mailSettings(tools),
    POSTHORN_MAX_WEBHOOKS: '10000',
    POSTHORN_SEND_RATE: '0',
    ...(relay ? { POSTHORN_RELAY_URL: `smtp://127.0.0.1:${relayPort}`, POSTHORN_OUTBOUND: 'relay' } : {}),
  });
  const { service } = deliveries;
  const probe = await makeOwner(bench, deliveries, relay, attack);
  const stage = makeStage(bench, deliveries);

  bench.log('without the attack');
  await probe();
  const alone = takeP99(await probe());
  const allowed = alone.map(([wait, ms]) => [wait, Math.max(allowedMs[wait], 3 * ms)] as const);
  bench.log(`p99 without the attack: ${describe(alone)}`);
  resetPeak(service.pid);
  await attack.begin(stage);
  const taken: Taken = Object.fromEntries([...listWaits(attack), 'mb'].map((figure) => [figure, []]));
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    const repeated = attack.repeat?.(stage);
    const found = takeP99(await bench.measured(probe));
    await repeated;
    const { peak } = readMemory(service.pid);
    const ms = new Map(found);
    for (const [wait, most] of allowed) taken[wait]?.push((ms.get(wait) ?? Number.NaN) / most);
    taken.mb?.push(peak);
    bench.log(`round ${round} of ${rounds}, p99: ${describe(found)}; ${peak.toFixed(0)} MB`);
  }
  return taken;
}

function makeStage(bench: Bench, deliveries: Stage['deliveries']): Stage {
  const { url: origin, headers } = deliveries.service;
  const attacker = start(bench, 'attacker.control.ts');
  return {
    size: bench.size,
    deliveries,
    attack: (question) =>
      attacker.ask({ ...question, origin, authorization: headers.authorization } satisfies Question),
    async startImapServer(mode, folders = 0) {
      const server = start(bench, 'imap-server.control.ts', [mode, String(folders)]);
      return Number((await server.printed(/port (\d+)/))[1]);
    },
  };
}

function start(bench: Bench, file: string, args: readonly string[] = []) {
  return startChild(bench, new URL(`./tenants/${file}`, import.meta.url), args);
}

function takeP99(waits: Waits): [keyof Waits, number][] {
  return Object.entries(waits).map(([wait, ms]) => [wait as keyof Waits, quantile(ms, 0.99)]);
}

function describe(found: readonly [string, number][]): string {
  return found.map(([wait, ms]) => `${wait} ${ms.toFixed(0)} ms`).join(', ');
}

/**
 * What one owner notices of another. The owner sends 20 messages and 20 API requests a second; the figures are the p99 of its
 * API requests and of its deliveries (from the 202 to the complete POST) during an attack, each as a share of what is allowed:
 * three times the p99 without the attack, or 100 ms (API) and 250 ms (delivery) where that is more. `…Mb` is the peak memory
 * of the service. The attacks of the other owner:
 * - slow: 1,300 webhooks whose receiver answers after 14 s
 * - many: 5,000 webhooks, and three messages for each
 * - large: bodies of 4 MB to receivers that answer after 14 s; the bodies of the first owner have 200 KB
 * - flood: 4,000 `POST /identities` on 400 sockets
 * - unread: 40 clients that ask for 1,000 identities with much `meta` and read nothing
 */
import { setTimeout as delay } from 'node:timers/promises';
import { createApiKey } from '../../src/store/api-keys.ts';
import { ensureUser } from '../../src/store/users.ts';
import { type DeliveryBench, startDeliveryBench } from '../deliveries.ts';
import { type MailTools, mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { type Child, startChild } from '../processes.ts';
import type { ReceivedMail } from '../receiver.control.ts';
import { idPlace } from '../sample-mail.ts';
import { type Bench, type Figures, quantile, type Taken, withCleanup } from '../scenario.ts';
import { sender } from '../smtp-session.ts';
import { readMemory, resetPeak } from '../usage.ts';
import type { Client, Probed, TenantsQuestion } from './tenants.control.ts';

export const name = 'tenants';

const rounds = 3;
const perSecond = 20;
/** In each round, and without the attack. */
const usualCount = 160;
const allowedMs = { Api: 100, Delivery: 250 };
const maxMb = 400;

interface Stage {
  size: Bench['size'];
  deliveries: DeliveryBench;
  attacker: Client & { child: Child };
}

interface Attack {
  name: string;
  /** The bytes of text in each message of the first owner. */
  textBytes?: number;
  /** Starts what lasts for all rounds. */
  begin(stage: Stage): Promise<void>;
  /** What is done again in each round. */
  repeat?(stage: Stage): Promise<unknown>;
}

const attacks: readonly Attack[] = [
  {
    name: 'slow',
    async begin({ deliveries, size }) {
      const webhooks = await deliveries.makeWebhooks(size(1300), '/slow');
      await deliveries.queue(webhooks, webhooks.length * 10);
      await deliveries.turnOn(webhooks, true);
      await waitForLeases(deliveries, webhooks.length);
    },
  },
  {
    name: 'many',
    async begin({ deliveries, size }) {
      await makeIdentity(deliveries.service, 'many@customer.example');
      await deliveries.turnOn(await deliveries.makeWebhooks(size(5000)), true);
    },
    async repeat({ attacker }) {
      const mail = makeMail('many@customer.example', 1000);
      await ask(attacker, {
        kind: 'probe',
        perSecond: 20,
        count: 3,
        recipient: 'many@customer.example',
        mail,
      });
    },
  },
  {
    name: 'large',
    textBytes: 200_000,
    async begin({ deliveries, size }) {
      const webhooks = await deliveries.makeWebhooks(size(20), '/slow');
      const data = JSON.stringify({ message: { text: 'x'.repeat(4_000_000) } });
      await deliveries.queue(webhooks, webhooks.length * 20, data);
      await deliveries.turnOn(webhooks, true);
      await waitForLeases(deliveries, webhooks.length);
    },
  },
  {
    name: 'flood',
    begin: async () => {},
    repeat: ({ attacker, size }) => ask(attacker, { kind: 'flood', sockets: 400, count: size(4000) }),
  },
  {
    name: 'unread',
    async begin({ deliveries: { service }, attacker, size }) {
      const meta = { text: 'x'.repeat(15_000) };
      for (let n = 0; n < size(1000); n += 1) {
        const body = JSON.stringify({ value: `unread${n}@customer.example`, meta });
        const { headers, url } = service;
        const answer = await fetch(`${url}/identities`, { method: 'POST', headers, body });
        if (answer.status !== 201) throw new Error(`POST /identities responded ${answer.status}`);
      }
      // No answer comes.
      ask(attacker, { kind: 'unread', sockets: 40, path: '/identities?limit=1000' }).catch(() => {});
      await delay(1000);
    },
  },
];

export const goal: Figures = Object.fromEntries(
  attacks.flatMap(({ name }) => [
    [`${name}Api`, 1],
    [`${name}Delivery`, 1],
    [`${name}Mb`, maxMb],
  ]),
);

export async function run(bench: Bench): Promise<Taken> {
  const tools = await startMailTools(bench);
  const taken: Taken = {};
  for (const attack of attacks)
    Object.assign(taken, await withCleanup((defer) => measure({ ...bench, defer }, tools, attack)));
  return taken;
}

async function measure(bench: Bench, tools: MailTools, attack: Attack): Promise<Taken> {
  const settings = { ...mailSettings(tools), POSTHORN_MAX_WEBHOOKS: '10000' };
  const deliveries = await startDeliveryBench(bench, settings);
  const { service } = deliveries;
  const child = startClient(bench);
  const attacker = { child, origin: service.url, authorization: service.headers.authorization };
  const stage = { size: bench.size, deliveries, attacker };
  const probe = await makeOwner(bench, deliveries, attack.textBytes ?? 1000);

  bench.log(`${attack.name}: without the attack`);
  await probe();
  const alone = await probe();
  const most = {
    Api: Math.max(allowedMs.Api, 3 * quantile(alone.apiMs, 0.99)),
    Delivery: Math.max(allowedMs.Delivery, 3 * quantile(alone.deliveryMs, 0.99)),
  };
  bench.log(`${attack.name}: the attack begins`);
  resetPeak(service.pid);
  await attack.begin(stage);
  const shares = { Api: [] as number[], Delivery: [] as number[], Mb: [] as number[] };
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    const repeated = attack.repeat?.(stage);
    const { apiMs, deliveryMs } = await bench.measured(probe);
    await repeated;
    const [api, delivery] = [quantile(apiMs, 0.99), quantile(deliveryMs, 0.99)];
    const { peak } = readMemory(service.pid);
    shares.Api.push(api / most.Api);
    shares.Delivery.push(delivery / most.Delivery);
    shares.Mb.push(peak);
    const compare = (ms: number, without: readonly number[]) =>
      `${ms.toFixed(0)} ms (${quantile(without, 0.99).toFixed(0)} without)`;
    bench.log(
      `${attack.name}, round ${round} of ${rounds}, p99: API ${compare(api, alone.apiMs)}, ` +
        `delivery ${compare(delivery, alone.deliveryMs)}; ${peak.toFixed(0)} MB`,
    );
  }
  return Object.fromEntries(
    Object.entries(shares).map(([figure, values]) => [`${attack.name}${figure}`, values]),
  );
}

function startClient(bench: Bench): Child {
  return startChild(bench, new URL('./tenants.control.ts', import.meta.url), []);
}

type Asked = TenantsQuestion extends infer Each
  ? Each extends Client
    ? Omit<Each, keyof Client>
    : never
  : never;

function ask({ child, origin, authorization }: Client & { child: Child }, question: Asked): Promise<unknown> {
  return child.ask({ ...question, origin, authorization });
}

/** The owner whose waits are measured: a user with an identity, a webhook, and a receiver of its own. */
async function makeOwner(bench: Bench, { service, sql }: DeliveryBench, textBytes: number) {
  const count = bench.size(usualCount);
  const recipient = 'owner@tenant.example';
  const { user } = await ensureUser(sql, recipient);
  const { apiKey } = await createApiKey(sql, user.userId);
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  await makeIdentity({ url: service.url, headers }, recipient);
  const receiver = startChild(bench, new URL('../receiver.control.ts', import.meta.url), []);
  const [, port] = await receiver.printed(/port (\d+)/);
  const url = `http://127.0.0.1:${port}/mail`;
  const body = JSON.stringify({ url, events: ['message.received'], ownerId: user.userId });
  const answer = await fetch(`${service.url}/webhooks`, { method: 'POST', headers, body });
  if (answer.status !== 201) throw new Error(`POST /webhooks responded ${answer.status}`);
  const client = { child: startClient(bench), origin: service.url, authorization: headers.authorization };
  const mail = makeMail(recipient, textBytes);

  return async (): Promise<{ apiMs: number[]; deliveryMs: number[] }> => {
    const receiving = receiver.ask(count) as Promise<{ mails: ReceivedMail[] }>;
    const { apiMs, sent } = (await ask(client, {
      kind: 'probe',
      perSecond,
      count,
      recipient,
      mail,
    })) as Probed;
    const arrivals = new Map((await receiving).mails.map((one) => [one.messageId, one.arrivedMs]));
    const deliveryMs = sent.map(({ id, answeredMs }) => {
      const arrivedMs = arrivals.get(`<${id}@sender.example>`);
      if (arrivedMs === undefined) throw new Error(`No webhook call came for message ${id}`);
      return arrivedMs - answeredMs;
    });
    return { apiMs, deliveryMs };
  };
}

function makeMail(recipient: string, textBytes: number): string {
  const head = `From: <${sender}>\r\nTo: <${recipient}>\r\nSubject: A message\r\nMessage-ID: <${idPlace}@sender.example>`;
  return `${head}\r\n\r\n${`${'x'.repeat(70)}\r\n`.repeat(Math.ceil(textBytes / 72))}`;
}

/** Waits until so many deliveries have been claimed: the attack is under way. */
async function waitForLeases({ sql }: DeliveryBench, count: number): Promise<void> {
  const leased = () => sql`select from delivery_queue where lease_token is not null limit ${count}`;
  while ((await leased()).count < count) await delay(100);
}

/**
 * What a message of 5 KB costs, from its arrival to its only webhook: parsed, authenticated, committed, delivered; 32 at once, by
 * SMTP and by `POST /inbound`, from 500 senders. Processor time of service and PostgreSQL, disk and write-ahead log, each for one message.
 */
import { type Costs, compareWith, measureCost, warmUpCount } from '../compare.ts';
import { startDeliveryBench } from '../deliveries.ts';
import { type MailTools, mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import {
  type Bench,
  type BoundedScenario,
  type Checkout,
  concurrency,
  type Figures,
  type Taken,
} from '../scenario.ts';
import { makeSenderMix } from '../sender-mix.ts';
import { findPostmaster, readCpuMs, readServerCpuMs, readTables, readWalBytes } from '../usage.ts';

export const name = 'message';
export const goal: Figures = { smtpMs: 1.6, inboundMs: 1.6, diskKb: 9, logKb: 9 };

const warmUpMs = 4000;
const floodMs = 6000;
const postCount = 3000;
const rounds = 3;

export async function run(bench: Bench): Promise<Taken> {
  const tools = await startMailTools(bench, await makeSenderMix(bench.size));
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  const { service, sql } = deliveries;
  await makeIdentity(service);
  await deliveries.turnOn(await deliveries.makeWebhooks(1), true);
  const postmaster = await findPostmaster(sql);
  const countMessages = async () => Number((await sql`select count(*) as count from messages`)[0]?.count);

  const readAll = async () => ({
    messages: await countMessages(),
    serviceMs: readCpuMs(service.pid),
    postgresMs: readServerCpuMs(postmaster),
    disk: (await readTables(sql)).reduce((sum, { bytes }) => sum + bytes, 0),
    log: await readWalBytes(sql),
  });

  /** The costs of one message, when all deliveries have ended. */
  const measure = async (work: () => Promise<unknown>) => {
    // A page is written whole to the log at its first change after a checkpoint: the same start for every round.
    await sql`checkpoint`;
    const before = await readAll();
    await bench.measured(async () => {
      await work();
      while ((await deliveries.countReceived()) < (await countMessages())) bench.signal.throwIfAborted();
    });
    const after = await readAll();
    const each = (key: keyof typeof before) =>
      (after[key] - before[key]) / (after.messages - before.messages);
    return {
      serviceMs: each('serviceMs'),
      postgresMs: each('postgresMs'),
      diskKb: each('disk') / 1000,
      logKb: each('log') / 1000,
    };
  };

  const flood = (durationMs: number) =>
    tools.flood(service.smtpPort, { sessions: concurrency, keep: true, durationMs });
  bench.log('warming up');
  await flood(bench.size(warmUpMs));
  await tools.post(service, bench.size(postCount));
  const taken = {
    smtpMs: [] as number[],
    inboundMs: [] as number[],
    diskKb: [] as number[],
    logKb: [] as number[],
  };
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    const smtp = await measure(() => flood(bench.size(floodMs)));
    const inbound = await measure(() => tools.post(service, bench.size(postCount)));
    taken.smtpMs.push(smtp.serviceMs + smtp.postgresMs);
    taken.inboundMs.push(inbound.serviceMs + inbound.postgresMs);
    taken.diskKb.push(inbound.diskKb);
    taken.logKb.push(inbound.logKb);
    for (const [way, { serviceMs, postgresMs, diskKb, logKb }] of Object.entries({ smtp, inbound }))
      bench.log(
        `round ${round} of ${rounds}, ${way}: ${serviceMs.toFixed(2)} ms in the service, ` +
          `${postgresMs.toFixed(2)} ms in PostgreSQL, ${diskKb.toFixed(1)} KB of disk, ${logKb.toFixed(1)} KB of log`,
      );
  }
  return taken;
}

/** Messages at once. The goals are for 32; the others show whether that is a special case. */
const concurrencies = [1, 8, 32, 128];
/** Of each kind; four times as many where there is a goal. */
const countEach = 1500;

export function against(other: Checkout): BoundedScenario {
  return {
    name: `message-against-${other.name}`,
    goal: { smtp32Ratio: 0.6, inbound32Ratio: 0.65 },
    async run(bench) {
      bench.log('signing the mail of 500 senders');
      const tools = await startMailTools(bench, await makeSenderMix(bench.size));
      return compareWith(bench, other, (bench) => measureTurn(bench, tools));
    },
  };
}

async function measureTurn(bench: Bench, tools: MailTools): Promise<Costs> {
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  const { service } = deliveries;
  await makeIdentity(service);
  const webhooks = await deliveries.makeWebhooks(1);
  await deliveries.turnOn(webhooks, true);
  const ways = {
    smtp: (sessions: number, count: number) => tools.send(service.smtpPort, { sessions, count }),
    inbound: (sessions: number, count: number) => tools.post(service, count, { sessions }),
  };
  /** Until the receiver has all messages, and that is recorded. */
  const take = async (way: keyof typeof ways, sessions: number, count: number) => {
    const came = deliveries.receiveMail(count);
    await Promise.all([ways[way](sessions, count), came]);
    await deliveries.awaitRecorded(webhooks);
  };
  for (const way of ['smtp', 'inbound'] as const) await take(way, concurrency, bench.size(warmUpCount / 2));
  const costs: Costs = {};
  for (const sessions of concurrencies)
    for (const way of ['smtp', 'inbound'] as const) {
      const count = bench.size(sessions === concurrency ? 4 * countEach : countEach);
      const cost = await measureCost(bench, deliveries, count, () => take(way, sessions, count));
      costs[`${way}${sessions}`] = cost;
    }
  return costs;
}

/**
 * Constant load, well below the limit of the machine, for the given time. Does a delivery cost the same at the end as at the
 * start, and does the memory stay the same? Old mail exists from the start, and its retention ends at the rate at which new mail
 * comes in. So the purge works all the time, and the tables can keep their size. Linux only.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { copyMessage } from '../copies.ts';
import { type DeliveryBench, startDeliveryBench } from '../deliveries.ts';
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { drawPanels, type Panel } from '../report/panels.ts';
import type { Bench, Finding } from '../scenario.ts';
import {
  findPostmaster,
  readCpuMs,
  readMemory,
  readServerCpuMs,
  readTables,
  type TableUsage,
} from '../usage.ts';
import { compareThirds, type Sample } from './soak-growth.ts';

export const name = 'soak';

const perSecond = 20;
const webhookCount = 5;
const warmUpSeconds = 15;
const sampleMs = 5000;
const retentionDays = 1;
const batch = 2000;
const patienceMs = 30_000;
const dayMs = 86_400_000;
const shownTables = ['delivery_queue', 'ended_deliveries', 'events', 'messages', 'raw_chunks'];

interface SoakSample extends Sample {
  tables: TableUsage[];
}

export async function run(bench: Bench, { minutes }: { minutes: number }): Promise<Finding> {
  const tools = await startMailTools(bench);
  const settings = { ...mailSettings(tools), POSTHORN_RETENTION_DAYS: String(retentionDays) };
  const deliveries = await startDeliveryBench(bench, settings);
  const { service } = deliveries;
  const identityId = await makeIdentity(service);
  await tools.pace(service.smtpPort, { perSecond: 1, count: 1 });
  const webhooks = await deliveries.makeWebhooks(webhookCount);
  // Longer than the last sample, which must not see the end of the load.
  const seconds = minutes * 60 + warmUpSeconds + (2 * sampleMs) / 1000;
  await makePast(bench, deliveries, identityId, webhooks, seconds);
  await deliveries.turnOn(webhooks, true);

  bench.log(`${perSecond} messages a second, each to ${webhookCount} webhooks, for ${minutes} minutes`);
  const sending = tools.pace(service.smtpPort, { perSecond, count: Math.round(perSecond * seconds) });
  const samples = watch(bench, deliveries, minutes);
  const [sent, taken] = await Promise.all([sending, samples]);
  await awaitAll(bench, deliveries, sent.length * webhookCount);
  const { rows, value, met } = compareThirds(taken);
  const title = `Soak: ${minutes} minutes, ${perSecond} messages and ${perSecond * webhookCount} deliveries a second`;
  const files = {
    'soak.svg': drawPanels(title, panelsOf(taken)),
    'soak.json': `${JSON.stringify({ minutes, ...value, samples: taken }, null, 2)}\n`,
  };
  return { value: { minutes, ...value }, rows, files, met };
}

/** Mail whose retention ends evenly during the soak. */
async function makePast(
  bench: Bench,
  { sql }: DeliveryBench,
  identityId: string,
  webhookIds: readonly string[],
  seconds: number,
): Promise<void> {
  const spacingMs = 1000 / perSecond;
  const firstMs = Date.now() - retentionDays * dayMs;
  for (let made = 0; made < perSecond * seconds; made += batch) {
    const youngest = new Date(firstMs + (made + batch) * spacingMs);
    await copyMessage(sql, {
      from: identityId,
      to: identityId,
      count: batch,
      youngest,
      spacingMs,
      webhookIds,
    });
    bench.log(`created ${(made + batch).toLocaleString('en')} old messages`);
  }
  await sql`vacuum analyze`;
}

/** Fails when the deliveries do not keep up with the load. */
async function awaitAll(bench: Bench, { countReceived }: DeliveryBench, due: number): Promise<void> {
  const endMs = performance.now() + patienceMs;
  for (let came = await countReceived(); came < due; came = await countReceived()) {
    if (performance.now() > endMs) throw new Error(`${due - came} of ${due} deliveries did not arrive`);
    await delay(100, null, { signal: bench.signal });
  }
}

async function watch(
  bench: Bench,
  { service, sql, countReceived }: DeliveryBench,
  minutes: number,
): Promise<SoakSample[]> {
  const postmaster = await findPostmaster(sql);
  const read = async () => ({
    atMs: performance.now(),
    received: await countReceived(),
    serviceMs: readCpuMs(service.pid),
    postgresMs: readServerCpuMs(postmaster),
  });
  await delay(warmUpSeconds * 1000, null, { signal: bench.signal });
  const samples: SoakSample[] = [];
  let before = await read();
  const beganMs = before.atMs;
  while (before.atMs - beganMs < minutes * 60_000) {
    await delay(sampleMs, null, { signal: bench.signal });
    const now = await read();
    const received = now.received - before.received;
    samples.push({
      minute: (now.atMs - beganMs) / 60_000,
      seconds: (now.atMs - before.atMs) / 1000,
      received,
      serviceCpuMs: now.serviceMs - before.serviceMs,
      postgresCpuMs: now.postgresMs - before.postgresMs,
      memoryMb: readMemory(service.pid).now,
      tables: await readTables(sql),
    });
    before = now;
    if (samples.length % 6 === 0) bench.log(`minute ${(samples.at(-1)?.minute ?? 0).toFixed(1)}`);
  }
  return samples;
}

function panelsOf(samples: readonly SoakSample[]): Panel[] {
  const series = (name: string, read: (sample: SoakSample) => number) => ({
    name,
    points: samples.map((sample) => [sample.minute, read(sample)] as const),
  });
  const perDelivery = (read: (sample: SoakSample) => number) => (sample: SoakSample) =>
    read(sample) / Math.max(1, sample.received);
  const ofTables = (read: (table: TableUsage) => number) =>
    shownTables.map((name) =>
      series(name, ({ tables }) => {
        const table = tables.find((table) => table.name === name);
        return table ? read(table) : 0;
      }),
    );
  return [
    {
      title: 'Deliveries a second',
      series: [series('received', (sample) => sample.received / sample.seconds)],
    },
    {
      title: 'Processor ms of a delivery, with its share of the mail',
      series: [
        series(
          'service',
          perDelivery((sample) => sample.serviceCpuMs),
        ),
        series(
          'PostgreSQL',
          perDelivery((sample) => sample.postgresCpuMs),
        ),
      ],
    },
    { title: 'Resident memory of the service, MB', series: [series('service', (sample) => sample.memoryMb)] },
    { title: 'Tables with their indexes, MB', series: ofTables(({ bytes }) => bytes / 1e6) },
    { title: 'Dead rows that wait for vacuum', series: ofTables(({ dead }) => dead) },
  ];
}

/**
 * Steady load, well below what the machine could do, for as long as asked: does a delivery cost the same in the end as in the
 * beginning, and is memory flat? Old mail lies there from the start and comes to its retention at the rate at which new mail
 * comes in, so that the purge works all the while and the tables could stay as large as they are. Linux only.
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
import { judgeSoak, type Sample } from './soak-verdict.ts';

export const name = 'soak';

const perSecond = 20;
const webhookCount = 5;
const warmUpSeconds = 15;
const sampleMs = 5000;
const retentionDays = 1;
const batch = 2000;
const patienceMs = 30_000;
const dayMs = 86_400_000;
const shownTables = ['attempts', 'deliveries', 'events', 'messages', 'raw_chunks'];

interface Look extends Sample {
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
  // Beyond the last look, which would else see the load end.
  const seconds = minutes * 60 + warmUpSeconds + (2 * sampleMs) / 1000;
  await makePast(bench, deliveries, identityId, webhooks, seconds);
  await deliveries.turnOn(webhooks, true);

  bench.tell(`${perSecond} messages a second, each to ${webhookCount} webhooks, for ${minutes} minutes`);
  const sending = tools.pace(service.smtpPort, { perSecond, count: Math.round(perSecond * seconds) });
  const looks = watch(bench, deliveries, minutes);
  const [sent, taken] = await Promise.all([sending, looks]);
  await awaitAll(bench, deliveries, sent.length * webhookCount);
  const { rows, value, met } = judgeSoak(taken);
  const title = `Soak: ${minutes} minutes, ${perSecond} messages and ${perSecond * webhookCount} deliveries a second`;
  const files = {
    'soak.svg': drawPanels(title, panelsOf(taken)),
    'soak.json': `${JSON.stringify({ minutes, ...value, samples: taken }, null, 2)}\n`,
  };
  return { value: { minutes, ...value }, rows, files, met };
}

/** Mail whose retention ends while the soak goes on, evenly. */
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
    bench.tell(`made ${(made + batch).toLocaleString('en')} messages of a day ago`);
  }
  await sql`vacuum analyze`;
}

/** Steady load that is not kept up with is no steady load. */
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
): Promise<Look[]> {
  const postmaster = await findPostmaster(sql);
  const read = async () => ({
    atMs: performance.now(),
    received: await countReceived(),
    serviceMs: readCpuMs(service.pid),
    postgresMs: readServerCpuMs(postmaster),
  });
  await delay(warmUpSeconds * 1000, null, { signal: bench.signal });
  const looks: Look[] = [];
  let before = await read();
  const beganMs = before.atMs;
  while (before.atMs - beganMs < minutes * 60_000) {
    await delay(sampleMs, null, { signal: bench.signal });
    const now = await read();
    const received = now.received - before.received;
    looks.push({
      minute: (now.atMs - beganMs) / 60_000,
      seconds: (now.atMs - before.atMs) / 1000,
      received,
      serviceCpuMs: now.serviceMs - before.serviceMs,
      postgresCpuMs: now.postgresMs - before.postgresMs,
      memoryMb: readMemory(service.pid).now,
      tables: await readTables(sql),
    });
    before = now;
    if (looks.length % 6 === 0) bench.tell(`minute ${(looks.at(-1)?.minute ?? 0).toFixed(1)}`);
  }
  return looks;
}

function panelsOf(looks: readonly Look[]): Panel[] {
  const series = (name: string, read: (look: Look) => number) => ({
    name,
    points: looks.map((look) => [look.minute, read(look)] as const),
  });
  const perDelivery = (read: (look: Look) => number) => (look: Look) =>
    read(look) / Math.max(1, look.received);
  const ofTables = (read: (table: TableUsage) => number) =>
    shownTables.map((name) =>
      series(name, ({ tables }) => {
        const table = tables.find((table) => table.name === name);
        return table ? read(table) : 0;
      }),
    );
  return [
    { title: 'Deliveries a second', series: [series('received', (look) => look.received / look.seconds)] },
    {
      title: 'Processor ms of a delivery, with its share of the mail',
      series: [
        series(
          'service',
          perDelivery((look) => look.serviceCpuMs),
        ),
        series(
          'PostgreSQL',
          perDelivery((look) => look.postgresCpuMs),
        ),
      ],
    },
    { title: 'Resident memory of the service, MB', series: [series('service', (look) => look.memoryMb)] },
    { title: 'Tables with their indexes, MB', series: ofTables(({ bytes }) => bytes / 1e6) },
    { title: 'Dead rows that wait for vacuum', series: ofTables(({ dead }) => dead) },
  ];
}

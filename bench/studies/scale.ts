/**
 * The cost of a message and of a delivery (processor time of the service and of PostgreSQL, write-ahead log, rows, disk), and the
 * delivery rate with 1, 2 and 4 processes on one database. docs/scaling.md uses these figures. Linux only.
 */
import { only, type Sql } from '../../src/db/client.ts';
import { identifier } from '../../src/db/sql.ts';
import { type DeliveryBench, startDeliveryBench } from '../deliveries.ts';
import { type MailTools, mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import type { Cost, Costs } from '../model.ts';
import { round, spreadOf } from '../report/outcome.ts';
import { type Bench, concurrency, type Finding, median, withCleanup } from '../scenario.ts';
import { startBeside } from '../service.ts';
import { findPostmaster, readCpuMs, readServerCpuMs, readTables, readWalBytes } from '../usage.ts';

export const name = 'scale';

const processCounts = [1, 2, 4];
const rounds = 3;
/** Several webhooks, because each process limits the parallel tries of one webhook. */
const webhookCount = 20;
const count = 20_000;
const warmUpCount = 5000;
const floodMs = 6000;
/** Where a message leaves rows. */
const messageTables = ['messages', 'raw_chunks', 'events'];

interface Turn {
  perSecond: number;
  serviceCpuMs: number;
  postgresCpuMs: number;
  walBytes: number;
  rows: number;
}

export async function run(bench: Bench): Promise<Finding> {
  const tools = await startMailTools(bench);
  const deliveries = await startDeliveryBench(bench, { ...mailSettings(tools), POSTHORN_ROLES: 'api,smtp' });
  const { sql, service } = deliveries;
  await makeIdentity(service);
  bench.log('mail without webhooks');
  const taking = await measureTaking(bench, deliveries, tools);
  const message: Cost = {
    serviceCpuMs: round(taking.serviceCpuMs, 3),
    postgresCpuMs: round(taking.postgresCpuMs, 3),
    walBytes: Math.round(taking.walBytes),
    rows: round(await rowsEach(sql, messageTables, 'messages'), 2),
    diskBytes: Math.round(await diskBytesEach(sql, messageTables, 'messages')),
  };
  const webhooks = await deliveries.makeWebhooks(webhookCount);
  await deliveries.turnOn(webhooks, true);
  bench.log(`mail with ${webhookCount} webhooks`);
  const queueing = await measureTaking(bench, deliveries, tools);
  await deliveries.turnOn(webhooks, false);
  await sql`truncate delivery_queue`;
  const turns = new Map<number, Turn[]>(processCounts.map((processes) => [processes, []]));
  for (let n = 1; n <= rounds; n += 1) {
    for (const [processes, taken] of turns) {
      const turn = await withCleanup((defer) =>
        measureTurn({ ...bench, defer }, deliveries, webhooks, processes),
      );
      // Server processes report all their rows when they end.
      taken.push({ ...turn, rows: await turn.rows() });
      bench.log(`round ${n} of ${rounds}, ${processes} processes: ${turn.perSecond.toFixed(0)} deliveries/s`);
    }
  }
  const [alone = []] = turns.values();
  /** The cost of queueing a delivery, which is part of receiving its message, and of making it. */
  const whole = (key: keyof typeof queueing) =>
    Math.max(0, queueing[key] - taking[key]) / webhookCount + median(alone.map((turn) => turn[key]));
  const delivery: Cost = {
    serviceCpuMs: round(whole('serviceCpuMs'), 3),
    postgresCpuMs: round(whole('postgresCpuMs'), 3),
    walBytes: Math.round(whole('walBytes')),
    rows: round(1 + median(alone.map((turn) => turn.rows)), 2),
    diskBytes: Math.round(
      await diskBytesEach(
        sql,
        ['delivery_queue', 'ended_deliveries', 'earlier_attempts'],
        'ended_deliveries',
      ),
    ),
  };
  const identityBytes = await measureIdentities(deliveries);
  const costs: Costs = { message, delivery, identityBytes };
  const processes = [...turns].map(([processes, taken]) => {
    const rates = taken.map(({ perSecond }) => Math.round(perSecond));
    return { processes, perSecond: median(rates), ...spreadOf(rates) };
  });
  const value = { costs, taking: { alone: taking, queueing }, processes };
  return {
    value,
    rows: toTable(costs, processes),
    files: { 'scale.json': `${JSON.stringify(value, null, 2)}\n` },
    met: true,
  };
}

/** The cost of receiving one message. Nothing is delivered meanwhile: this process has no deliver role. */
async function measureTaking(
  bench: Bench,
  { service, sql }: DeliveryBench,
  tools: MailTools,
): Promise<Omit<Cost, 'rows' | 'diskBytes'>> {
  const flood = { sessions: concurrency, keep: true, durationMs: floodMs };
  await tools.flood(service.smtpPort, { ...flood, durationMs: floodMs / 2 });
  const before = await countRows(sql, 'messages');
  const spent = await watchUsage(sql, [service.pid], async () => {
    bench.log(`receiving ${(await tools.flood(service.smtpPort, flood)).toFixed(0)} messages/s`);
  });
  const taken = (await countRows(sql, 'messages')) - before;
  return {
    serviceCpuMs: spent.serviceCpuMs / taken,
    postgresCpuMs: spent.postgresCpuMs / taken,
    walBytes: spent.walBytes / taken,
  };
}

async function measureTurn(
  bench: Bench,
  { service, sql, queue, drain }: DeliveryBench,
  webhooks: readonly string[],
  processes: number,
): Promise<Omit<Turn, 'rows'> & { rows: () => Promise<number> }> {
  const rowsBefore = await countWrites(sql);
  const pids: number[] = [];
  while (pids.length < processes) pids.push(await startBeside(bench, service, 'deliver'));
  await queue(webhooks, warmUpCount);
  await drain(webhooks, warmUpCount);
  await queue(webhooks, count);
  let perSecond = 0;
  const spent = await watchUsage(sql, pids, async () => {
    perSecond = await drain(webhooks, count);
  });
  return {
    perSecond,
    serviceCpuMs: spent.serviceCpuMs / count,
    postgresCpuMs: spent.postgresCpuMs / count,
    walBytes: spent.walBytes / count,
    rows: async () => ((await countWrites(sql)) - rowsBefore) / (count + warmUpCount),
  };
}

async function watchUsage(sql: Sql, pids: readonly number[], work: () => Promise<void>) {
  const postmaster = await findPostmaster(sql);
  const read = async () => ({
    serviceCpuMs: pids.reduce((sum, pid) => sum + readCpuMs(pid), 0),
    postgresCpuMs: readServerCpuMs(postmaster),
    walBytes: await readWalBytes(sql),
  });
  const before = await read();
  await work();
  const after = await read();
  return {
    serviceCpuMs: after.serviceCpuMs - before.serviceCpuMs,
    postgresCpuMs: after.postgresCpuMs - before.postgresCpuMs,
    walBytes: after.walBytes - before.walBytes,
  };
}

/** The rows that delivering writes: the bench itself inserts only events and deliveries, and updates only webhooks. */
async function countWrites(sql: Sql): Promise<number> {
  const tables = await readTables(sql);
  return tables
    .filter(({ name }) => name !== 'webhooks')
    .reduce(
      (sum, { name, inserted, updated }) =>
        sum + updated + (/_deliveries$|_attempts$/.test(name) ? inserted : 0),
      0,
    );
}

async function countRows(sql: Sql, table: string): Promise<number> {
  const { rows } = only(
    await sql<{ rows: number }[]>`select count(*)::int as rows from ${identifier(table)}`,
  );
  return rows;
}

/** Inserts thousands of addresses, to measure the disk of the table and its indexes. */
async function measureIdentities({ service, sql }: DeliveryBench): Promise<number> {
  await sql`
    insert into identities (id, owner_id, kind, public_id, value, value_key)
    select gen_random_uuid(), ${service.ownerId}, 'email', gen_random_uuid(), address, address
    from generate_series(1, 20000) n, lateral (select 'someone.' || n || '@customer.example' as address) made`;
  return Math.round(await diskBytesEach(sql, ['identities'], 'identities'));
}

async function rowsEach(sql: Sql, tables: readonly string[], each: string): Promise<number> {
  let rows = 0;
  for (const table of tables) rows += await countRows(sql, table);
  return rows / (await countRows(sql, each));
}

async function diskBytesEach(sql: Sql, tables: readonly string[], each: string): Promise<number> {
  const used = (await readTables(sql)).filter(({ name }) => tables.includes(name));
  return used.reduce((sum, { bytes }) => sum + bytes, 0) / (await countRows(sql, each));
}

function toTable(
  costs: Costs,
  processes: readonly { processes: number; perSecond: number; least: number; most: number }[],
) {
  const cost = (what: string, cost: Cost) => [
    what,
    `${cost.serviceCpuMs} ms`,
    `${cost.postgresCpuMs} ms`,
    `${cost.walBytes} B`,
    String(cost.rows),
    `${cost.diskBytes} B`,
  ];
  return [
    ['cost of', 'service CPU', 'PostgreSQL CPU', 'WAL', 'rows written', 'disk'],
    cost('a message', costs.message),
    cost('a delivery', costs.delivery),
    ['an identity', '', '', '', '', `${costs.identityBytes} B`],
    ['', '', '', '', '', ''],
    ['deliver processes', 'deliveries/s', 'lowest', 'highest', '', ''],
    ...processes.map(({ processes, perSecond, least, most }) => [
      ...[processes, perSecond, least, most].map(String),
      '',
      '',
    ]),
  ];
}

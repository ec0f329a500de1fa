/**
 * What it costs to delete mail whose retention has ended. The clock of service and database is moved by a day after each 500
 * messages: in the first month nothing is deleted, in the second month each day deletes the oldest day. `shareOfTaking` is the
 * processor time of deleting and vacuuming a day of mail, as a share of the time to take a day of mail (parsed, authenticated,
 * committed, delivered to one webhook), both of service and PostgreSQL with all its processes and in the same days. `growth` is by
 * how much tables and indexes grow in a third of the second month, `deadShare` the rows that wait for vacuum, as a share of the rows.
 *
 * Autovacuum has its default thresholds. It pauses while mail is taken, so that its time counts for the deletion. A server of
 * `--against` keeps its settings.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { only, type Pool } from '../../src/db/client.ts';
import { identifier } from '../../src/db/sql.ts';
import { type DeliveryBench, startDeliveryBench } from '../deliveries.ts';
import { type MailTools, mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { movableClock, moveClock } from '../moved-clock.ts';
import type { Bench, Figures, Taken } from '../scenario.ts';
import type { BenchedService } from '../service.ts';
import { findPostmaster, readCpuMs, readServerCpuMs } from '../usage.ts';

export const name = 'retention';
export const goal: Figures = { shareOfTaking: 0.05, growth: 1.02, deadShare: 0.2 };

const retentionDays = 30;
const perDay = 500;
const rounds = 3;
/** Autovacuum starts within this time after a deletion: statistics are a second late, and each database gets its turn. */
const vacuumStartMs = 2500;
const idleMs = 8000;
/**
 * A day takes seconds, so autovacuum looks every second instead of every minute. ANALYZE reads 30,000 rows of a table of any size; here
 * that would be all rows, every other day, and half of the cost of a deletion. So it reads 3,000.
 */
const scaled = { autovacuum_naptime: '1s', default_statistics_target: '10' };

export async function run(bench: Bench): Promise<Taken> {
  const days = bench.size(retentionDays);
  const tools = await startMailTools(bench);
  const settings = { ...mailSettings(tools), POSTHORN_RETENTION_DAYS: String(days) };
  const deliveries = await startDeliveryBench(bench, settings, movableClock);
  const { service, sql } = deliveries;
  await makeIdentity(service);
  await deliveries.turnOn(await deliveries.makeWebhooks(1), true);
  const postmaster = await findPostmaster(sql);
  const readCpu = () => readCpuMs(service.pid) + readServerCpuMs(postmaster);
  const month = startMonth(bench, tools, deliveries);

  bench.log(`taking the mail of ${days} days`);
  await setAutovacuum(bench, sql, { ...scaled, autovacuum: 'off' });
  for (let day = 1; day <= days; day += 1) {
    await month.moveToNextDay();
    await month.takeDay();
  }
  await setAutovacuum(bench, sql, { autovacuum: 'on' });
  await awaitVacuum(bench, sql);
  const idleBefore = readCpu();
  const idleBegan = performance.now();
  await delay(bench.size(idleMs), null, bench);
  const idleShare = (readCpu() - idleBefore) / (performance.now() - idleBegan);

  const taken = { shareOfTaking: [] as number[], growth: [] as number[], deadShare: [] as number[] };
  let before = await readSizes(sql);
  bench.log(`after the first month: ${describe(before)}`);
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    let [takingMs, deletingMs] = [0, 0];
    for (let day = 1; day <= bench.size(retentionDays / rounds); day += 1) {
      await setAutovacuum(bench, sql, { autovacuum: 'on' });
      await month.moveToNextDay();
      const [beforeDeleting, began] = [readCpu(), performance.now()];
      await month.deleteDay();
      await awaitVacuum(bench, sql);
      deletingMs += readCpu() - beforeDeleting - idleShare * (performance.now() - began);
      await setAutovacuum(bench, sql, { autovacuum: 'off' });
      const beforeTaking = readCpu();
      await bench.measured(month.takeDay);
      takingMs += readCpu() - beforeTaking;
    }
    const after = await readSizes(sql);
    taken.shareOfTaking.push(deletingMs / takingMs);
    taken.growth.push((after.tables + after.indexes) / (before.tables + before.indexes));
    taken.deadShare.push(after.dead / after.live);
    const count = (perDay * retentionDays) / rounds / 1000;
    bench.log(
      `round ${round} of ${rounds}, for 1,000 messages: taking ${(takingMs / count).toFixed(0)} ms, ` +
        `deleting ${(deletingMs / count).toFixed(0)} ms; ${describe(after)}`,
    );
    before = after;
  }
  return taken;
}

/** `takeDay` takes the mail of a day; `deleteDay` makes the service delete the oldest day, and waits for that. */
function startMonth(bench: Bench, tools: MailTools, { service, sql, countReceived }: DeliveryBench) {
  /** The newest message of each day. */
  const newest: string[] = [];
  let today = 0;
  return {
    async takeDay(): Promise<void> {
      const due = (await countReceived()) + bench.size(perDay);
      await tools.post(service, bench.size(perDay));
      while ((await countReceived()) < due) await delay(5, null, bench);
      const [message] = (await call(service, 'GET', '/messages?limit=1')) as { id: string }[];
      newest.push(message?.id ?? '');
    },
    async moveToNextDay(): Promise<void> {
      today += 1;
      await moveClock(service, sql, today);
    },
    async deleteDay(): Promise<void> {
      await wakePurge(service);
      const id = newest.shift();
      const isGone = async () => {
        const { status } = await fetch(`${service.url}/messages/${id}`, { headers: service.headers });
        if (status !== 200 && status !== 404) throw new Error(`GET /messages/… responded ${status}`);
        return status === 404;
      };
      do await delay(bench.size(500), null, bench);
      while (!(await isGone()));
    },
  };
}

/** The service looks for old mail every ten seconds, and at once when a webhook is deleted. */
async function wakePurge(service: BenchedService): Promise<void> {
  const body = { url: 'https://127.0.0.1/', events: ['message.received'], ownerId: service.ownerId };
  const { id } = (await call(service, 'POST', '/webhooks', { ...body, enabled: false })) as { id: string };
  await call(service, 'DELETE', `/webhooks/${id}`);
}

async function call(service: BenchedService, method: string, path: string, body?: unknown): Promise<unknown> {
  const { authorization } = service.headers;
  const headers = body ? service.headers : { authorization };
  const answer = await fetch(service.url + path, {
    method,
    headers,
    body: body ? JSON.stringify(body) : null,
  });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${path} responded ${answer.status}: ${text}`);
  return text ? JSON.parse(text) : null;
}

async function setAutovacuum(bench: Bench, sql: Pool, settings: Record<string, string>): Promise<void> {
  if (bench.against) return;
  for (const [name, value] of Object.entries(settings)) {
    await sql`alter system set ${identifier(name)} = ${identifier(value)}`;
  }
  await sql`select pg_reload_conf()`;
}

/** Until no worker of autovacuum runs, and none has started for a while. */
async function awaitVacuum(bench: Bench, sql: Pool): Promise<void> {
  const isRunning = async () =>
    (await sql`select from pg_stat_activity where backend_type = 'autovacuum worker' and query <> ''`).count >
    0;
  do await delay(bench.size(vacuumStartMs), null, bench);
  while (await isRunning());
}

interface Sizes {
  /** Bytes, with TOAST. */
  tables: number;
  indexes: number;
  /** Rows, as PostgreSQL's statistics count them. */
  live: number;
  dead: number;
}

async function readSizes(sql: Pool): Promise<Sizes> {
  return only(
    await sql<Sizes[]>`
      select (select sum(pg_table_size(relid)) from pg_stat_user_tables)::float8 as tables,
        (select sum(pg_indexes_size(relid)) from pg_stat_user_tables)::float8 as indexes,
        sum(n_live_tup)::float8 as live, sum(n_dead_tup)::float8 as dead
      from pg_stat_all_tables where schemaname not in ('pg_catalog', 'information_schema')`,
  );
}

function describe({ tables, indexes, live, dead }: Sizes): string {
  const mb = (bytes: number) => (bytes / 1e6).toFixed(1);
  return `tables ${mb(tables)} MB, indexes ${mb(indexes)} MB, ${dead} dead rows beside ${live}`;
}

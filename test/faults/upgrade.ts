/**
 * The upgrade of a database of version 0.1.0 (schema 11) that has many messages and many waiting deliveries. The migration blocks
 * for seconds at most; users see what they saw before, also while the rest is changed over in the background under load; every
 * delivery that waited arrives once.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { connect, type Pool } from '../../src/db/client.ts';
import { listUnbuilt } from '../../src/db/large-indexes.ts';
import { migrate } from '../../src/db/migrate.ts';
import { makeLog } from '../../src/lib/log.ts';
import { makeSealer } from '../../src/lib/secrets.ts';
import { startReceiver } from '../receiver.ts';
import type { Fault, FaultRun, Outcome } from './fault.ts';
import { preparePostgres } from './postgres.ts';
import { prepareServer, type Server } from './server.ts';
import { startLoad } from './upgrade/load.ts';
import { addUser, fillOldDatabase, type OldOwner } from './upgrade/old-database.ts';
import { Posts } from './upgrade/posts.ts';
import { compareLists, compareSample, readOld } from './upgrade/shown.ts';

const usualMessages = 20_000;
const shortMessages = 2000;
/** Waiting deliveries for each message. */
const waitingShare = 0.1;
const sampleSize = 20;
const mostBlockedMs = 5000;
/** On a busy machine. */
const leastDeliveriesPerSecond = 50;
const leastChangedPerSecond = 200;

export const upgrade: Fault = {
  about: 'the upgrade of a large database of version 0.1.0; its size: --messages 1000000',
  rounds: { usual: 1, short: 1 },
  boundMs: (_rounds, short, messages) => 300_000 + chooseSize(short, messages) * 10,
  run,
};

function chooseSize(short: boolean, messages: number | undefined): number {
  return messages ?? (short ? shortMessages : usualMessages);
}

async function run(lent: FaultRun): Promise<Outcome> {
  const { log } = lent;
  const messages = chooseSize(lent.short, lent.messages);
  const postgres = await preparePostgres(lent);
  const receiver = await startReceiver();
  lent.defer(() => receiver.close());
  const key = randomBytes(32);

  // Safe from crashes only when it is filled.
  const unsafe = { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off', max_wal_size: '8GB' };
  await postgres.start(unsafe);
  const { owners, live, before } = await use(postgres.url, async (sql) => {
    const filling = { messages, waiting: messages * waitingShare, url: receiver.url('') };
    const owners = await fillOldDatabase(sql, { ...filling, sealer: makeSealer([key]), log });
    return { owners, live: await addUser(sql, 'live'), before: await readOld(sql, owners, sampleSize) };
  });
  await postgres.stop();
  await postgres.start();

  const blockedMs = await use(postgres.url, async (sql) => {
    const began = performance.now();
    await migrate(sql, makeLog({ level: 'silent', json: true }));
    return Math.round(performance.now() - began);
  });
  log(`${messages} messages, ${before.waiting.size} waiting deliveries: the migration took ${blockedMs} ms`);

  const posts = new Posts(receiver, before.waiting);
  const settings = { POSTHORN_SECRET_KEY: key.toString('base64') };
  const server = await prepareServer(lent, { databaseUrl: postgres.url, settings });
  const began = performance.now();
  const report = (what: string) =>
    log(`${what}: ${Math.round((performance.now() - began) / 1000)} s after the start`);
  await server.start();
  server.apiKey = live.apiKey;
  const load = await startLoad(server, live.id, receiver.url('/live'));
  const atOnce = await compareSample(server, owners, before);
  report(`${before.sample.length} messages were compared`);

  const patienceMs = 60_000 + (before.waiting.size / leastDeliveriesPerSecond) * 1000;
  await waitUntil(patienceMs, () => posts.listMissing().every((key) => key.includes('/held ')));
  report('everything that was not held has arrived');
  for (const owner of owners) await enableHeld(server, owner);
  await waitUntil(patienceMs, () => posts.listMissing().length === 0);
  report('everything that was held has arrived');
  const isOver = await waitUntil((messages / leastChangedPerSecond) * 1000 + 60_000, () =>
    isChangedOver(server),
  );
  report('the change-over is over');
  await load.stop();
  await waitUntil(patienceMs, () => posts.listMissing([...load.accepted]).length === 0);
  await waitUntil(patienceMs, () => isNothingPending(server, owners));
  report(`${load.accepted.size} messages were taken meanwhile`);
  return {
    acknowledged: messages + load.accepted.size,
    lost: posts.listMissing([...load.accepted]).map((key) => `never POSTed: ${key}`),
    conjured: posts.listConjured(load.accepted),
    broken: [
      ...(blockedMs > mostBlockedMs ? [`the migration blocked for ${blockedMs} ms`] : []),
      ...(isOver ? [] : ['the change-over in the background does not end']),
      ...[...atOnce, ...load.refusals, ...posts.garbled],
      ...(await compareSample(server, owners, before)),
      ...(await compareLists(server, before)),
    ],
  };
}

async function use<T>(url: string, work: (sql: Pool) => Promise<T>): Promise<T> {
  const sql = connect(url, { max: 1, applicationName: 'posthorn faults', statementTimeoutMs: 0 });
  try {
    return await work(sql);
  } finally {
    await sql.end();
  }
}

/** False when the time is up. Most of the time is left to the service: a look at a million rows takes seconds. */
async function waitUntil(withinMs: number, isTrue: () => boolean | Promise<boolean>): Promise<boolean> {
  const deadline = performance.now() + withinMs;
  for (;;) {
    const began = performance.now();
    if (await isTrue()) return true;
    if (performance.now() > deadline) return false;
    await delay(Math.max(500, 4 * (performance.now() - began)));
  }
}

async function enableHeld(server: Server, { apiKey, webhooks }: OldOwner): Promise<void> {
  const authorization = `Bearer ${apiKey}`;
  for (const { id, kind } of webhooks)
    if (kind === 'held') await server.call('PATCH', `/webhooks/${id}`, { enabled: true }, { authorization });
}

async function isNothingPending(server: Server, owners: readonly OldOwner[]): Promise<boolean> {
  for (const { apiKey, webhooks } of owners) {
    for (const { id } of webhooks) {
      const at = `/webhooks/${id}/deliveries?status=pending&limit=1`;
      const response = await server.call('GET', at, undefined, { authorization: `Bearer ${apiKey}` });
      if (((await response.json()) as unknown[]).length > 0) return false;
    }
  }
  return true;
}

/** In the background, schema 12 moves the content of messages from `events` to `messages`, and indexes are built. */
function isChangedOver(server: Server): Promise<boolean> {
  return server.look(async (sql) => {
    const [schema] = await sql`select max(version) as version from schema_migrations`;
    if (schema?.version <= 11) return true;
    if ((await listUnbuilt(sql)).length > 0) return false;
    return (
      (await sql`select from events where message_id is not null and data is not null limit 1`).count === 0
    );
  });
}

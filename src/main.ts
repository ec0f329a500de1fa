/**
 * Puts the service together: configuration → database → loops → doors, and takes it apart in the opposite order, the
 * database last.
 */
import { isIPv6 } from 'node:net';
import type { Config } from './config.ts';
import { makeLinks } from './contract/links.ts';
import { completeData } from './contract/payload.ts';
import { isUnavailable, type Pool } from './db/client.ts';
import { prepareSchema, refuseNewerSchema } from './db/migrate.ts';
import { type Database, openDatabase } from './db/open.ts';
import { startWaker } from './db/wake.ts';
import { type ApiParts, buildApp } from './http/app.ts';
import { listen } from './http/fastify.ts';
import { buildMetricsApp } from './http/metrics-app.ts';
import { makeLookup } from './identities/lookup.ts';
import { readIdentityValue } from './identities/value.ts';
import { startVerification } from './identities/verify.ts';
import type { Log } from './lib/log.ts';
import { startLoop } from './lib/loop.ts';
import { type Metrics, makeMetrics } from './lib/metrics.ts';
import { loadSecretKeys } from './lib/secrets.ts';
import type { Tracer } from './lib/tracing.ts';
import { readVersion } from './lib/version.ts';
import { makeEgress } from './net/egress.ts';
import { makeExaminer } from './receiving/examine.ts';
import { startMailDoor } from './smtp/mx.ts';
import { createApiKey } from './store/api-keys.ts';
import { countBacklog, readOldestPending } from './store/backlog.ts';
import { purgeAnswers } from './store/idempotency.ts';
import { purgeDeletedIdentities, purgeDeletedWebhooks, purgeOld, purgeSpent } from './store/purge.ts';
import { workReplay } from './store/replays.ts';
import { openSealer } from './store/sealed-secrets.ts';
import { createFirstUser, type User } from './store/users.ts';
import { startDelivery } from './webhooks/deliver.ts';
import { makePoster } from './webhooks/post.ts';

export interface Service {
  /** Where the API listens; null without the role `api`. */
  url: string | null;
  /** Where mail is taken; null without the role `smtp`. */
  smtpPort: number | null;
  /** Made by the first start on an empty database, and to be shown this once. */
  firstUser: (User & { apiKey: string }) | null;
  /** Finishes what is under way and closes everything. Idempotent. */
  stop(): Promise<void>;
}

type Closing = (() => Promise<void>)[];

const poolSize = 10;
const deliveryPoolSize = 5;
const purgePollMs = 10_000;
const replayPollMs = 1000;
/** How long requests under way may take once the service is told to stop. */
const patienceMs = 5000;

export async function startService(config: Config, log: Log, signal?: AbortSignal): Promise<Service> {
  const database = await openDatabase(config, {
    purpose: 'serve',
    log,
    max: poolSize,
    ...(signal ? { signal } : {}),
  });
  /** What is closed together; within each, the last opened first. */
  const ground: Closing = [() => database.close()];
  const loops: Closing = [];
  const doors: Closing = [];
  const closeAll = async (closing: Closing) => {
    for (const close of closing.reverse())
      await close().catch((err) => log.error({ err }, 'a part of the service did not close in order'));
  };
  const stop = once(async () => {
    await database.announceStop();
    // At once, since both have seconds to finish what is under way, and who stops us may not wait for their sum.
    await Promise.all([closeAll(doors), closeAll(loops)]);
    await closeAll(ground);
  });

  try {
    const { sql } = database;
    await refuseNewerSchema(sql);
    const secretKeys = loadSecretKeys(config);
    // A start that is refused for its key has not changed the schema.
    const sealer = await openSealer(sql, secretKeys);
    await prepareSchema(sql, log, config);
    const egress = makeEgress(config);
    const examiner = makeExaminer({ ...config, log });
    ground.push(() => examiner.stop());
    const { acceptUnverified, inlineRawBytes } = config;
    let url: string | null = null;
    const metrics = makeMetrics({
      backlog: () => countBacklog(sql),
      oldestPendingSeconds: () => readOldestPending(sql),
    });
    const tracer = await openTracer(config, log, metrics);
    if (tracer) ground.push(() => tracer.stop());
    const parts = {
      config,
      sql,
      log,
      egress,
      sealer,
      verification: {
        sql,
        sealer,
        log,
        mailHost: config.mailHost,
        lookup: makeLookup(config),
      },
      links: makeLinks(secretKeys, () => baseUrl(config, url)),
      examiner,
      metrics,
      tracer,
      poster: makePoster({ egress }),
      userAgent: `Posthorn/${readVersion()}`,
    };
    ground.push(() => parts.poster.close());
    const wakeDelivery = await startLoops(parts, database, loops);
    const mail = {
      ...{ sql, examiner, tracer, metrics, wakeDelivery },
      ...{ acceptUnverified, inlineRawBytes, readValue: readAddressOrDomain },
    };
    const services = { ...parts, mail, wakeDelivery };
    url = await openApi(services, doors);
    const smtpPort = await openMailDoor(services, doors);
    await openMetrics(services, doors);
    // Last: its key is shown once, so nothing may fail between making and showing it.
    const firstUser = await makeFirstUser(parts);
    return { url, smtpPort, firstUser, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Its code is read only where traces are wanted. */
async function openTracer(config: Config, log: Log, { spans }: Metrics): Promise<Tracer | null> {
  if (!config.traces) return null;
  const { startTracer } = await import('./lib/tracing.ts');
  const count = (outcome: string, number: number) => spans.inc({ outcome }, number);
  return startTracer({ config: config.traces, version: readVersion(), log, count });
}

async function makeFirstUser({ sql }: { sql: Pool }): Promise<Service['firstUser']> {
  return sql.begin(async (sql) => {
    const user = await createFirstUser(sql, 'admin@localhost');
    if (!user) return null;
    const { apiKey } = await createApiKey(sql, user.userId, { name: 'first start' });
    return { ...user, apiKey };
  });
}

/** Everything that works in the background. Returns how to tell it that deliveries are ready. */
async function startLoops(
  parts: Omit<ApiParts, 'mail' | 'wakeDelivery'>,
  database: Database,
  closing: Closing,
): Promise<() => void> {
  const { config, sql, log } = parts;
  const purge = async () => {
    const more = [
      await purgeAnswers(sql),
      await purgeDeletedWebhooks(sql),
      await purgeDeletedIdentities(sql),
      await purgeOld(sql, config.retentionDays),
      await purgeSpent(sql, config.retentionDays),
    ];
    return more.includes(true);
  };
  const purging = startLoop({
    name: 'purging',
    pollMs: purgePollMs,
    rest: 4,
    log,
    isPassing: isUnavailable,
    work: purge,
  });
  closing.push(() => purging.stop());
  if (config.roles.includes('verify')) {
    const verification = startVerification(parts.verification);
    closing.push(() => verification.stop());
  }
  if (!config.roles.includes('deliver')) {
    const waker = await startWaker(sql, log, null);
    closing.push(() => waker.stop());
    return waker.wake;
  }

  // A poster of its own: its end cuts what is under way after the drain, which is not the API's affair.
  const poster = makePoster({ egress: parts.egress });
  const delivery = startDelivery({
    ...parts,
    sql: database.openAnother(deliveryPoolSize),
    poster,
    tellData: (stored) => completeData(stored, parts.links, Date.now()),
    scheduleSeconds: config.retrySchedule,
  });
  closing.push(() => delivery.stop());
  const replay = async () => {
    const step = await workReplay(sql);
    if (step?.queued) delivery.wake();
    return step !== undefined;
  };
  const replaying = startLoop({
    name: 'replaying',
    pollMs: replayPollMs,
    log,
    isPassing: isUnavailable,
    work: replay,
  });
  closing.push(() => replaying.stop());
  const waker = await startWaker(sql, log, () => {
    delivery.wake();
    replaying.wake();
  });
  closing.push(() => waker.stop());
  return waker.wake;
}

/** After the other doors, and closed before them: whoever is told there that we are ready finds them open. */
async function openMetrics(parts: ApiParts, closing: Closing): Promise<void> {
  const { host, metricsPort } = parts.config;
  if (metricsPort === null) return;
  const app = buildMetricsApp(parts);
  closing.push(() => app.close());
  await listen(app, host, metricsPort, 'POSTHORN_METRICS_PORT');
}

async function openApi(parts: ApiParts, closing: Closing): Promise<string | null> {
  const { config } = parts;
  if (!config.roles.includes('api')) return null;
  const app = await buildApp(parts);
  closing.push(async () => {
    const cut = setTimeout(() => app.server.closeAllConnections(), patienceMs);
    await app.close();
    clearTimeout(cut);
  });
  return listen(app, config.host, config.port, 'PORT');
}

async function openMailDoor(parts: ApiParts, closing: Closing): Promise<number | null> {
  if (!parts.config.roles.includes('smtp')) return null;
  const door = await startMailDoor(parts);
  closing.push(() => door.stop());
  return door.port;
}

/** What links in payloads begin with: the same in every process, except on a port that was left to chance. */
function baseUrl({ publicUrl, host, port, basePath }: Config, url: string | null): string {
  const everywhere = ['0.0.0.0', '::'].includes(host) ? 'localhost' : host;
  const name = isIPv6(everywhere) ? `[${everywhere}]` : everywhere;
  const own = port === 0 && url ? url : `http://${name}:${port}`;
  return `${publicUrl ?? own}${basePath}`;
}

/** The identity's own way of reading a recipient, handed to mail, which does not know identities. */
function readAddressOrDomain(text: string) {
  const read = readIdentityValue(text);
  return 'fault' in read ? undefined : read;
}

function once(work: () => Promise<void>): () => Promise<void> {
  let done: Promise<void> | undefined;
  return () => {
    done ??= work();
    return done;
  };
}

/** The composition root: configuration → database → parts → loops → listeners. The database stops last. */
import type { Config } from './config.ts';
import type { Pool } from './db/client.ts';
import { type Database, openDatabase } from './db/open.ts';
import { type ApiParts, buildApp } from './http/app.ts';
import type { EventStreams } from './http/event-streams.ts';
import { listen } from './http/fastify.ts';
import { buildMetricsApp } from './http/metrics-app.ts';
import type { MakeKeyPair } from './identities/dkim.ts';
import type { Log } from './lib/log.ts';
import { once } from './lib/once.ts';
import { signInUrl } from './lib/origin.ts';
import type { SyncTimes } from './mailboxes/sync.ts';
import type { AcceptParts } from './receiving/accept.ts';
import { applyReceivedReport, type ReportParts } from './sending/reports.ts';
import type { SubmitParts } from './sending/submit.ts';
import { startMxServer } from './smtp/mx.ts';
import { startSubmissionServers } from './smtp/submission.ts';
import { makeRecorder, startLoops, startSyncing, type Wakes } from './start/loops.ts';
import { baseUrl, makeParts, type Parts, type ProviderServers } from './start/parts.ts';
import { startSharedPoll } from './start/shared-poll.ts';
import { type Stops, stopEach, stopLater } from './start/stops.ts';
import { createApiKey } from './store/api-keys.ts';
import { createSignInLink } from './store/sessions.ts';
import { createFirstUser, findOldestUser, hasUsers, type User } from './store/users.ts';

export interface Service {
  /** URL of the API; null without the role `api`. */
  url: string | null;
  /** Port of the SMTP listener; null without the role `smtp`. */
  smtpPort: number | null;
  /** Ports of the submission listeners; null without the listener. */
  submissionPort: number | null;
  submissionsPort: number | null;
  /** Created by the first start on an empty database, except in production; the key cannot be shown again. */
  firstUser: (User & { apiKey: string }) | null;
  /** A link that signs in to the dashboard once, as the user that was created first; null in production. */
  signInLink: string | null;
  /** No user exists. */
  needsUser: boolean;
  /** Finishes the running work and closes everything. Idempotent. */
  stop(): Promise<void>;
}

type Started = Record<'parts' | 'loops' | 'listeners', Stops>;

const poolSize = 10;
/** How long running requests may take after the stop began. */
const requestGraceMs = 5000;

export interface StartOptions {
  signal?: AbortSignal;
  /** Tells the operator that the service runs, and shows the first key. `/health/ready` succeeds only afterwards. */
  announce?: (service: Service) => void | Promise<void>;
  /** For tests. */
  providerServers?: ProviderServers | undefined;
  /** For tests: how often the role `sync` asks for its leases. */
  syncTimes?: Partial<SyncTimes>;
  /** For tests: a new RSA key takes 0.2 s of a core. */
  makeKeyPair?: MakeKeyPair;
}

export async function startService(
  config: Config,
  log: Log,
  { signal, announce, providerServers, syncTimes, makeKeyPair }: StartOptions = {},
): Promise<Service> {
  const opening = { purpose: 'serve', log, max: poolSize, ...(signal ? { signal } : {}) } as const;
  const database = await openDatabase(config, opening);
  const started: Started = { parts: [() => database.close()], loops: [], listeners: [] };
  const stop = once(() => stopAll(database, started, log));
  const service: Service = {
    ...{ url: null, smtpPort: null, submissionPort: null, submissionsPort: null },
    ...{ firstUser: null, signInLink: null, needsUser: false, stop },
  };
  let isAnnounced = false;
  try {
    const parts = await makeParts(
      { config, log, sql: database.sql, providerServers, makeKeyPair },
      () => service.url,
      started.parts,
    );
    const { offerDeliveries, streams, wakeFor, ...wakes } = await startLoops(parts, database, started.loops);
    const reports = { ...parts.reports, ...wakes };
    const mail = {
      ...{ ...parts.mail, ...wakes, recorder: makeRecorder(config, database, offerDeliveries) },
      applyReport: (raw: Buffer, ownerId: string, type: string) =>
        applyReceivedReport(reports, raw, ownerId, type),
    };
    const sync = await startSyncing(parts, database, mail, started.loops, syncTimes);
    stopLater(started.loops, startSharedPoll(parts, { ...wakeFor, mailboxes: sync.pollNow }));
    const submit = { ...parts.submit, ...wakes };
    const listenerParts = {
      ...parts,
      ...wakes,
      wakeSync: sync.wake,
      mail,
      submit,
      reports,
      streams,
      isReady: () => isAnnounced,
    };
    await openListeners(listenerParts, service, started.listeners);
    // Last: the key is shown only once, so nothing may fail between creating and showing it.
    if (config.production) service.needsUser = !(await hasUsers(database.sql));
    else if (config.roles.includes('api'))
      Object.assign(service, await prepareFirstSignIn(database.sql, config, service.url));
    await announce?.(service);
    isAnnounced = true;
    return service;
  } catch (error) {
    await stop();
    throw error;
  }
}

type ListenerParts = Omit<Parts, 'submit' | 'reports'> &
  Wakes &
  Pick<ApiParts, 'wakeSync'> & {
    mail: AcceptParts;
    submit: SubmitParts;
    reports: ReportParts;
    streams: EventStreams | null;
    isReady: () => boolean;
  };

async function openListeners(parts: ListenerParts, service: Service, stops: Stops): Promise<void> {
  const { roles, metricsPort } = parts.config;
  if (roles.includes('api')) service.url = await openApi(parts, stops);
  if (roles.includes('smtp')) await openSmtp(parts, service, stops);
  // Opened last and closed first: `/health/ready` must not succeed before the other listeners are open.
  if (metricsPort !== null) await openMetrics(parts, metricsPort, stops);
}

async function openSmtp(parts: ListenerParts, service: Service, stops: Stops): Promise<void> {
  service.smtpPort = stopLater(stops, await startMxServer(parts)).port;
  const submission = stopLater(stops, await startSubmissionServers(parts));
  service.submissionPort = submission.submissionPort;
  service.submissionsPort = submission.submissionsPort;
}

async function openApi(parts: ListenerParts, stops: Stops): Promise<string> {
  const { host, port } = parts.config;
  const { streams } = parts;
  if (!streams) throw new Error('The role api has no event streams');
  const app = await buildApp({ ...parts, streams });
  stops.push(async () => {
    const timer = setTimeout(() => app.server.closeAllConnections(), requestGraceMs);
    await app.close();
    clearTimeout(timer);
  });
  return listen(app, host, port, 'PORT');
}

async function openMetrics(parts: ListenerParts, port: number, stops: Stops): Promise<void> {
  const app = buildMetricsApp(parts);
  stops.push(() => app.close());
  await listen(app, parts.config.host, port, 'POSTHORN_METRICS_PORT');
}

/** For development: a user with a key, if there is no user yet, and a link to sign in. */
async function prepareFirstSignIn(
  sql: Pool,
  config: Config,
  url: string | null,
): Promise<Pick<Service, 'firstUser' | 'signInLink'>> {
  return sql.begin(async (sql) => {
    const made = await createFirstUser(sql, 'admin@localhost');
    const key = made && (await createApiKey(sql, made.userId, { name: 'first start' }));
    const user = config.dashboard ? (made ?? (await findOldestUser(sql))) : undefined;
    const link = user && (await createSignInLink(sql, user.userId));
    return {
      firstUser: made && key ? { ...made, apiKey: key.apiKey } : null,
      signInLink: link ? signInUrl(baseUrl(config, url), link.token) : null,
    };
  });
}

async function stopAll(database: Database, started: Started, log: Log): Promise<void> {
  await database.announceStop();
  // Together: both may take seconds, and a supervisor may not wait for the sum.
  await Promise.all([stopEach(started.listeners, log), stopEach(started.loops, log)]);
  await stopEach(started.parts, log);
}

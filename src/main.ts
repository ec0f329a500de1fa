/** The composition root: configuration → database → parts → loops → listeners. The database stops last. */
import { setTimeout as pause } from 'node:timers/promises';
import type { Config } from './config.ts';
import { makeConfirmationLinks } from './contract/confirmation-links.ts';
import { makeLinks } from './contract/links.ts';
import { completeData } from './contract/payload.ts';
import { isUnavailable, type Pool } from './db/client.ts';
import { prepareSchema, refuseNewerSchema } from './db/migrate.ts';
import { type Database, openDatabase } from './db/open.ts';
import { startWaker } from './db/wake.ts';
import { type ApiParts, buildApp } from './http/app.ts';
import { EventStreams } from './http/event-streams.ts';
import { listen } from './http/fastify.ts';
import { buildMetricsApp } from './http/metrics-app.ts';
import { makeLookup } from './identities/lookup.ts';
import { makeVerifyParts, startVerification } from './identities/verify.ts';
import { newId } from './lib/ids.ts';
import type { Log } from './lib/log.ts';
import { type Loop, startLoop } from './lib/loop.ts';
import { type Metrics, makeMetrics } from './lib/metrics.ts';
import { once } from './lib/once.ts';
import { originOf, signInUrl } from './lib/origin.ts';
import { loadSecretKeys } from './lib/secrets.ts';
import type { Tracer } from './lib/tracing.ts';
import { readVersion } from './lib/version.ts';
import { type SyncTimes, startSync } from './mailboxes/sync.ts';
import { AccessTokens } from './net/access-tokens.ts';
import { makeDnsClient } from './net/dns.ts';
import { makeEgress } from './net/egress.ts';
import { makeMtaSts } from './net/mta-sts.ts';
import { makeSns } from './providers/sns.ts';
import type { AcceptParts } from './receiving/accept.ts';
import { acceptSynced } from './receiving/accept-synced.ts';
import { makeExaminer } from './receiving/examine.ts';
import { MailLog } from './receiving/mail-log.ts';
import { MessageRecorder } from './receiving/record.ts';
import { AccountServers } from './sending/account-servers.ts';
import { deriveBounceKeys, makeBounceAddress } from './sending/bounce-address.ts';
import { standardSchedule } from './sending/decide.ts';
import { applyReceivedReport, type ReportParts } from './sending/reports.ts';
import { startSending } from './sending/send.ts';
import { SendRate } from './sending/send-rate.ts';
import { Signer } from './sending/signer.ts';
import type { SubmitParts } from './sending/submit.ts';
import { makeWay, makeWays } from './sending/way.ts';
import { startMxServer } from './smtp/mx.ts';
import { startSubmissionServers } from './smtp/submission.ts';
import { createApiKey } from './store/api-keys.ts';
import { countBacklog, readOldestPending } from './store/backlog.ts';
import { changeOverBatch, isChangingOver } from './store/change-over.ts';
import { type DueWork, findDueWork, isPurgeDue } from './store/due-work.ts';
import { renumberRestored, type StreamedEvent } from './store/event-stream.ts';
import { settleWebhooks } from './store/held.ts';
import { purgeResponses } from './store/idempotency.ts';
import { countFailing } from './store/imap-connections.ts';
import { nameOfThisProcess, removeProcess, reportProcess } from './store/processes.ts';
import { purgeDeletedIdentities, purgeDeletedWebhooks, purgeExpired, purgeOld } from './store/purge.ts';
import { runReplayBatch } from './store/replays.ts';
import { openSealer } from './store/sealed-secrets.ts';
import { createSignInLink } from './store/sessions.ts';
import { createFirstUser, findOldestUser, hasUsers, type User } from './store/users.ts';
import { startDelivery } from './webhooks/deliver.ts';
import { Poster } from './webhooks/post.ts';

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

/** Functions that stop a part, in the order in which the parts were started. */
type Stops = (() => Promise<void>)[];
type Started = Record<'parts' | 'loops' | 'listeners', Stops>;

const poolSize = 10;
const deliveryPoolSize = 5;
const sendingPoolSize = 4;
const syncPoolSize = 4;
/** How long answers of DNS are used for mail that goes out. */
const dnsKeepMs = 60_000;
const mailLockTimeoutMs = 250;
const purgePollMs = 10_000;
const purgeBatch = 500;
const replayPollMs = 1000;
const reportPollMs = 10_000;
const settlePollMs = 2000;
const watchPollMs = 1000;
/** For loops that `startWatching` polls for. */
const watched = { idleMs: 3_600_000 };
/** How long running requests may take after the stop began. */
const requestGraceMs = 5000;

export interface StartOptions {
  signal?: AbortSignal;
  /** Tells the operator that the service runs, and shows the first key. `/health/ready` succeeds only afterwards. */
  announce?: (service: Service) => void | Promise<void>;
  /** For tests: where the servers stand that act as those of providers, and who issued their certificates. */
  providerServers?: { snsPort?: number; smtpPort?: number; ca: string } | undefined;
  /** For tests: how often the role `sync` asks for its leases. */
  syncTimes?: Partial<SyncTimes>;
}

export async function startService(
  config: Config,
  log: Log,
  { signal, announce, providerServers, syncTimes }: StartOptions = {},
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
      { config, log, sql: database.sql, providerServers },
      () => service.url,
      started.parts,
    );
    const { offerDeliveries, streams, ...wakes } = await startLoops(parts, database, started.loops);
    const reports = { ...parts.reports, ...wakes };
    const mail = {
      ...{ ...parts.mail, ...wakes, recorder: makeRecorder(config, database, offerDeliveries) },
      applyReport: (raw: Buffer, ownerId: string, type: string) =>
        applyReceivedReport(reports, raw, ownerId, type),
    };
    const wakeSync = await startSyncing(parts, database, mail, started.loops, syncTimes);
    const submit = { ...parts.submit, ...wakes };
    const listenerParts = {
      ...parts,
      ...wakes,
      wakeSync,
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

type Parts = Awaited<ReturnType<typeof makeParts>>;

async function makeParts(
  { config, log, sql, providerServers }: { config: Config; log: Log; sql: Pool } & StartOptions,
  readUrl: () => string | null,
  stops: Stops,
) {
  await refuseNewerSchema(sql);
  const secretKeys = loadSecretKeys(config);
  // Before the migration: a start with the wrong key must not change the schema.
  const sealer = await openSealer(sql, secretKeys);
  await prepareSchema(sql, log, config);
  while (await renumberRestored(sql));
  const examiner = stopLater(stops, makeExaminer({ ...config, log }));
  const metrics = makeMetrics({
    backlog: () => countBacklog(sql),
    oldestPendingSeconds: () => readOldestPending(sql),
    failingSyncs: () => countFailing(sql),
  });
  const tracer = await openTracer(config, log, metrics);
  if (tracer) stopLater(stops, tracer);
  const mailLog = new MailLog(log);
  stops.push(async () => mailLog.stop());
  const egress = makeEgress({ ...config, log });
  const poster = new Poster({ egress });
  stops.push(() => poster.close());
  const { mailHost, acceptUnverified, inlineRawBytes, maxMessageBytes } = config;
  const dns = makeDnsClient({ dnsServers: config.dnsServers, keepMs: dnsKeepMs });
  const mtaSts = makeMtaSts({ dns, egress, now: () => new Date() });
  const bounceKeys = deriveBounceKeys(secretKeys);
  const readBaseUrl = () => baseUrl(config, readUrl());
  const operatorWay = makeWay({ ...config, heloName: mailHost, dns, mtaSts, egress });
  const tokens = new AccessTokens({ egress, allowHttp: config.allowHttp });
  const { production } = config;
  const { snsPort, smtpPort: providerPort, ca } = providerServers ?? {};
  const accounts = new AccountServers({
    ...{ sql, sealer, egress, tokens, heloName: mailHost, production, ca, providerPort },
  });
  const ways = makeWays(operatorWay, accounts);
  return {
    ...{ config, log, sql, sealer, examiner, metrics, tracer, egress, poster, dns, ways },
    bounceKeys,
    verifyAccounts: { sql, sealer, tokens, accounts, imap: { egress, production } },
    reports: { sql, bounceKeys, bounceDomain: config.bounceDomain, read: examiner.outgoing.report, log },
    links: makeLinks(secretKeys, readBaseUrl),
    confirmationLinks: makeConfirmationLinks(secretKeys, readBaseUrl),
    readBaseUrl,
    verification: makeVerifyParts({
      ...{ sql, sealer, log, mailHost, lookup: makeLookup(config) },
      onLost: () => metrics.identitiesLost.inc(),
    }),
    mail: { sql, examiner, tracer, metrics, mailLog, acceptUnverified, inlineRawBytes },
    submit: {
      ...{ sql, work: examiner.outgoing, ways, metrics, log, maxMessageBytes },
      rate: new SendRate(config.sendRatePerMinute),
    },
    sns: makeSns({ egress, port: snsPort, ca }),
    userAgent: `Posthorn/${readVersion()}`,
  };
}

type OfferDeliveries = ReturnType<typeof startDelivery>['offer'];

function makeRecorder(
  { acceptUnverified }: Config,
  database: Database,
  offerDeliveries: OfferDeliveries | null,
): MessageRecorder {
  // One connection: with two, PostgreSQL used a third more processor time, because the batches were half as large.
  const groupSql = database.openAnother('mail', { max: 1, lockTimeoutMs: mailLockTimeoutMs });
  return new MessageRecorder({ groupSql, acceptUnverified, offerDeliveries });
}

/** OpenTelemetry is loaded only when tracing is on. */
async function openTracer(config: Config, log: Log, { spans }: Metrics): Promise<Tracer | null> {
  if (!config.traces) return null;
  const { startTracer } = await import('./lib/tracing.ts');
  const count = (outcome: string, number: number) => spans.inc({ outcome }, number);
  return startTracer({ config: config.traces, version: readVersion(), log, count });
}

/** Delivery and sending are woken in every process, the purge and the settling in this one only. */
type Wakes = Pick<ApiParts, 'wakeDelivery' | 'wakePurge' | 'wakeSettling'> & {
  wakeSending(): void;
  /** Call it after the commit of events. */
  wakeStreams(): void;
  /** Both: deliveries and streams. */
  wakeAfterEvents(): void;
};

async function startLoops(
  parts: Parts,
  database: Database,
  stops: Stops,
): Promise<Wakes & { offerDeliveries: OfferDeliveries | null; streams: EventStreams | null }> {
  const { sql, log, verification, config } = parts;
  const purging = stopLater(stops, startPurging(parts));
  if (await isChangingOver(sql)) stopLater(stops, startChangeOver(parts));
  stopLater(stops, await startReporting(parts));
  const checks = config.roles.includes('verify') ? startVerification(verification, watched) : undefined;
  if (checks) stopLater(stops, checks);
  const delivering = config.roles.includes('deliver') ? startDelivering(parts, database, stops) : undefined;
  const waker = stopLater(stops, await startWaker(sql, log, 'deliveries', delivering?.wake ?? null));
  const streams = config.roles.includes('api') ? stopLater(stops, startStreams(parts)) : undefined;
  const streamWaker = stopLater(
    stops,
    await startWaker(sql, log, 'streams', streams ? () => streams.wake() : null),
  );
  const wakeAfterEvents = () => {
    waker.wake();
    streamWaker.wake();
  };
  const sending = config.roles.includes('send')
    ? stopLater(stops, startSendingMail(parts, database, wakeAfterEvents))
    : undefined;
  const sendWaker = stopLater(stops, await startWaker(sql, log, 'mail', sending?.wake ?? null));
  const settling = stopLater(stops, startSettling(parts, waker.wake));
  stopLater(stops, startWatching(parts, { checks, settling, replays: delivering?.replays }));
  return {
    ...{
      wakeDelivery: waker.wake,
      wakeSending: sendWaker.wake,
      wakeStreams: streamWaker.wake,
      wakeAfterEvents,
    },
    streams: streams ?? null,
    ...{ wakePurge: purging.wake, wakeSettling: settling.wake },
    offerDeliveries: delivering?.offer ?? null,
  };
}

/** Polls for several loops with one statement, and wakes those that have work. */
function startWatching({ sql, log }: Parts, loops: Record<keyof DueWork, Loop | undefined>): Loop {
  const work = async () => {
    const due = await findDueWork(sql);
    for (const name of Object.keys(due) as (keyof DueWork)[]) if (due[name]) loops[name]?.wake();
    return false;
  };
  return startLoop({ name: 'looking for work', pollMs: watchPollMs, log, isTransient: isUnavailable, work });
}

/** Holds the deliveries of webhooks that were disabled, and resumes those of webhooks that were enabled. */
function startSettling({ sql, log }: Parts, wakeDelivery: () => void): Loop {
  const work = async () => {
    const { webhooks, resumed } = await settleWebhooks(sql);
    if (resumed > 0) wakeDelivery();
    return webhooks > 0;
  };
  return startLoop({
    name: 'settling webhooks',
    pollMs: settlePollMs,
    ...watched,
    restFactor: 1,
    log,
    isTransient: isUnavailable,
    work,
  });
}

function startPurging({ sql, log, metrics, config: { retentionDays } }: Parts): Loop {
  const onCancelled: Parameters<typeof purgeOld>[3] = (deliveries) => {
    metrics.ended.inc({ outcome: 'cancelled' }, deliveries.length);
    for (const delivery of deliveries) log.info(delivery, 'delivery cancelled: the retention has ended');
  };
  const work = async () => {
    if (!(await isPurgeDue(sql, retentionDays))) return false;
    const more = [
      await purgeResponses(sql),
      await purgeDeletedWebhooks(sql),
      await purgeDeletedIdentities(sql),
      await purgeOld(sql, retentionDays, purgeBatch, onCancelled),
      await purgeExpired(sql, retentionDays),
    ];
    return more.includes(true);
  };
  return startLoop({
    name: 'purging',
    pollMs: purgePollMs,
    restFactor: 4,
    log,
    isTransient: isUnavailable,
    work,
  });
}

/** Changes what older versions stored, with most of the time left to the rest of the service. */
function startChangeOver({ sql, log }: Parts): Loop {
  log.info('changing stored messages to the new form, in the background');
  let announced = 0;
  let isDone = false;
  const work = async () => {
    if (isDone) return false;
    const changed = await changeOverBatch(sql);
    if (changed === null) {
      isDone = !(await isChangingOver(sql));
      if (isDone) log.info('all stored messages have the new form');
      return false;
    }
    if (changed >= announced + 10_000) {
      log.info({ changed }, 'changing stored messages');
      announced = changed;
    }
    return true;
  };
  return startLoop({
    name: 'changing stored messages',
    pollMs: purgePollMs,
    restFactor: 3,
    log,
    isTransient: isUnavailable,
    work,
  });
}

/** Tells other processes and commands that this process runs, and which keys it has. */
async function startReporting({ sql, log, sealer, config }: Parts): Promise<Pick<Loop, 'stop'>> {
  const self = {
    ...{ id: newId(), name: nameOfThisProcess(), roles: config.roles },
    ...{ version: readVersion(), keyIds: sealer.keyIds },
  };
  await reportProcess(sql, self);
  const loop = startLoop({
    ...{ name: 'reporting this process', pollMs: reportPollMs, log, isTransient: isUnavailable },
    async work() {
      await reportProcess(sql, self);
      return false;
    },
  });
  return {
    async stop() {
      await loop.stop();
      // The row would expire by itself, so a stop does not wait for a database that is unavailable.
      await Promise.race([
        removeProcess(sql, self.id).catch(() => {}),
        pause(1000, undefined, { ref: false }),
      ]);
    },
  };
}

/** Delivery, and replays, which create deliveries. `wake` wakes both. */
function startDelivering(parts: Parts, database: Database, stops: Stops) {
  const { sealer, log, metrics, tracer, userAgent, links, config } = parts;
  const delivery = startDelivery({
    ...{ sealer, log, metrics, tracer, userAgent },
    sql: database.openAnother('delivery', { max: deliveryPoolSize }),
    // Not the API's poster: delivery closes its own when it stops.
    poster: new Poster({ egress: parts.egress }),
    completeData: (stored) => completeData(stored, links, Date.now()),
    scheduleSeconds: config.retrySchedule,
  });
  stopLater(stops, delivery);
  const replays = stopLater(
    stops,
    startReplaying(parts, () => delivery.wake()),
  );
  const wake = () => {
    delivery.wake();
    replays.wake();
  };
  return { wake, replays, offer: delivery.offer };
}

function startSendingMail(parts: Parts, database: Database, wakeAfterEvents: () => void): Loop {
  const { sealer, log, metrics, ways, dns, examiner, bounceKeys, confirmationLinks, config } = parts;
  const sql = database.openAnother('sending', { max: sendingPoolSize });
  return startSending({
    ...{ sql, ways, log, metrics, wakeAfterEvents },
    signer: new Signer({ sql, sealer, dns, log, sign: examiner.outgoing.sign }),
    bounceAddress: (recipient) => makeBounceAddress(bounceKeys, recipient, config.bounceDomain, Date.now()),
    confirmations: { mailHost: config.mailHost, linkTo: confirmationLinks.to },
    scheduleSeconds: config.sendSchedule ?? standardSchedule,
  });
}

/** Returns how to wake it, in every process. */
async function startSyncing(
  parts: Parts,
  database: Database,
  mail: AcceptParts,
  stops: Stops,
  times: Partial<SyncTimes> | undefined,
): Promise<() => void> {
  const { log, metrics, config, verifyAccounts } = parts;
  const { maxMessageBytes } = config;
  const startLoop = () => {
    const sql = database.openAnother('sync', { max: syncPoolSize });
    const accounts = { ...verifyAccounts, sql };
    const recordMails: Parameters<typeof startSync>[0]['recordMails'] = (found, alsoWrite) =>
      acceptSynced({ ...mail, sql }, found, alsoWrite);
    return stopLater(stops, startSync({ sql, log, metrics, accounts, maxMessageBytes, recordMails, times }));
  };
  const loop = config.roles.includes('sync') ? startLoop() : null;
  return stopLater(stops, await startWaker(database.sql, log, 'mailboxes', loop?.wake ?? null)).wake;
}

function startStreams({ sql, log, links }: Parts): EventStreams {
  const writeBody = (event: StreamedEvent) => {
    const data = completeData(event, links, Date.now());
    // A line break in JSON is a blank, and in a stream the end of the field.
    return `{"event":${JSON.stringify(event.event)},"data":${data}}`.replaceAll(/[\r\n]/g, ' ');
  };
  return new EventStreams({ sql, log, writeBody });
}

function startReplaying({ sql, log }: Parts, wakeDelivery: () => void): Loop {
  const work = async () => {
    const step = await runReplayBatch(sql);
    if (step?.queued) wakeDelivery();
    return step !== undefined;
  };
  return startLoop({
    ...{ name: 'replaying', pollMs: replayPollMs, ...watched, log, isTransient: isUnavailable, work },
  });
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

/** The part that was started last stops first. */
async function stopEach(stops: Stops, log: Log): Promise<void> {
  for (const stop of stops.reverse())
    await stop().catch((err) => log.error({ err }, 'a part of the service failed to stop'));
}

function stopLater<Part extends { stop(): Promise<void> }>(stops: Stops, part: Part): Part {
  stops.push(() => part.stop());
  return part;
}

/** The start of links in payloads: the same in every process, unless PORT is 0. */
function baseUrl({ publicUrl, host, port, basePath }: Config, url: string | null): string {
  const own = port === 0 && url ? url : originOf(host, port);
  return `${publicUrl ?? own}${basePath}`;
}

/**
 * The API. Every request passes, in this order: request id and CORS headers, access rule, its turn, rate limit, scope of the key,
 * validation, handler. Every error becomes a problem document.
 */
import { randomUUID } from 'node:crypto';
import type { FastifyRequest, RawRequestDefaultExpression } from 'fastify';
import { Type } from 'typebox';
import type { Config } from '../config.ts';
import type { ConfirmationLinks } from '../contract/confirmation-links.ts';
import type { Links } from '../contract/links.ts';
import type { Pool } from '../db/client.ts';
import type { VerifyParts } from '../identities/verify.ts';
import type { Log } from '../lib/log.ts';
import type { Metrics } from '../lib/metrics.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { Tracer } from '../lib/tracing.ts';
import { makeTurns } from '../lib/turns.ts';
import type { Verifications } from '../mailboxes/verifications.ts';
import type { VerifyAccountParts } from '../mailboxes/verify-account.ts';
import type { MailWork } from '../mailwork/mailwork.ts';
import { clientNetwork } from '../net/client-network.ts';
import type { Egress } from '../net/egress.ts';
import { Problem } from '../problems.ts';
import type { Sns } from '../providers/sns.ts';
import type { AcceptParts } from '../receiving/accept.ts';
import type { ProviderReportParts } from '../sending/provider-reports.ts';
import type { SubmitParts } from '../sending/submit.ts';
import type { Poster } from '../webhooks/post.ts';
import {
  type Authenticator,
  type Caller,
  makeAuthenticator,
  requireAccessRule,
  requireScope,
} from './access.ts';
import { type AnswerMemory, boundAnswers } from './answer-memory.ts';
import { readDashboard } from './dashboard-files.ts';
import { sendClientError } from './errors.ts';
import type { EventStreams } from './event-streams.ts';
import { type FairQueries, makeFairQueries } from './fair-queries.ts';
import { type App, makeApp } from './fastify.ts';
import { readJsonBodies } from './json-body.ts';
import { allowOrigin, answerOtherMethods } from './methods.ts';
import { documentRoutes } from './openapi.ts';
import { makeRateLimiter } from './rate-limit.ts';
import { adminRoutes } from './routes/admin.ts';
import { apiKeyRoutes } from './routes/api-keys.ts';
import { confirmationRoutes } from './routes/confirmation.ts';
import { dashboardRoutes } from './routes/dashboard.ts';
import { deliveryRoutes } from './routes/deliveries.ts';
import { documentationRoutes } from './routes/documentation.ts';
import { eventStreamRoutes } from './routes/event-stream.ts';
import { eventTypeRoutes } from './routes/event-types.ts';
import { eventRoutes } from './routes/events.ts';
import { type HealthParts, healthRoutes } from './routes/health.ts';
import { identityRoutes } from './routes/identities.ts';
import { inboundRoutes } from './routes/inbound.ts';
import { mailboxRoutes } from './routes/mailboxes.ts';
import { meRoutes } from './routes/me.ts';
import { messageRoutes } from './routes/messages.ts';
import { metricsRoutes } from './routes/metrics.ts';
import { providerHookRoutes } from './routes/provider-hooks.ts';
import { providerRoutes } from './routes/providers.ts';
import { replayRoutes } from './routes/replays.ts';
import { sendingRoutes } from './routes/sending.ts';
import { sessionRoutes } from './routes/sessions.ts';
import { smtpAccountRoutes } from './routes/smtp-accounts.ts';
import { statsRoutes } from './routes/stats.ts';
import { suppressionRoutes } from './routes/suppressions.ts';
import { verificationRoutes } from './routes/verification.ts';
import { webhookRoutes } from './routes/webhooks.ts';
import { makeSessionCookie, type SessionCookie } from './session-cookie.ts';
import { traceRequests } from './trace.ts';
import { makeValidation, refuseInvalid } from './validation.ts';

const maxBodyBytes = 64 * 1024;
const NoQuery = Type.Object({}, { additionalProperties: false });

/** Each group of routes takes the parts it needs. */
/** Requests that start in one turn of the event loop. A start costs 0.1 to 0.2 ms. */
const requestsPerTurn = 10;

export interface ApiParts extends HealthParts {
  config: Config;
  sql: Pool;
  sealer: Sealer;
  log: Log;
  metrics: Metrics;
  /** Null when tracing is off. */
  tracer: Tracer | null;
  links: Links;
  confirmationLinks: ConfirmationLinks;
  mailWork: MailWork;
  mail: AcceptParts;
  submit: SubmitParts;
  verifyAccounts: VerifyAccountParts;
  verifications: Verifications;
  reports: ProviderReportParts;
  sns: Sns;
  /** The URL that others reach the API under, with the base path. */
  readBaseUrl(): string;
  streams: EventStreams;
  verification: VerifyParts;
  egress: Egress;
  poster: Poster;
  userAgent: string;
  /** Call it after the commit that made deliveries ready, of these webhooks or of any. */
  wakeDelivery(webhookIds?: readonly string[]): void;
  /** Call it after the commit that marked rows as deleted. */
  wakePurge(): void;
  /** Call it after the commit that changed an identity or an SMTP account, or asked for a sync. */
  wakeSync(): void;
  /** Call it after the commit that enabled or disabled a webhook. */
  wakeSettling(): void;
}

export async function buildApp(given: ApiParts): Promise<App> {
  const queries = makeFairQueries(given.sql);
  const { sql } = queries;
  const mail = { ...given.mail, sql };
  const submit = { ...given.submit, sql };
  const verification = { ...given.verification, sql };
  const reports = { ...given.reports, sql };
  const parts: ApiParts = { ...given, sql, mail, submit, reports, verification };
  const { config, log, tracer } = parts;
  const app = makeApp(log, {
    bodyLimit: maxBodyBytes,
    genReqId: readRequestId,
    clientErrorHandler: sendClientError,
    forceCloseConnections: 'idle',
    // A client that never completes its request must not keep a socket open, or block shutdown.
    requestTimeout: 120_000,
    // Node's own refusal has no body: `requireOneHost` replaces it.
    http: { requireHostHeader: false },
    routerOptions: { maxParamLength: 200 },
    trustProxy: config.trustedProxies.length > 0 ? [...config.trustedProxies] : false,
  });

  // Node would respond 417 without a body. RFC 9110 §10.1.1 allows a server to ignore an unknown expectation.
  app.server.on('checkExpectation', (request, response) => app.server.emit('request', request, response));
  const cookie = makeSessionCookie(config);
  const authenticator = makeAuthenticator({ ...parts, cookie });
  requireAccessRule(app);
  readJsonBodies(app);
  if (tracer) traceRequests(app, tracer);
  const answers = boundAnswers(app);
  addHooks(app, parts, authenticator, queries);
  answerOtherMethods(app, config.corsOrigins);
  await documentRoutes(app, config);
  const shared = { ...parts, authenticator, cookie, answers };
  await app.register(async (api) => addRoutes(api as App, shared), { prefix: config.basePath });
  return app;
}

function addRoutes(
  api: App,
  given: ApiParts & { authenticator: Authenticator; cookie: SessionCookie; answers: AnswerMemory },
): void {
  const { config } = given;
  const {
    adminToken,
    metricsToken,
    metricsPort,
    maxMessageBytes,
    maxWebhooks,
    maxAccounts,
    production,
    allowHttp,
  } = config;
  const origin = config.publicUrl ?? '';
  const baseUrl = `${origin}${config.basePath}`;
  const parts = { ...given, origin, baseUrl, maxMessageBytes, maxWebhooks, maxAccounts, allowHttp };
  meRoutes(api);
  identityRoutes(api, parts);
  verificationRoutes(api, parts);
  api.register(async (scope) => confirmationRoutes(scope as App, parts));
  mailboxRoutes(api, parts);
  webhookRoutes(api, parts);
  deliveryRoutes(api, parts);
  replayRoutes(api, parts);
  eventRoutes(api, parts);
  eventStreamRoutes(api, parts);
  statsRoutes(api, parts);
  messageRoutes(api, parts);
  api.register(async (scope) => inboundRoutes(scope as App, parts));
  api.register(async (scope) => sendingRoutes(scope as App, parts));
  api.register(async (scope) => providerHookRoutes(scope as App, parts));
  providerRoutes(api, parts);
  suppressionRoutes(api, parts);
  smtpAccountRoutes(api, parts);
  apiKeyRoutes(api, parts);
  sessionRoutes(api, parts);
  if (adminToken) adminRoutes(api, parts);
  eventTypeRoutes(api);
  documentationRoutes(api);
  healthRoutes(api, parts);
  const { basePath, dashboard } = config;
  dashboardRoutes(api, { basePath, isOn: dashboard, files: dashboard ? readDashboard(basePath) : null });
  if (metricsPort === null && (!production || metricsToken)) metricsRoutes(api, parts);
}

function addHooks(
  app: App,
  { config, sql, log, metrics }: ApiParts,
  authenticator: Authenticator,
  queries: FairQueries,
): void {
  const limit = makeRateLimiter(config.rateLimitPerMinute);
  const turns = makeTurns(requestsPerTurn);
  app.server.on('connection', turns.noteConnection);
  const validation = makeValidation(config);
  app.setValidatorCompiler(validation.compiler);
  app.decorateRequest('provider', null);
  app.decorateRequest('ownerId', '');
  app.decorateRequest('keyId', '');
  app.decorateRequest('keyScope', null);
  app.decorateRequest('sessionId', null);

  // The preHandler hook reports schema errors together with those that only the database can find.
  app.addHook('onRoute', (route) => {
    route.attachValidation = true;
    // A route without query parameters refuses them too: nothing is dropped in silence.
    const isApi = route.config?.access === 'key' || route.config?.access === 'operator';
    if (isApi) route.schema = { querystring: NoQuery, ...route.schema };
  });

  app.addHook('onRequest', (request, reply, done) => {
    reply.header('x-request-id', request.id);
    // By default, because some answers have a secret or a signed link. A route may allow more.
    if (request.routeOptions.config.access !== 'public') reply.header('cache-control', 'no-store');
    allowOrigin(request, reply, config.corsOrigins);
    const admit = (caller: Caller) => {
      request.ownerId = caller.ownerId;
      request.keyId = caller.keyId;
      request.keyScope = caller.keyScope;
      request.sessionId = caller.sessionId;
      if (caller.ownerId) limit(nameLimited(request), reply);
      // After the limit, which counts refused requests too.
      requireScope(request);
    };
    const start = (caller: Caller) =>
      turns.start(caller.ownerId || clientNetwork(request.ip), () => {
        try {
          admit(caller);
          done();
        } catch (error) {
          done(error as Error);
        }
      });
    const refuse = (error: Error) => turns.start(clientNetwork(request.ip), () => done(error));
    try {
      requireOneHost(request);
      refuseEncoded(request);
      const context = { ownerId: '', ip: request.ip, reply: null };
      const caller = queries.run(context, () => authenticator.authenticate(request));
      // No promise for a cached key: this runs for every request.
      if (caller instanceof Promise) caller.then(start, refuse);
      else start(caller);
    } catch (error) {
      refuse(error as Error);
    }
  });

  // Ids are compared as text and are part of encryption contexts, so they are always lower case.
  app.addHook('preValidation', (request, reply, done) => {
    const params = request.params as Record<string, string>;
    for (const name in params) params[name] = params[name]?.toLowerCase() ?? '';
    // Here and not in `onRequest`: reading the body loses the context.
    queries.run({ ownerId: request.ownerId, ip: request.ip, reply }, done);
  });

  app.addHook('preHandler', (request, _reply, done) => {
    const refusing = refuseInvalid(request, validation, sql);
    if (refusing) refusing.then(() => done(), done);
    else done();
  });

  app.addHook('onResponse', (request, reply, done) => {
    const { method } = request;
    const labels = { method, route: request.routeOptions.url ?? 'none', status: String(reply.statusCode) };
    metrics.requestSeconds.observe(labels, reply.elapsedTime / 1000);
    if (log.isLevelEnabled('debug'))
      log.debug({ requestId: request.id, ...labels, ms: Math.round(reply.elapsedTime) }, 'request');
    done();
  });
}

/** Links and hooks have limits of their own: a stranger who has one cannot lock the owner out of the API. */
function nameLimited({ ownerId, keyId, provider }: FastifyRequest): string {
  if (provider) return `hooks of ${provider.id}`;
  return keyId ? ownerId : `links of ${ownerId}`;
}

/** RFC 9112 §3.2. Of several `Host` headers Node shows the first, and a proxy in front may have used the last. */
function requireOneHost({ headers, raw }: FastifyRequest): void {
  if (headers.host === undefined && raw.httpVersion === '1.1')
    throw new Problem('bad_request', { detail: 'HTTP/1.1 requires a `Host` header. Send one.' });
  const isHost = (text: string, n: number) =>
    n % 2 === 0 && text.length === 4 && text.toLowerCase() === 'host';
  if (raw.rawHeaders.filter(isHost).length > 1)
    throw new Problem('bad_request', { detail: 'The request has several `Host` headers. Send one.' });
}

/** RFC 9110 §15.5.16. Nothing here decompresses a body: the compressed bytes would be read as the content. */
function refuseEncoded({ headers }: FastifyRequest): void {
  const encoding = headers['content-encoding'];
  if (encoding === undefined || encoding.toLowerCase() === 'identity') return;
  const detail = 'The service does not decode `Content-Encoding`. Send the body without compression.';
  throw new Problem('unsupported_media_type', { detail });
}

function readRequestId(request: RawRequestDefaultExpression): string {
  const given = request.headers['x-request-id'];
  return typeof given === 'string' && /^[A-Za-z0-9._-]{1,128}$/.test(given) ? given : randomUUID();
}

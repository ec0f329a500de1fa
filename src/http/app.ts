/**
 * The API. A request passes, in this order: its id and CORS headers, the access rule of its route, the rate limit,
 * the schema, the handler; whatever fails on the way becomes a problem document.
 */
import { randomUUID } from 'node:crypto';
import type { FastifyRequest, RawRequestDefaultExpression } from 'fastify';
import type { Config } from '../config.ts';
import type { Links } from '../contract/links.ts';
import type { Pool } from '../db/client.ts';
import type { VerifyParts } from '../identities/verify.ts';
import type { Log } from '../lib/log.ts';
import type { Metrics } from '../lib/metrics.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { Tracer } from '../lib/tracing.ts';
import type { Egress } from '../net/egress.ts';
import { Problem } from '../problems.ts';
import type { AcceptParts } from '../receiving/accept.ts';
import type { Examiner } from '../receiving/examine.ts';
import type { Poster } from '../webhooks/post.ts';
import { type Gate, makeGate, requireAccessRule } from './access.ts';
import { sendClientError } from './errors.ts';
import { type App, makeApp } from './fastify.ts';
import { readJsonBodies } from './json-body.ts';
import { allowOrigin, answerOtherMethods } from './methods.ts';
import { documentRoutes } from './openapi.ts';
import { makeRateLimiter } from './rate-limit.ts';
import { adminRoutes } from './routes/admin.ts';
import { apiKeyRoutes } from './routes/api-keys.ts';
import { deliveryRoutes } from './routes/deliveries.ts';
import { documentationRoutes } from './routes/documentation.ts';
import { eventTypeRoutes } from './routes/event-types.ts';
import { eventRoutes } from './routes/events.ts';
import { healthRoutes } from './routes/health.ts';
import { identityRoutes } from './routes/identities.ts';
import { inboundRoutes } from './routes/inbound.ts';
import { meRoutes } from './routes/me.ts';
import { messageRoutes } from './routes/messages.ts';
import { metricsRoutes } from './routes/metrics.ts';
import { replayRoutes } from './routes/replays.ts';
import { verificationRoutes } from './routes/verification.ts';
import { webhookTestRoutes } from './routes/webhook-test.ts';
import { webhookRoutes } from './routes/webhooks.ts';
import { traceRequests } from './trace.ts';
import { makeValidation, refuseFaults } from './validation.ts';

const maxBodyBytes = 64 * 1024;

/** What buildApp hands out: each group of routes takes its own share. */
export interface ApiParts {
  config: Config;
  sql: Pool;
  sealer: Sealer;
  log: Log;
  metrics: Metrics;
  /** Null: tracing is off. */
  tracer: Tracer | null;
  links: Links;
  examiner: Examiner;
  mail: AcceptParts;
  verification: VerifyParts;
  egress: Egress;
  poster: Poster;
  /** Sent with every POST to a webhook. */
  userAgent: string;
  /** Deliveries may be ready: call it after the commit that made them so. */
  wakeDelivery(): void;
  /** Deleted rows can be purged: call it after the commit. */
  wakePurge(): void;
}

export async function buildApp(parts: ApiParts): Promise<App> {
  const { config, log, tracer } = parts;
  const app = makeApp(log, {
    bodyLimit: maxBodyBytes,
    genReqId: readRequestId,
    clientErrorHandler: sendClientError,
    forceCloseConnections: 'idle',
    // A client that never ends its request must not hold its socket, or our own end, for ever.
    requestTimeout: 120_000,
    // Node would refuse without a word: see `requireHost`.
    http: { requireHostHeader: false },
    routerOptions: { maxParamLength: 200 },
  });

  // Node would answer 417 without a word. RFC 9110 §10.1.1 lets a server pass over an expectation that it does not know.
  app.server.on('checkExpectation', (request, response) => app.server.emit('request', request, response));
  const gate = makeGate(parts);
  requireAccessRule(app);
  readJsonBodies(app);
  if (tracer) traceRequests(app, tracer);
  passRequests(app, parts, gate);
  answerOtherMethods(app, config.corsOrigins);
  await documentRoutes(app, config);
  await app.register(async (api) => addRoutes(api as App, parts, gate), { prefix: config.basePath });
  return app;
}

function addRoutes(api: App, given: ApiParts, gate: Gate): void {
  const { config } = given;
  const { adminToken, metricsToken, metricsPort, maxMessageBytes, production } = config;
  const origin = config.publicUrl ?? '';
  const parts = { ...given, gate, origin, baseUrl: `${origin}${config.basePath}`, maxMessageBytes };
  meRoutes(api);
  identityRoutes(api, parts);
  verificationRoutes(api, parts);
  webhookRoutes(api, parts);
  webhookTestRoutes(api, parts);
  deliveryRoutes(api, parts);
  replayRoutes(api, parts);
  eventRoutes(api, parts);
  messageRoutes(api, parts);
  api.register(async (scope) => inboundRoutes(scope as App, parts));
  apiKeyRoutes(api, parts);
  if (adminToken) adminRoutes(api, parts);
  eventTypeRoutes(api);
  documentationRoutes(api);
  healthRoutes(api, parts);
  if (metricsPort === null && (!production || metricsToken)) metricsRoutes(api, parts);
}

function passRequests(app: App, { config, sql, log, metrics }: ApiParts, gate: Gate): void {
  const limit = makeRateLimiter(config.rateLimitPerMinute);
  const validation = makeValidation({ allowHttp: config.allowHttp });
  app.setValidatorCompiler(validation.compiler);
  app.decorateRequest('ownerId', '');
  app.decorateRequest('keyId', '');

  // Faults are told together with those that only the database knows, so routes do not refuse by themselves.
  app.addHook('onRoute', (route) => {
    route.attachValidation = true;
  });

  app.addHook('onRequest', (request, reply, done) => {
    reply.header('x-request-id', request.id);
    allowOrigin(request, reply, config.corsOrigins);
    const enter = (caller: { ownerId: string; keyId: string }) => {
      request.ownerId = caller.ownerId;
      request.keyId = caller.keyId;
      if (caller.keyId) limit(caller.keyId, reply);
      done();
    };
    try {
      requireHost(request);
      const caller = gate.admit(request);
      // A promise only where there is something to wait for: this is every request's path.
      if (caller instanceof Promise) caller.then(enter).catch(done);
      else enter(caller);
    } catch (error) {
      done(error as Error);
    }
  });

  // Ids are compared and bound to secrets as text, so they have one spelling here.
  app.addHook('preValidation', (request, _reply, done) => {
    const params = request.params as Record<string, string>;
    for (const name in params) params[name] = params[name]?.toLowerCase() ?? '';
    done();
  });

  app.addHook('preHandler', (request, _reply, done) => {
    const checked = refuseFaults(request, validation, sql);
    if (checked) checked.then(() => done(), done);
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

/** RFC 9112 §3.2 */
function requireHost({ headers, raw }: FastifyRequest): void {
  if (headers.host === undefined && raw.httpVersion === '1.1')
    throw new Problem('bad_request', { detail: 'HTTP/1.1 wants a Host header.' });
}

function readRequestId(request: RawRequestDefaultExpression): string {
  const given = request.headers['x-request-id'];
  return typeof given === 'string' && /^[A-Za-z0-9._-]{1,128}$/.test(given) ? given : randomUUID();
}

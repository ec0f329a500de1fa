/** The separate listener of POSTHORN_METRICS_PORT: `/metrics` away from the API, and `/health` in processes without an API. */
import type { Log } from '../lib/log.ts';
import type { Metrics } from '../lib/metrics.ts';
import { type App, makeApp } from './fastify.ts';
import { answerOtherMethods } from './methods.ts';
import { type HealthParts, healthRoutes } from './routes/health.ts';
import { metricsRoutes } from './routes/metrics.ts';

export function buildMetricsApp(parts: HealthParts & { log: Log; metrics: Metrics }): App {
  const app = makeApp(parts.log, { forceCloseConnections: true });
  answerOtherMethods(app, []);
  healthRoutes(app, parts);
  metricsRoutes(app, parts);
  return app;
}

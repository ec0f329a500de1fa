/**
 * The operator's door (POSTHORN_METRICS_PORT): `/metrics` away from the API, and `/health` in processes that have no API.
 */
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import { fastify } from 'fastify';
import { makeProblemSender } from './errors.ts';
import { answerOtherMethods } from './methods.ts';
import { healthRoutes } from './routes/health.ts';
import { metricsRoutes } from './routes/metrics.ts';
import type { App, Services } from './services.ts';

export function buildMetricsApp(services: Services): App {
  const app = fastify({ forceCloseConnections: true }).withTypeProvider<TypeBoxTypeProvider>() as App;
  app.setErrorHandler(makeProblemSender(services.log));
  answerOtherMethods(app, []);
  healthRoutes(app, services);
  metricsRoutes(app, services);
  return app;
}

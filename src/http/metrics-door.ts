/** A door of its own for `/metrics`, where the operator wants it away from the API (POSTHORN_METRICS_PORT). */
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import { fastify } from 'fastify';
import { makeProblemSender } from './errors.ts';
import { answerOtherMethods } from './methods.ts';
import { metricsRoutes } from './routes/metrics.ts';
import type { App, Services } from './services.ts';

export function buildMetricsApp(services: Services): App {
  const app = fastify({ forceCloseConnections: true }).withTypeProvider<TypeBoxTypeProvider>() as App;
  app.setErrorHandler(makeProblemSender(services.log));
  answerOtherMethods(app, []);
  metricsRoutes(app, services);
  return app;
}

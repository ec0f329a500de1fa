/** `GET /metrics` in the text format of Prometheus. */
import { Type } from 'typebox';
import type { Metrics } from '../../lib/metrics.ts';
import { withAccess } from '../access.ts';
import type { App } from '../fastify.ts';

export function metricsRoutes(app: App, { metrics }: { metrics: Metrics }): void {
  app.get(
    '/metrics',
    withAccess('metrics', ['Operation'], {
      summary: 'Get the metrics in the text format of Prometheus',
      response: { 200: { content: { 'text/plain': { schema: Type.String() } } } },
    }),
    async (_request, reply) => {
      reply.type(metrics.registry.contentType);
      return metrics.registry.metrics();
    },
  );
}

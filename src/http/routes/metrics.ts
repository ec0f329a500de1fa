/** `GET /metrics` in Prometheus' text format. */
import { Type } from 'typebox';
import type { Metrics } from '../../lib/metrics.ts';
import type { App } from '../fastify.ts';

export function metricsRoutes(app: App, { metrics }: { metrics: Metrics }): void {
  app.get(
    '/metrics',
    {
      config: { access: 'metrics' },
      schema: {
        tags: ['Operation'],
        summary: 'Metrics for Prometheus',
        response: { 200: { content: { 'text/plain': { schema: Type.String() } } } },
      },
    },
    async (_request, reply) => {
      reply.type(metrics.registry.contentType);
      return metrics.registry.metrics();
    },
  );
}

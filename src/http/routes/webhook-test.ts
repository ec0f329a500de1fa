/** `POST /webhooks/{id}/test`: one try of a sample event, now, to this webhook alone. */
import { IdParams } from '../../contract/schemas.ts';
import { WebhookTest } from '../../contract/webhook.ts';
import { Problem } from '../../problems.ts';
import { keepTestTry, tryWebhook } from '../../webhooks/test-event.ts';
import { actAndAnswerOnce } from '../idempotency.ts';
import type { App, Services } from '../services.ts';

export function webhookTestRoutes(app: App, services: Services): void {
  app.post(
    '/webhooks/:id/test',
    {
      config: { access: 'key' },
      schema: {
        tags: ['Webhooks'],
        summary: 'Send a sample event now, also while disabled; never retried',
        params: IdParams,
        response: { 200: WebhookTest },
      },
    },
    async (request, reply) => {
      const { id } = request.params;
      await actAndAnswerOnce(
        services,
        request,
        reply,
        () => tryWebhook(services, request.ownerId, id, request.span),
        async (sql, tried) => {
          if (!tried) throw new Problem('not_found');
          return { status: 200, body: await keepTestTry(sql, request.ownerId, tried) };
        },
      );
    },
  );
}

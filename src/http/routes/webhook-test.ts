/** `POST /webhooks/{id}/test`: one try of a sample event, now, to this webhook alone. */
import { IdParams } from '../../contract/schemas.ts';
import { WebhookTest } from '../../contract/webhook.ts';
import { Problem } from '../../problems.ts';
import { keepTestTry, tryWebhook } from '../../webhooks/test-event.ts';
import type { App } from '../fastify.ts';
import { type AnswerParts, actAndAnswerOnce } from '../idempotency.ts';

type TryParts = Parameters<typeof tryWebhook>[0];

export function webhookTestRoutes(app: App, parts: AnswerParts & TryParts): void {
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
        parts,
        request,
        reply,
        () => tryWebhook(parts, request.ownerId, id, request.span),
        async (sql, tried) => {
          if (!tried) throw new Problem('not_found');
          return { status: 200, body: await keepTestTry(sql, request.ownerId, tried) };
        },
      );
    },
  );
}

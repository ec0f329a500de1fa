/** `POST /webhooks/{id}/test`: one try of a sample event, now, to this webhook alone. */
import { Type } from 'typebox';
import { Problem } from '../../problems.ts';
import { tryWebhook } from '../../webhooks/test-event.ts';
import { answerOnce } from '../idempotency.ts';
import { IdParams } from '../schemas.ts';
import type { App, Services } from '../services.ts';
import { Attempt } from './deliveries.ts';

const Tested = Type.Object({ delivered: Type.Boolean(), attempt: Attempt });

export function webhookTestRoutes(app: App, services: Services): void {
  app.post(
    '/webhooks/:id/test',
    {
      config: { access: 'key' },
      schema: {
        tags: ['Webhooks'],
        summary: 'Send a sample event now, also while disabled; never retried',
        params: IdParams,
        response: { 200: Tested },
      },
    },
    (request, reply) =>
      answerOnce(services, request, reply, async (sql) => {
        const tested = await tryWebhook({ ...services, sql }, request.ownerId, request.params.id);
        if (!tested) throw new Problem('not_found');
        return { status: 200, body: tested };
      }),
  );
}

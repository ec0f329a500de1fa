/** Replays: sending past events to a webhook again. */
import { Type } from 'typebox';
import { Replay } from '../../contract/replay.ts';
import { body, IdParams, oneOf, Timestamp, Uuid } from '../../contract/schemas.ts';
import { type Fault, Problem } from '../../problems.ts';
import { createReplay, findReplay, replaySelections } from '../../store/replays.ts';
import { findWebhook } from '../../store/webhooks.ts';
import type { App } from '../fastify.ts';
import { type AnswerParts, answerOnce } from '../idempotency.ts';

const NewReplay = body(
  {
    since: Timestamp,
    until: Type.Optional(Timestamp),
    status: Type.Optional(oneOf(replaySelections)),
  },
  { example: { since: '2026-01-31T00:00:00Z' } },
);

const ReplayParams = Type.Object({ id: Uuid, replayId: Uuid });
const tags = ['Deliveries'];

export function replayRoutes(app: App, parts: AnswerParts & { wakeDelivery(): void }): void {
  const { sql, wakeDelivery } = parts;

  app.post(
    '/webhooks/:id/replay',
    {
      config: { access: 'key', findFaults: findNoTime },
      schema: {
        tags,
        summary: 'Send past events again: those in [since, until) that match the webhook as it is now',
        params: IdParams,
        body: NewReplay,
        response: { 202: Replay },
      },
    },
    async (request, reply) => {
      await answerOnce(parts, request, reply, async (sql) => {
        const { id } = request.params;
        const { since, until = null, status = 'missing_or_failed' } = request.body;
        const webhook = await findWebhook(sql, request.ownerId, id);
        if (!webhook) throw new Problem('not_found');
        if (!webhook.enabled) throw new Problem('webhook_disabled');
        const replay = await createReplay(sql, request.ownerId, { webhookId: id, since, until, status });
        return {
          status: 202,
          location: `/webhooks/${id}/replays/${replay.id}`,
          body: replay,
        };
      });
      wakeDelivery();
    },
  );

  app.get(
    '/webhooks/:id/replays/:replayId',
    {
      config: { access: 'key' },
      schema: { tags, summary: 'How far a replay is', params: ReplayParams, response: { 200: Replay } },
    },
    async (request) => {
      const { id, replayId } = request.params;
      const webhook = await findWebhook(sql, request.ownerId, id);
      const replay = webhook && (await findReplay(sql, request.ownerId, id, replayId));
      if (!replay) throw new Problem('not_found');
      return replay;
    },
  );
}

function findNoTime({ since, until }: Record<string, unknown>): Fault[] {
  const times = [since, until].map((text) => (typeof text === 'string' ? Date.parse(text) : Number.NaN));
  const [from = Number.NaN, to = Number.NaN] = times;
  // Of a time that cannot be read, the schema speaks.
  if (!(to <= from)) return [];
  return [{ pointer: '/until', code: 'out_of_range', message: '/until must be later than /since.' }];
}

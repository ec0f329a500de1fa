/** Replays: send past events to a webhook again. */
import { Type } from 'typebox';
import { Replay } from '../../contract/replay.ts';
import { body, describe, IdParams, oneOf, Timestamp, Uuid } from '../../contract/schemas.ts';
import { type FieldError, Problem } from '../../problems.ts';
import { createReplay, findReplay, replaySelections } from '../../store/replays.ts';
import { findWebhook } from '../../store/webhooks.ts';
import { withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { type PostParts, respondOnce } from '../idempotency.ts';

const selection =
  'Which events: `missing` were never sent to this webhook, `failed` were sent without success. Default: `missing_or_failed`.';
const NewReplay = body(
  {
    since: describe(Timestamp, 'Events from this time on.'),
    until: Type.Optional(describe(Timestamp, 'Events before this time. Left out: until now.')),
    status: Type.Optional(describe(oneOf(replaySelections), selection)),
  },
  { example: { since: '2026-01-31T00:00:00Z' } },
);

const ReplayParams = Type.Object({ id: Uuid, replayId: Uuid });
const tags = ['Deliveries'];

export function replayRoutes(app: App, parts: PostParts & { wakeDelivery(): void }): void {
  const { sql, wakeDelivery } = parts;

  app.post(
    '/webhooks/:id/replay',
    {
      config: { access: 'key', findFieldErrors: findEmptyPeriod },
      schema: {
        tags,
        summary: 'Send past events to a webhook',
        description:
          'Sends the events from `since` to `until` that match the current settings of the webhook. `Location` is the URL of the progress.',
        params: IdParams,
        body: NewReplay,
        response: { 202: Replay },
      },
    },
    async (request, reply) => {
      await respondOnce(parts, request, reply, async (sql) => {
        const { id } = request.params;
        const { since, until = null, status = 'missing_or_failed' } = request.body;
        const webhook = await orNotFound(findWebhook(sql, request.ownerId, id));
        if (!webhook.enabled) throw new Problem('webhook_disabled');
        const replay = await createReplay(sql, request.ownerId, { webhookId: id, since, until, status });
        return { status: 202, location: `/webhooks/${id}/replays/${replay.id}`, body: replay };
      });
      wakeDelivery();
    },
  );

  app.get(
    '/webhooks/:id/replays/:replayId',
    withAccess('key', tags, {
      summary: 'Get the progress of a replay',
      params: ReplayParams,
      response: { 200: Replay },
    }),
    async (request) => {
      const { id, replayId } = request.params;
      await orNotFound(findWebhook(sql, request.ownerId, id));
      return orNotFound(findReplay(sql, request.ownerId, id, replayId));
    },
  );
}

function findEmptyPeriod({ since, until }: Record<string, unknown>): FieldError[] {
  const parse = (time: unknown) => (typeof time === 'string' ? Date.parse(time) : Number.NaN);
  // An invalid time is NaN and compares as false: the schema reports it.
  if (!(parse(until) <= parse(since))) return [];
  return [{ pointer: '/until', code: 'out_of_range', message: '"until" must be later than "since".' }];
}

/** `GET /events/stream`: the owner's events as they are committed (server-sent events). */
import { Type } from 'typebox';
import { eventNames } from '../../contract/event-types.ts';
import { describe, oneOf, Uuid } from '../../contract/schemas.ts';
import type { Pool } from '../../db/client.ts';
import { isUuid } from '../../lib/ids.ts';
import { Problem } from '../../problems.ts';
import { findPosition, lowestId, readSnapshot } from '../../store/event-stream.ts';
import { withAccess } from '../access.ts';
import type { EventStreams } from '../event-streams.ts';
import type { App } from '../fastify.ts';

const Query = Type.Object(
  {
    event: Type.Optional(oneOf(eventNames)),
    identity_id: Type.Optional(Uuid),
    after: Type.Optional(
      describe(Uuid, 'Resume after this event. The header `Last-Event-ID`, which browsers send, wins.'),
    ),
  },
  { additionalProperties: false },
);

export function eventStreamRoutes(app: App, { sql, streams }: { sql: Pool; streams: EventStreams }): void {
  app.get(
    '/events/stream',
    withAccess('key', ['Events'], {
      summary: 'Stream your events as they happen',
      description:
        'Server-sent events: `id` is the id of the event, `event` its name, `data` the body that a webhook gets. After a cut, resume with `Last-Event-ID`: what happened meanwhile comes first. Without it the stream begins now.',
      querystring: Query,
      response: {
        200: { content: { 'text/event-stream': { schema: Type.Unsafe<unknown>({ type: 'string' }) } } },
      },
    }),
    async (request, reply) => {
      const { ownerId, keyId, sessionId, query } = request;
      const after = request.headers['last-event-id'] ?? query.after;
      const snapshot = after === undefined ? await readSnapshot(sql) : null;
      const position = snapshot
        ? { xact: snapshot.xmin, id: lowestId }
        : await findEvent(sql, ownerId, String(after).toLowerCase());
      if (request.method === 'HEAD') return reply.type('text/event-stream; charset=utf-8').send();
      const response = reply.raw;
      const reader = {
        ownerId,
        keyId,
        sessionId,
        response,
        event: query.event,
        identityId: query.identity_id,
      };
      if (response.destroyed) return;
      if (!streams.add({ ...reader, position, since: snapshot })) {
        throw new Problem('too_many_streams', { headers: { 'retry-after': '5' } });
      }
      reply.hijack();
      response.writeHead(200, {
        ...(reply.getHeaders() as Record<string, string>),
        'content-type': 'text/event-stream; charset=utf-8',
        'cache-control': 'no-store',
        'x-accel-buffering': 'no',
      });
      // Proxies and browsers take a response for open when its first bytes come.
      response.write(': the stream is open\n\n');
    },
  );
}

async function findEvent(sql: Pool, ownerId: string, id: string) {
  const position = isUuid(id) ? await findPosition(sql, ownerId, id) : undefined;
  if (!position) throw new Problem('event_gone');
  return position;
}

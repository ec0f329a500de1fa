/** Events: everything that happened to the owner's identities, also when no webhook was subscribed. */
import { Type } from 'typebox';
import { Event, EventSummary } from '../../contract/event.ts';
import { eventNames } from '../../contract/event-types.ts';
import type { Links } from '../../contract/links.ts';
import { completeData } from '../../contract/payload.ts';
import { defaultShortPage, IdParams, oneOf, Since, shortListQuery, Uuid } from '../../contract/schemas.ts';
import type { Pool } from '../../db/client.ts';
import { findEvent, listEvents } from '../../store/events.ts';
import { withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { jsonText, sendJsonText } from '../json-text.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const Filters = shortListQuery({
  event: Type.Optional(oneOf(eventNames)),
  identity_id: Type.Optional(Uuid),
  since: Since,
});

/** Memory of an event with its raw message: the largest of both, as JSON. */
const eventBytes = 14 * 1024 * 1024;
const tags = ['Events'];

export function eventRoutes(app: App, parts: PageParts & { sql: Pool; links: Links }): void {
  const { sql, links } = parts;

  app.get(
    '/events',
    withAccess('key', tags, {
      summary: 'List your events',
      description: 'Without `data`.',
      querystring: Filters,
      response: { 200: Type.Array(EventSummary) },
    }),
    async (request, reply) => {
      const { event, identity_id: identityId, since } = request.query;
      const page = await readPage(parts, request, reply, defaultShortPage);
      const found = await listEvents(sql, request.ownerId, { event, identityId, since }, page);
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/events/:id',
    withAccess('key', tags, {
      summary: 'Get an event and its data',
      params: IdParams,
      response: { 200: jsonText(Event) },
    }),
    async (request, reply) => {
      await parts.answers.reserve(request, reply, eventBytes);
      const event = await orNotFound(findEvent(sql, request.ownerId, request.params.id));
      const { id, event: name, identityId, createdAt } = event;
      const head = JSON.stringify({ id, event: name, identityId, createdAt }).slice(0, -1);
      return sendJsonText(reply, `${head},"data":${completeData(event, links, Date.now())}}`);
    },
  );
}

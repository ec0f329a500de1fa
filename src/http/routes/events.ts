/** Events: what happened, whether or not a webhook listened. */
import { Type } from 'typebox';
import { Event, EventSummary } from '../../contract/event.ts';
import { eventNames } from '../../contract/event-types.ts';
import type { Links } from '../../contract/links.ts';
import { completeData } from '../../contract/payload.ts';
import {
  defaultShortPage,
  IdParams,
  listQuery,
  maxShortPage,
  oneOf,
  Timestamp,
  Uuid,
} from '../../contract/schemas.ts';
import type { Pool } from '../../db/client.ts';
import { Problem } from '../../problems.ts';
import { findEvent, listEvents } from '../../store/events.ts';
import type { App } from '../fastify.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const Filters = listQuery(
  {
    event: Type.Optional(oneOf(eventNames)),
    identity_id: Type.Optional(Uuid),
    since: Type.Optional(Timestamp),
  },
  { max: maxShortPage, usual: defaultShortPage },
);

const tags = ['Events'];

export function eventRoutes(app: App, parts: PageParts & { sql: Pool; links: Links }): void {
  const { sql, links } = parts;

  app.get(
    '/events',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'Your events',
        querystring: Filters,
        response: { 200: Type.Array(EventSummary) },
      },
    },
    async (request, reply) => {
      const { event, identity_id: identityId, since } = request.query;
      const page = readPage(request.query, defaultShortPage);
      const found = await listEvents(sql, request.ownerId, { event, identityId, since }, page);
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/events/:id',
    {
      config: { access: 'key' },
      schema: { tags, summary: 'One event, with its data', params: IdParams, response: { 200: Event } },
    },
    async (request) => {
      const event = await findEvent(sql, request.ownerId, request.params.id);
      if (!event) throw new Problem('not_found');
      const { data, messageId, raw, ...shown } = event;
      const told = completeData({ data, messageId, raw }, links, Date.now());
      return { ...shown, data: JSON.parse(told) };
    },
  );
}

/** `GET /event-types`: the events that a webhook can subscribe to. */
import { Type } from 'typebox';
import { EventType, eventTypes } from '../../contract/event-types.ts';
import { withAccess } from '../access.ts';
import type { App } from '../fastify.ts';

export function eventTypeRoutes(app: App): void {
  app.get(
    '/event-types',
    withAccess('key', ['Webhooks'], {
      summary: 'List the events that a webhook can subscribe to',
      response: { 200: Type.Array(EventType) },
    }),
    async () => [...eventTypes],
  );
}

/** `GET /event-types`: what a webhook can subscribe to. */
import { Type } from 'typebox';
import { EventType, eventTypes } from '../../contract/event-types.ts';
import type { App } from '../fastify.ts';

export function eventTypeRoutes(app: App): void {
  app.get(
    '/event-types',
    {
      config: { access: 'key' },
      schema: {
        tags: ['Webhooks'],
        summary: 'Events to subscribe to',
        response: { 200: Type.Array(EventType) },
      },
    },
    async () => [...eventTypes],
  );
}

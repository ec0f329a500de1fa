/** `GET /event-types`: what a webhook can subscribe to. */
import { Type } from 'typebox';
import { eventNames, eventTypes } from '../../contract/event-types.ts';
import { oneOf } from '../../contract/schemas.ts';
import type { App } from '../services.ts';

const EventType = Type.Object({
  name: oneOf(eventNames),
  availability: oneOf(['supported', 'coming_soon']),
  description: Type.String(),
  schema: Type.Unsafe({ description: 'JSON Schema of what is POSTed; null until the event is supported.' }),
});

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

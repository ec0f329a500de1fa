/** An event in responses. */
import { Type } from 'typebox';
import type { Event as EventRow } from '../store/events.ts';
import { describe, NullableUuid, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const EventSummary = rowSchema<EventRow>()({
  id: Uuid,
  event: Type.String({ description: 'The name of the event, such as `message.received`.' }),
  identityId: describe(NullableUuid, 'The identity that the event is about.'),
  createdAt: Timestamp,
});

export const Event = Type.Object({
  ...EventSummary.properties,
  data: Type.Unsafe<unknown>({ description: 'The `data` that webhooks receive.' }),
});

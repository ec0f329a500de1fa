/** An event in responses. */
import { Type } from 'typebox';
import type { Event as EventRow } from '../store/events.ts';
import { NullableUuid, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const EventSummary = rowSchema<EventRow>()({
  id: Uuid,
  event: Type.String(),
  identityId: NullableUuid,
  createdAt: Timestamp,
});

export const Event = Type.Object({
  ...EventSummary.properties,
  data: Type.Unsafe<unknown>({ description: 'The `data` that webhooks receive.' }),
});

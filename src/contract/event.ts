/** An event, as the interface shows it. */
import { Type } from 'typebox';
import type { Event as EventRow } from '../store/events.ts';
import { NullableUuid, rowSchema, Timestamp, Uuid } from './schemas.ts';

/** As lists show it. */
export const EventSummary = rowSchema<EventRow>()({
  id: Uuid,
  event: Type.String(),
  identityId: NullableUuid,
  createdAt: Timestamp,
});

export const Event = Type.Object({
  ...EventSummary.properties,
  data: Type.Unsafe<unknown>({ description: 'As it is POSTed.' }),
});

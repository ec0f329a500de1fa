/** A delivery and its attempts, as the interface shows them. */
import { Type } from 'typebox';
import {
  type Attempt as AttemptRow,
  type Delivery as DeliveryRow,
  deliveryStatuses,
} from '../store/deliveries.ts';
import { NullableString, NullableTimestamp, oneOf, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const Delivery = rowSchema<DeliveryRow>()({
  id: Uuid,
  eventId: Uuid,
  webhookId: Uuid,
  event: Type.String(),
  status: oneOf(deliveryStatuses),
  attemptCount: Type.Integer(),
  nextAttemptAt: NullableTimestamp,
  createdAt: Timestamp,
  completedAt: NullableTimestamp,
});

export const Attempt = rowSchema<AttemptRow>()({
  id: Uuid,
  startedAt: Timestamp,
  durationMs: Type.Integer(),
  responseStatus: Type.Unsafe<number | null>({ type: ['integer', 'null'] }),
  responseHeaders: Type.Unsafe<Record<string, string> | null>({
    type: ['object', 'null'],
    additionalProperties: { type: 'string' },
  }),
  responseBody: NullableString,
  error: Type.Unsafe<string | null>({
    type: ['string', 'null'],
    description: 'See docs/delivery-states.md.',
  }),
});

export const DeliveryWithAttempts = Type.Object({
  ...Delivery.properties,
  attempts: Type.Array(Attempt),
});

/** A delivery and its attempts in responses. */
import { Type } from 'typebox';
import {
  type Attempt as AttemptRow,
  type Delivery as DeliveryRow,
  deliveryStatuses,
} from '../store/deliveries.ts';
import {
  describe,
  NullableString,
  NullableTimestamp,
  NullableUuid,
  oneOf,
  rowSchema,
  Timestamp,
  Uuid,
} from './schemas.ts';

export const Delivery = rowSchema<DeliveryRow>()({
  id: Uuid,
  eventId: Uuid,
  webhookId: Uuid,
  event: Type.String({ description: 'The name of the event, such as `message.received`.' }),
  status: describe(
    oneOf(deliveryStatuses),
    '`pending`: it is tried until it succeeds or the tries end. `delivered`: the webhook answered 2xx. `failed`: no tries are left, or the webhook answered 410. `cancelled`: the webhook was disabled until the retention ended.',
  ),
  attemptCount: Type.Integer(),
  nextAttemptAt: describe(NullableTimestamp, 'Null: no further attempt is planned.'),
  createdAt: Timestamp,
  completedAt: describe(NullableTimestamp, 'Null while the delivery is pending.'),
});

export const DeliveryItem = Type.Object({
  ...Delivery.properties,
  messageId: describe(NullableUuid, 'The message that the event is about. Null: none, or it was deleted.'),
  subject: describe(NullableString, 'Of the message, up to 1 KiB. Null after the message was deleted.'),
  lastResponseStatus: Type.Unsafe<number | null>({
    type: ['integer', 'null'],
    description: 'The `responseStatus` of the last attempt.',
  }),
  lastError: describe(NullableString, 'The `error` of the last attempt.'),
});

export const Attempt = rowSchema<AttemptRow>()({
  id: Uuid,
  startedAt: Timestamp,
  durationMs: Type.Integer(),
  responseStatus: Type.Unsafe<number | null>({
    type: ['integer', 'null'],
    description: 'The HTTP status of the response. Null: there was none.',
  }),
  responseHeaders: Type.Unsafe<Record<string, string> | null>({
    type: ['object', 'null'],
    additionalProperties: { type: 'string' },
    description: 'Null: there was no response.',
  }),
  responseBody: describe(NullableString, 'Up to 16 KiB.'),
  error: describe(NullableString, 'Null after a 2xx response; otherwise a code of docs/delivery-states.md.'),
  errorDetail: describe(
    NullableString,
    'What happened, in words for people, such as `ECONNREFUSED 127.0.0.1:4000`; null after a 2xx response.',
  ),
});

export const DeliveryWithAttempts = Type.Object({
  ...Delivery.properties,
  attempts: Type.Array(Attempt),
});

/** The traffic of an hour or day in responses. */
import { Type } from 'typebox';
import type { Traffic as TrafficRow } from '../store/traffic.ts';
import { describe, rowSchema, Timestamp } from './schemas.ts';

const count = (description: string) => Type.Integer({ description });

export const Traffic = rowSchema<TrafficRow>()({
  at: describe(Timestamp, 'The beginning of the hour or day, in UTC.'),
  received: count('Messages that were received.'),
  sent: count('Events `message.sent`: one for each recipient.'),
  delivered: count('Events `message.delivered`.'),
  bounced: count('Events `message.bounced`.'),
  complained: count('Events `message.complained`.'),
  deliveriesDelivered: count('Deliveries to webhooks that ended as `delivered`.'),
  deliveriesFailed: count('Deliveries to webhooks that ended as `failed`.'),
});

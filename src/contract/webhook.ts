/** A webhook, its secret and what a test of it came to, as the interface shows them. */
import { Type } from 'typebox';
import type { Webhook as WebhookRow } from '../store/webhooks.ts';
import { Attempt } from './delivery.ts';
import { NullableString, NullableUuid, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const Webhook = rowSchema<WebhookRow>()({
  id: Uuid,
  ownerId: Uuid,
  identityId: NullableUuid,
  url: Type.String(),
  events: Type.Array(Type.String()),
  enabled: Type.Boolean(),
  description: NullableString,
  disabledReason: NullableString,
  createdAt: Timestamp,
  updatedAt: Timestamp,
});

export const WebhookSecret = Type.Object({
  secret: Type.String({
    description: 'Signs every delivery (Standard Webhooks).',
    examples: ['whsec_…'],
  }),
});

export const CreatedWebhook = Type.Object({ ...Webhook.properties, ...WebhookSecret.properties });

export const WebhookTest = Type.Object({ delivered: Type.Boolean(), attempt: Attempt });

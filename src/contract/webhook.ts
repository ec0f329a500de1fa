/** A webhook, its secret and the result of a test in responses. */
import { Type } from 'typebox';
import type { Webhook as WebhookRow } from '../store/webhooks.ts';
import { Attempt } from './delivery.ts';
import { describe, NullableString, NullableUuid, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const Webhook = rowSchema<WebhookRow>()({
  id: Uuid,
  ownerId: Uuid,
  identityId: describe(NullableUuid, 'Null: the webhook receives the events of all identities.'),
  url: Type.String(),
  events: Type.Array(Type.String(), { description: 'The events that the webhook receives.' }),
  enabled: Type.Boolean({
    description: 'False: no new deliveries are made, and pending ones wait until the webhook is enabled.',
  }),
  description: describe(NullableString, 'Your own words.'),
  disabledReason: describe(NullableString, 'Why Posthorn disabled the webhook: `gone` or `failing`.'),
  createdAt: Timestamp,
  updatedAt: Timestamp,
});

export const WebhookSecret = Type.Object({
  secret: Type.String({ description: 'Signs every delivery (Standard Webhooks).', examples: ['whsec_…'] }),
});

export const CreatedWebhook = Type.Object({ ...Webhook.properties, ...WebhookSecret.properties });

export const WebhookTest = Type.Object({
  delivered: Type.Boolean({ description: 'Whether the answer had a status from 200 to 299.' }),
  attempt: Attempt,
});

/** A provider in responses: never with its credentials. */
import { Type } from 'typebox';
import { providerKinds } from '../store/providers.ts';
import { closed, describe, NullableString, oneOf, Timestamp, Uuid } from './schemas.ts';

export const Provider = closed({
  id: Uuid,
  ownerId: Uuid,
  kind: oneOf(providerKinds),
  name: NullableString,
  inboundUrl: Type.String({
    description: 'Enter it at the provider for mail that comes in. Keep it secret: it needs no API key.',
  }),
  eventsUrl: Type.String({
    description: 'Enter it at the provider for deliveries, bounces and complaints. Keep it secret.',
  }),
  createdAt: describe(Timestamp, 'When it was created.'),
  updatedAt: Timestamp,
});

/** A provider in responses: never with its credentials. */
import { providerKinds } from '../store/providers.ts';
import { closed, describe, NullableString, oneOf, Timestamp, Uuid } from './schemas.ts';
import { ServerState } from './smtp-account.ts';

export const Provider = closed({
  id: Uuid,
  ownerId: Uuid,
  kind: describe(oneOf(providerKinds), 'The service.'),
  name: describe(NullableString, 'The name that you gave it.'),
  inboundUrl: describe(
    NullableString,
    'Enter it at the provider for mail that comes in. Keep it secret: it needs no API key. Null for a key with the scope `read`.',
  ),
  eventsUrl: describe(
    NullableString,
    'Enter it at the provider for deliveries, bounces and complaints. Keep it secret. Null for a key with the scope `read`.',
  ),
  send: describe(ServerState, 'Whether mail can be sent through the provider.'),
  createdAt: Timestamp,
  updatedAt: Timestamp,
});

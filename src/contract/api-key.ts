/** An API key in responses. */
import { Type } from 'typebox';
import { type ApiKey as ApiKeyRow, keyScopes } from '../store/api-keys.ts';
import { describe, NullableString, NullableTimestamp, oneOf, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const KeyScope = oneOf(keyScopes);

export const ApiKey = rowSchema<ApiKeyRow>()({
  id: Uuid,
  name: describe(NullableString, 'The name that you gave the key.'),
  scope: describe(KeyScope, 'What the key may do. Each route names the scopes that it accepts.'),
  prefix: Type.String({ description: 'The first 8 characters of the key.' }),
  suffix: Type.String({ description: 'The last 4 characters of the key.' }),
  createdAt: Timestamp,
  expiresAt: describe(NullableTimestamp, 'Null: the key does not expire.'),
  lastUsedAt: describe(NullableTimestamp, 'Accurate to a minute. Null: never used.'),
});

export const CreatedApiKey = Type.Object({
  ...ApiKey.properties,
  apiKey: Type.String({ description: 'The key itself. Only this response contains it: store it.' }),
});

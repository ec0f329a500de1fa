/** An API key, as the interface shows it. */
import { Type } from 'typebox';
import type { ApiKey as ApiKeyRow } from '../store/api-keys.ts';
import { NullableString, NullableTimestamp, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const ApiKey = rowSchema<ApiKeyRow>()({
  id: Uuid,
  name: NullableString,
  prefix: Type.String({ description: 'The first 8 characters of the key.' }),
  suffix: Type.String({ description: 'The last 4.' }),
  createdAt: Timestamp,
  expiresAt: NullableTimestamp,
  lastUsedAt: NullableTimestamp,
});

export const CreatedApiKey = Type.Object({
  ...ApiKey.properties,
  apiKey: Type.String({ description: 'Shown this once.' }),
});

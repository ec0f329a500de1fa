/** A session in responses. */
import { Type } from 'typebox';
import type { Session as SessionRow } from '../store/sessions.ts';
import { KeyScope } from './api-key.ts';
import { describe, NullableString, NullableUuid, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const Session = rowSchema<SessionRow>()({
  id: Uuid,
  scope: describe(KeyScope, 'The scope of its API key. A session of a sign-in link has `full`.'),
  apiKeyId: describe(NullableUuid, 'The key that was used to sign in. Null: a sign-in link.'),
  userAgent: describe(NullableString, 'What the browser called itself, up to 200 characters.'),
  createdAt: Timestamp,
  lastUsedAt: describe(Timestamp, 'Accurate to a minute.'),
  expiresAt: describe(
    Timestamp,
    '12 hours after the last use, but at most 7 days after the sign-in, and no later than the API key.',
  ),
});

export const CurrentSession = Type.Object({
  ...Session.properties,
  csrfToken: Type.String({
    description: 'Send it as `X-CSRF-Token` with every request of this session that is not a GET.',
  }),
});

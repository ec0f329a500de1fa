/** A user in responses: to the user's own key, and to the operator. */
import { Type } from 'typebox';
import type { User as UserRow } from '../store/users.ts';
import { rowSchema, Timestamp, Uuid } from './schemas.ts';

export const Me = Type.Object({ userId: Uuid });

export const User = rowSchema<UserRow>()({ ...Me.properties, email: Type.String(), createdAt: Timestamp });

/** A user, as the user's own key and the operator see one. */
import { Type } from 'typebox';
import type { User as UserRow } from '../store/users.ts';
import { rowSchema, Timestamp, Uuid } from './schemas.ts';

export const Me = Type.Object({ userId: Uuid });

export const User = rowSchema<UserRow>()({ ...Me.properties, email: Type.String(), createdAt: Timestamp });

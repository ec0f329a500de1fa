/** A replay, as the interface shows it. */
import { Type } from 'typebox';
import { type Replay as ReplayRow, replaySelections } from '../store/replays.ts';
import { NullableTimestamp, oneOf, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const Replay = rowSchema<ReplayRow>()({
  id: Uuid,
  webhookId: Uuid,
  since: Timestamp,
  until: Timestamp,
  status: oneOf(replaySelections),
  examined: Type.Integer({ description: 'Events looked at so far.' }),
  queued: Type.Integer({ description: 'Deliveries made or sent again.' }),
  createdAt: Timestamp,
  completedAt: Type.Unsafe<string | null>({
    ...NullableTimestamp,
    description: 'Null while it is under way.',
  }),
});

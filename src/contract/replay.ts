/** A replay in responses. */
import { Type } from 'typebox';
import { type Replay as ReplayRow, replaySelections } from '../store/replays.ts';
import { describe, NullableTimestamp, oneOf, rowSchema, Timestamp, Uuid } from './schemas.ts';

export const Replay = rowSchema<ReplayRow>()({
  id: Uuid,
  webhookId: Uuid,
  since: describe(Timestamp, 'Events from this time on.'),
  until: describe(Timestamp, 'Events before this time.'),
  status: describe(oneOf(replaySelections), 'Which events are sent again, by the state of their delivery.'),
  examined: Type.Integer({ description: 'Events that the replay has read so far.' }),
  queued: Type.Integer({ description: 'Deliveries that the replay has queued so far.' }),
  createdAt: Timestamp,
  completedAt: describe(NullableTimestamp, 'Null while the replay is running.'),
});

/** Memory for large bodies of requests. A body that comes slowly, while others need its memory, is cut with 408. */
import { SharedMemory, type SharedMemoryLimits } from '../lib/shared-memory.ts';
import { Problem } from '../problems.ts';

export class BodyMemory extends SharedMemory {
  constructor(limits: SharedMemoryLimits) {
    super(limits, tooSlow);
  }
}

function tooSlow(): Problem {
  return new Problem('request_timeout', {
    detail:
      'The body came slowly, and other requests waited for the memory that it took. Send the request again over a faster connection.',
    headers: { connection: 'close' },
  });
}

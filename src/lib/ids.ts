/** Ids: UUIDv7 for rows (sorted by time, so that indexes grow at one end) and short random text for people. */
import { v7 } from 'uuid';
import { takeRandom } from './randomness.ts';

let lastMs = 0;
let sequence = 0;

/** Every id is greater than the one before, also within a millisecond and when the clock goes back. */
export function newId(): string {
  const random = takeRandom(16);
  const now = Date.now();
  if (now > lastMs) {
    lastMs = now;
    sequence = random.readUInt32BE() >>> 2;
  } else {
    sequence += 1;
  }
  return v7({ random, msecs: lastMs, seq: sequence });
}

/** `length` URL-safe characters of randomness, 6 bits each. */
export function newPublicId(length = 10): string {
  return takeRandom(Math.ceil((length * 3) / 4))
    .toString('base64url')
    .slice(0, length);
}

const uuidFormat = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function isUuid(text: string): boolean {
  return uuidFormat.test(text);
}

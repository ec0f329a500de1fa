/** Ids: UUIDv7 for rows (they sort by time, so indexes grow at one end) and short random text for people. */
import { randomBytes, randomFillSync } from 'node:crypto';
import { v7 } from 'uuid';

/** Randomness for many ids at a time: asked for by 16 bytes it costs more than all the rest of an id. */
const randomness = Buffer.alloc(16 * 256);
let used = randomness.length;
let lastMs = 0;
let sequence = 0;

/** Each is greater than the one before, within a millisecond too and should the clock go back. */
export function newId(): string {
  if (used === randomness.length) {
    randomFillSync(randomness);
    used = 0;
  }
  const random = randomness.subarray(used, used + 16);
  used += 16;
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
  return randomBytes(Math.ceil((length * 3) / 4))
    .toString('base64url')
    .slice(0, length);
}

const uuidForm = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function isUuid(text: string): boolean {
  return uuidForm.test(text);
}

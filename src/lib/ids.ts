/** Ids: UUIDv7 for rows (sorted by time, so that indexes grow at one end) and short random text for people. */
import { createHash } from 'node:crypto';
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

/** The same parts give the same id. RFC 9562 §5.8: version 8 is for custom hashes. */
export function hashId(...parts: string[]): string {
  const hex = createHash('sha256').update(parts.join('\n')).digest('hex');
  const variant = '89ab'[Number.parseInt(hex.slice(16, 17), 16) % 4];
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-${variant}${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}

/** Ids: UUIDv7 for rows (they sort by time, so indexes grow at one end) and short random text for people. */
import { randomBytes } from 'node:crypto';
import { v7 } from 'uuid';

export function newId(): string {
  return v7();
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

/** Random tokens: of sessions and of sign-in links. Only their hashes are stored, as those of confirmation links. */
import { createHash, randomBytes } from 'node:crypto';

export function makeToken(): string {
  return randomBytes(32).toString('base64url');
}

export function isToken(text: string): boolean {
  return /^[\w-]{43}$/.test(text);
}

/** A fast hash is enough for 256 random bits. */
export function hashToken(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}

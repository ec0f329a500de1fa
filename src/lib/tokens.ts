/** Random tokens: of sessions, of sign-in links and of hooks. They are found by their hashes, as those of confirmation links. */
import { createHash, randomBytes } from 'node:crypto';

export function makeToken(): string {
  return randomBytes(32).toString('base64url');
}

export function isToken(text: string): boolean {
  return /^[\w-]{43}$/.test(text);
}

/** In lower case, because a path is read without regard to case. */
export function makeHookSecret(): string {
  return randomBytes(32).toString('hex');
}

export function isHookSecret(text: string): boolean {
  return /^[0-9a-f]{64}$/.test(text);
}

/** A fast hash is enough for 256 random bits. */
export function hashToken(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}

/** Compares secrets in constant time, whatever their lengths. */
import { createHash, timingSafeEqual } from 'node:crypto';

export function areEqualSecrets(given: string, expected: string): boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(given), digest(expected));
}

/**
 * Signed links: they give access to the raw bytes and attachments of one message without an API key. A link expires at the
 * end of a UTC day, seven days later, so that all delivery attempts of one day can send the same body.
 */
import { createHmac, createSecretKey, hkdfSync, type KeyObject, timingSafeEqual } from 'node:crypto';

const dayMs = 86_400_000;
const validDays = 7;

export interface MessageLinks {
  raw: string;
  attachment(n: number | string): string;
}

export interface Links {
  to(messageId: string, nowMs: number): MessageLinks;
  /** Whether the link was signed by this service for this message, and has not expired. */
  isValid(messageId: string, expires: string, signature: string, nowMs: number): boolean;
}

/** The first key signs; every key verifies, so that links survive a key rotation. */
export function makeLinks(secretKeys: readonly Buffer[], baseUrl: () => string): Links {
  const keys = secretKeys.map(deriveKey);
  const [current] = keys;
  if (!current) throw new Error('makeLinks needs at least one key');

  return {
    to(messageId, nowMs) {
      const expires = String(((Math.floor(nowMs / dayMs) + validDays + 1) * dayMs) / 1000);
      const query = `expires=${expires}&signature=${sign(current, messageId, expires).toString('base64url')}`;
      const path = `${baseUrl()}/messages/${messageId}`;
      return {
        raw: `${path}/raw?${query}`,
        attachment: (n) => `${path}/attachments/${n}?${query}`,
      };
    },
    isValid(messageId, expires, signature, nowMs) {
      const given = Buffer.from(signature, 'base64url');
      // Buffer skips what is not base64url.
      if (given.toString('base64url') !== signature) return false;
      const isSignedWith = (key: KeyObject) => {
        const expected = sign(key, messageId, expires);
        return given.length === expected.length && timingSafeEqual(given, expected);
      };
      return keys.some(isSignedWith) && Number(expires) * 1000 > nowMs;
    },
  };
}

/** A key for links only: a leak of it does not reveal the key that encrypts secrets. */
function deriveKey(secretKey: Buffer): KeyObject {
  return createSecretKey(Buffer.from(hkdfSync('sha256', secretKey, '', 'posthorn links', 32)));
}

function sign(key: KeyObject, messageId: string, expires: string): Buffer {
  return createHmac('sha256', key).update(`${messageId}\n${expires}`).digest();
}

/**
 * Signed links: the way to a message's raw bytes and attachments without an API key. Each is scoped to one message and good
 * until the end of the UTC day seven days on, so that one body serves every try of a day.
 */
import { createHmac, createSecretKey, hkdfSync, type KeyObject, timingSafeEqual } from 'node:crypto';

const dayMs = 86_400_000;
const daysGood = 7;

interface MessageLinks {
  raw: string;
  attachment(n: number | string): string;
}

export interface Links {
  to(messageId: string, nowMs: number): MessageLinks;
  /** Whether these are of a link that was made here, to this message, and is still good. */
  isGood(messageId: string, expires: string, signature: string, nowMs: number): boolean;
}

/** The first key signs, all of them verify, as with what is sealed. */
export function makeLinks(secretKeys: readonly Buffer[], baseUrl: () => string): Links {
  const keys = secretKeys.map(deriveKey);
  const [current] = keys;
  if (!current) throw new Error('Links need a key');

  return {
    to(messageId, nowMs) {
      const expires = String(((Math.floor(nowMs / dayMs) + daysGood + 1) * dayMs) / 1000);
      const query = `expires=${expires}&signature=${sign(current, messageId, expires).toString('base64url')}`;
      const path = `${baseUrl()}/messages/${messageId}`;
      return {
        raw: `${path}/raw?${query}`,
        attachment: (n) => `${path}/attachments/${n}?${query}`,
      };
    },
    isGood(messageId, expires, signature, nowMs) {
      const given = Buffer.from(signature, 'base64url');
      const isOurs = (key: KeyObject) => {
        const expected = sign(key, messageId, expires);
        return given.length === expected.length && timingSafeEqual(given, expected);
      };
      return keys.some(isOurs) && Number(expires) * 1000 > nowMs;
    },
  };
}

/** A key for links alone: what is learned of it says nothing about the one that seals secrets. */
function deriveKey(secretKey: Buffer): KeyObject {
  return createSecretKey(Buffer.from(hkdfSync('sha256', secretKey, '', 'posthorn links', 32)));
}

function sign(key: KeyObject, messageId: string, expires: string): Buffer {
  return createHmac('sha256', key).update(`${messageId}\n${expires}`).digest();
}

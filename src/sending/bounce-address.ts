/**
 * Bounce addresses: the envelope sender of a message to one recipient, `bounces+<token>@<bounce domain>`. The token says which
 * recipient it was made for and is signed, so that nobody else can report that a recipient bounced.
 * The token is base32 of 30 bytes, which are exactly 48 characters: message id (16), recipient number (2), day of expiry (2, days
 * since 1970), HMAC (10). The address is good until that UTC day begins, at least 30 days after it was made.
 */
import { createHmac, createSecretKey, hkdfSync, type KeyObject, timingSafeEqual } from 'node:crypto';

const prefix = 'bounces+';
const dayMs = 86_400_000;
const validDays = 30;
const signedBytes = 20;
const hmacBytes = 10;

interface SentRecipient {
  messageId: string;
  /** Its place among the recipients of the message, from 0. */
  recipient: number;
}

/** Keys for bounce addresses only: a leak of them does not reveal the key that encrypts secrets. */
export function deriveBounceKeys(secretKeys: readonly Buffer[]): KeyObject[] {
  return secretKeys.map((key) =>
    createSecretKey(Buffer.from(hkdfSync('sha256', key, '', 'posthorn bounce addresses', 32))),
  );
}

/** The first key signs. */
export function makeBounceAddress(
  [key]: readonly KeyObject[],
  { messageId, recipient }: SentRecipient,
  domain: string,
  nowMs: number,
): string {
  if (!key) throw new Error('makeBounceAddress needs at least one key');
  const signed = Buffer.alloc(signedBytes);
  signed.write(messageId.replaceAll('-', ''), 'hex');
  signed.writeUInt16BE(recipient, 16);
  signed.writeUInt16BE(Math.floor(nowMs / dayMs) + validDays + 1, 18);
  return `${prefix}${encodeBase32(Buffer.concat([signed, sign(key, signed)]))}@${domain}`;
}

/** In any case of letters: an address that only looks like ours is refused, not routed to an identity. */
export function isBounceAddress(localPart: string): boolean {
  return localPart.toLowerCase().startsWith(prefix);
}

/** Every key verifies, so that addresses survive a key rotation. */
export function readBounceAddress(
  keys: readonly KeyObject[],
  localPart: string,
  nowMs: number,
): SentRecipient | 'forged' | 'expired' {
  const token = localPart.startsWith(prefix) ? localPart.slice(prefix.length) : '';
  const bytes = decodeBase32(token);
  if (bytes?.length !== signedBytes + hmacBytes) return 'forged';
  const [signed, hmac] = [bytes.subarray(0, signedBytes), bytes.subarray(signedBytes)];
  if (!keys.some((key) => timingSafeEqual(sign(key, signed), hmac))) return 'forged';
  if (signed.readUInt16BE(18) * dayMs <= nowMs) return 'expired';
  const hex = signed.toString('hex', 0, 16);
  return {
    messageId: hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5'),
    recipient: signed.readUInt16BE(16),
  };
}

function sign(key: KeyObject, signed: Buffer): Buffer {
  return createHmac('sha256', key).update(signed).digest().subarray(0, hmacBytes);
}

/** RFC 4648 §6, in lower case and without padding. */
const alphabet = 'abcdefghijklmnopqrstuvwxyz234567';

/** Whole groups of 5 bytes, so that no character has unused bits. */
function encodeBase32(bytes: Buffer): string {
  let text = '';
  for (let i = 0; i < bytes.length; i += 5)
    for (let shift = 35, group = bytes.readUIntBE(i, 5); shift >= 0; shift -= 5)
      text += alphabet[Math.floor(group / 2 ** shift) % 32];
  return text;
}

/** Null: not whole groups of 8 characters of the alphabet. */
function decodeBase32(text: string): Buffer | null {
  if (!/^(?:[a-z2-7]{8})+$/.test(text) || text.length > 64) return null;
  const bytes = Buffer.alloc((text.length / 8) * 5);
  for (let i = 0; i < text.length; i += 8) {
    let group = 0;
    for (const character of text.slice(i, i + 8)) group = group * 32 + alphabet.indexOf(character);
    bytes.writeUIntBE(group, (i / 8) * 5, 5);
  }
  return bytes;
}

/**
 * The form of an API key: `ph_`, 32 random base62 characters (190 bits), then the CRC-32 of all that in six more.
 * Guarantee: a mistyped character or two swapped neighbours are noticed without asking the database, and secret
 * scanners can tell a key from other text.
 */
import { createHash, randomBytes as secureRandomBytes } from 'node:crypto';
import { crc32 } from 'node:zlib';

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const mark = 'ph_';
const secretLength = 32;
const checksumLength = 6;
const form = new RegExp(`^${mark}[0-9A-Za-z]{${secretLength + checksumLength}}$`);

export function makeApiKey(randomBytes: (size: number) => Uint8Array = secureRandomBytes): string {
  let key = mark;
  while (key.length < mark.length + secretLength) {
    for (const byte of randomBytes(mark.length + secretLength - key.length)) {
      // 248 is the last multiple of 62 in a byte: with the bytes above it, the first letters would come up more often.
      if (byte < 248) key += alphabet[byte % 62];
    }
  }
  return key + checksum(key);
}

export function isApiKey(text: string): boolean {
  return form.test(text) && checksum(text.slice(0, -checksumLength)) === text.slice(-checksumLength);
}

/** What is stored. A fast hash is enough for 190 random bits: there is no dictionary to try. */
export function hashApiKey(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}

/** What may be shown of a key so that its owner knows it again. */
export function describeApiKey(key: string): { prefix: string; suffix: string } {
  return { prefix: key.slice(0, 8), suffix: key.slice(-4) };
}

function checksum(text: string): string {
  let rest = crc32(text);
  let digits = '';
  while (digits.length < checksumLength) {
    digits = alphabet[rest % 62] + digits;
    rest = Math.floor(rest / 62);
  }
  return digits;
}

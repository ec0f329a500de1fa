/**
 * API keys: `ph_`, 32 random base62 characters (190 bits), then the CRC-32 of all these characters in six more.
 * Guarantees: a mistyped key is detected without the database, and secret scanners can recognise a key.
 */
import { createHash, randomBytes as secureRandomBytes } from 'node:crypto';
import { crc32 } from 'node:zlib';

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const start = 'ph_';
const secretLength = 32;
const checksumLength = 6;
const format = new RegExp(`^${start}[0-9A-Za-z]{${secretLength + checksumLength}}$`);

export function makeApiKey(randomBytes: (size: number) => Uint8Array = secureRandomBytes): string {
  let key = start;
  while (key.length < start.length + secretLength) {
    for (const byte of randomBytes(start.length + secretLength - key.length)) {
      // 248 is the largest multiple of 62 in a byte: larger bytes would make the first characters more frequent.
      if (byte < 248) key += alphabet[byte % 62];
    }
  }
  return key + checksum(key);
}

export function isApiKey(text: string): boolean {
  return format.test(text) && checksum(text.slice(0, -checksumLength)) === text.slice(-checksumLength);
}

/** The stored form. A fast hash is enough for 190 random bits: no dictionary helps an attacker. */
export function hashApiKey(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}

/** The parts by which the owner recognises a key. */
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

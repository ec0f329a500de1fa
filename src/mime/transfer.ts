/**
 * Decodes Content-Transfer-Encoding (RFC 2045 §6); line ends stay as they are. An unknown encoding means no encoding: senders
 * write "8-bit" and "utf-8". Guarantee: one pass; the result is never longer than the input.
 */
import { findBlankTail } from './lexical.ts';

export function decodeTransfer(bytes: Buffer, encoding: string): Buffer {
  if (encoding === 'base64') return decodeBase64(bytes);
  if (encoding === 'quoted-printable') return decodeQuotedPrintable(bytes);
  return bytes;
}

const sextets = new Int8Array(256).fill(-1);
[...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'].forEach((character, sextet) => {
  sextets[character.charCodeAt(0)] = sextet;
});

/**
 * §6.8: other characters are skipped. After padding the decoding starts again, because some programs pad each line.
 * Buffer's own decoder reads "-" and "_" as data and fails after padding.
 */
function decodeBase64(bytes: Buffer): Buffer {
  const decoded = Buffer.allocUnsafe(Math.floor((bytes.length * 3) / 4));
  let length = 0;
  let bits = 0;
  let pending = 0;
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i] ?? 0;
    const sextet = sextets[byte] ?? -1;
    if (sextet === -1) {
      if (byte === equals) pending = 0;
      continue;
    }
    bits = ((bits << 6) | sextet) & 0xffff;
    pending += 6;
    if (pending < 8) continue;
    pending -= 8;
    decoded[length++] = (bits >> pending) & 0xff;
  }
  return decoded.subarray(0, length);
}

const equals = 0x3d;
const lineFeed = 0x0a;
const carriageReturn = 0x0d;

function decodeQuotedPrintable(bytes: Buffer): Buffer {
  const decoded = Buffer.allocUnsafe(bytes.length);
  let length = 0;
  for (let start = 0; start < bytes.length; ) {
    let feed = start;
    while (feed < bytes.length && bytes[feed] !== lineFeed) feed++;
    const lineEnd = feed > start && bytes[feed - 1] === carriageReturn ? feed - 1 : feed;
    // §6.7 rule 3: blanks at the end of a line were added in transit.
    const end = findBlankTail(bytes, start, lineEnd);
    const isSoftBreak = end > start && bytes[end - 1] === equals;
    for (let i = start; i < (isSoftBreak ? end - 1 : end); i++) {
      const escaped = bytes[i] === equals && i + 2 < end ? readHex(bytes[i + 1], bytes[i + 2]) : -1;
      decoded[length++] = escaped === -1 ? (bytes[i] ?? 0) : escaped;
      if (escaped !== -1) i += 2;
    }
    for (let i = lineEnd; !isSoftBreak && i <= feed && i < bytes.length; i++)
      decoded[length++] = bytes[i] ?? 0;
    start = feed + 1;
  }
  return decoded.subarray(0, length);
}

/** -1: not two hexadecimal digits. Lower case is allowed: senders write it. */
function readHex(high = 0, low = 0): number {
  const value = readDigit(high) * 16 + readDigit(low);
  return value < 256 ? value : -1;
}

function readDigit(code: number): number {
  if (code >= 0x30 && code <= 0x39) return code - 0x30;
  const letter = code | 0x20;
  return letter >= 0x61 && letter <= 0x66 ? letter - 0x57 : 256;
}

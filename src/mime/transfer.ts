/**
 * Decodes Content-Transfer-Encoding (RFC 2045 §6); line ends stay as they are. An unknown encoding means no encoding: senders
 * write "8-bit" and "utf-8". Guarantee: linear time; the result is never longer than the input.
 */
import { findBlankTail } from './lexical.ts';

export interface Decoded {
  content: Buffer;
  /** Words before or after the data, such as the footer of a mailing list. */
  rest: Buffer;
}

const nothing = Buffer.alloc(0);

export function decodeTransfer(bytes: Buffer, encoding: string): Decoded {
  if (encoding === 'base64') return decodeBase64(bytes);
  if (encoding === 'quoted-printable') return { content: decodeQuotedPrintable(bytes), rest: nothing };
  if (/^(?:x-)?uue(?:ncode)?$/.test(encoding)) return decodeUuencode(bytes);
  return { content: bytes, rest: nothing };
}

const sextets = new Int8Array(256).fill(-1);
[...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'].forEach((character, sextet) => {
  sextets[character.charCodeAt(0)] = sextet;
});

/**
 * §6.8: other characters are skipped. Padding ends the data. Some programs pad each line: what comes after padding is data as long as
 * its lines are nothing but base64. Buffer's own decoder reads "-" and "_" as data and fails after padding.
 */
function decodeBase64(bytes: Buffer): Decoded {
  const decoded = Buffer.allocUnsafe(Math.floor((bytes.length * 3) / 4));
  let length = 0;
  let bits = 0;
  let pending = 0;
  let isPadded = false;
  /** After padding, the bytes before this offset are known to be data. */
  let checked = 0;
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i] ?? 0;
    const sextet = sextets[byte] ?? -1;
    if (isPadded && i >= checked && byte > space) {
      checked = findBase64End(bytes, i);
      if (checked === -1) return { content: decoded.subarray(0, length), rest: bytes.subarray(i) };
    }
    if (sextet === -1) {
      if (byte !== equals) continue;
      pending = 0;
      while (bytes[i + 1] === equals) i++;
      isPadded = true;
      continue;
    }
    bits = ((bits << 6) | sextet) & 0xffff;
    pending += 6;
    if (pending < 8) continue;
    pending -= 8;
    decoded[length++] = (bits >> pending) & 0xff;
  }
  return { content: decoded.subarray(0, length), rest: nothing };
}

/** The end of the line that begins at `start`; -1 if the line is not whole groups of base64. */
function findBase64End(bytes: Buffer, start: number): number {
  let end = start;
  while (end < bytes.length && bytes[end] !== lineFeed) end++;
  const tail = findBlankTail(bytes, start, bytes[end - 1] === carriageReturn ? end - 1 : end);
  for (let i = start; i < tail; i++) if (sextets[bytes[i] ?? 0] === -1 && bytes[i] !== equals) return -1;
  return (tail - start) % 4 === 0 ? end : -1;
}

const space = 0x20;
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

/** The format of POSIX uuencode: each line begins with its number of bytes; a space or "`" is zero. */
function decodeUuencode(bytes: Buffer): Decoded {
  const begin = /^begin [0-7]{3,4} /m.exec(bytes.toString('latin1'));
  if (!begin) return { content: bytes, rest: nothing };
  const decoded = Buffer.allocUnsafe(bytes.length);
  let length = 0;
  let next = bytes.indexOf(lineFeed, begin.index) + 1 || bytes.length;
  for (let line = next, isOver = false; line < bytes.length; line = next) {
    const feed = bytes.indexOf(lineFeed, line);
    const end = feed === -1 ? bytes.length : feed;
    const isEnd = /^end[ \t\r]*$/.test(bytes.toString('latin1', line, Math.min(end, line + 9)));
    if (isOver && !isEnd) break;
    next = end + 1;
    if (isEnd) break;
    // A line may have lost blanks at its end, which are zeros. The buffer bounds lines that promise more than they have.
    const count = Math.min(readSextet(bytes[line]), decoded.length - length);
    for (let i = 0; i < count; i++) {
      const at = line + 1 + Math.floor(i / 3) * 4 + (i % 3);
      const high = at < end ? readSextet(bytes[at]) : 0;
      const low = at + 1 < end ? readSextet(bytes[at + 1]) : 0;
      decoded[length++] = ((high << (2 + 2 * (i % 3))) | (low >> (4 - 2 * (i % 3)))) & 0xff;
    }
    isOver = count === 0;
  }
  const around = [bytes.subarray(0, begin.index), bytes.subarray(next)].filter(hasWords);
  return { content: decoded.subarray(0, length), rest: Buffer.concat(around) };
}

/** Blanks, line ends and what is not in the alphabet count as zero. */
function readSextet(byte = space): number {
  return byte > space && byte < 0x60 ? byte - space : 0;
}

function hasWords(bytes: Buffer): boolean {
  return bytes.some((byte) => byte > space);
}

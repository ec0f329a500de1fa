/**
 * Bytes and encoded words to text. postal-mime is used here and nowhere else: for its reading of RFC 2047 and
 * for the many names that charsets go by in mail.
 * Guarantee: never throws, and every string is well-formed and without NULs (PostgreSQL's jsonb takes none).
 */
import { isAscii, isUtf8 } from 'node:buffer';
import { decodeWords as decodeEncodedWords } from 'postal-mime';

/**
 * Text in the charset that its sender names. Where none is named, or "us-ascii", or one that nobody knows, bytes
 * that read as UTF-8 are UTF-8 and others windows-1252; RFC 2045 §5.2 would have them all be ASCII. UTF-7 stays
 * as it was written: decoding it is how tags were smuggled past filters, and WHATWG dropped it for that.
 */
export function decodeCharset(bytes: Buffer, name: string | undefined): string {
  const label = (name ?? '').trim().toLowerCase();
  if (/^utf-?8$/.test(label)) return decodeUtf8(bytes);
  if (/^$|ascii/.test(label)) return isUtf8(bytes) ? decodeUtf8(bytes) : decodeNamed(bytes, 'windows-1252');
  if (label === 'utf-16') return decodeUtf16(bytes);
  // An alias that only postal-mime knows may name a 7-bit encoding; those have no bytes above 127.
  if (!isKnown(label) && isUtf8(bytes) && !isAscii(bytes)) return decodeUtf8(bytes);
  return decodeNamed(bytes, label);
}

/** Text with its encoded words (RFC 2047) decoded. */
function decodeWords(text: string): string {
  if (!text.includes('=?')) return tidy(text);
  try {
    return tidy(decodeEncodedWords(text));
  } catch {
    return tidy(text);
  }
}

/** As `decodeWords`, for a value of one line: a decoded line break must not become one for who writes it on. */
export function decodeLine(text: string): string {
  return decodeWords(text)
    .replace(/\p{Cc}+/gu, ' ')
    .trim();
}

/** Well-formed and without NULs. */
export function tidy(text: string): string {
  return (text.includes('\0') ? text.replaceAll('\0', '') : text).toWellFormed();
}

function decodeUtf8(bytes: Buffer): string {
  return tidy(new TextDecoder().decode(bytes));
}

/** RFC 2781 §4.3: the byte order mark decides, and without one it is big-endian. */
function decodeUtf16(bytes: Buffer): string {
  const isLittle = bytes[0] === 0xff && bytes[1] === 0xfe;
  return decodeNamed(bytes, isLittle ? 'utf-16le' : 'utf-16be');
}

/** postal-mime's table of charsets is reached through an encoded word: that is what it exports. */
function decodeNamed(bytes: Buffer, label: string): string {
  const name = label.replace(/[^\w.:+-]/g, '') || 'windows-1252';
  try {
    return tidy(decodeEncodedWords(`=?${name}?B?${bytes.toString('base64')}?=`));
  } catch {
    return tidy(bytes.toString('latin1'));
  }
}

function isKnown(label: string): boolean {
  try {
    return new TextDecoder(label) !== undefined;
  } catch {
    return false;
  }
}

/**
 * Decodes bytes by the charset name that the sender gives. iconv-lite resolves the names. Node's TextDecoder decodes what it can,
 * iconv-lite the rest; iconv-lite loads its tables at first use, and never for UTF-8 and ASCII.
 * Guarantee: never throws; every string is well-formed and without NULs (PostgreSQL's jsonb refuses them).
 */
import { isAscii, isUtf8 } from 'node:buffer';
import { TextDecoder } from 'node:util';
import iconv from 'iconv-lite';

type Decode = (bytes: Buffer) => string;

const utf8 = new TextDecoder();
const windows1252 = new TextDecoder('windows-1252');

/** With no charset, "us-ascii" or an unknown one: UTF-8 or windows-1252 (RFC 2045 §5.2: ASCII). */
export function decodeCharset(bytes: Buffer, label: string | undefined): string {
  return tidy(decode(bytes, (label ?? '').trim().toLowerCase()));
}

/** Well-formed and without NULs. */
export function tidy(text: string): string {
  return (text.includes('\0') ? text.replaceAll('\0', '') : text).toWellFormed();
}

function decode(bytes: Buffer, label: string): string {
  const isNamedUtf8 = /^utf-?8$/.test(label);
  const name = isNamedUtf8 || /^$|ascii/.test(label) ? null : findName(label);
  const mark = readMark(bytes);
  if (mark && (name === null || western.test(name) || utf16.test(name)))
    return findTextDecoder(mark)?.decode(bytes) ?? '';
  if (isNamedUtf8) return decodeNamedUtf8(bytes);
  const decoder = name === null ? null : findDecoder(name, bytes);
  if (name === null || !decoder) return decodeUnnamed(bytes);
  const text = decoder(bytes);
  return isUtf8InFact(bytes, name, text) ? utf8.decode(bytes) : text;
}

/** A little damage, such as a character that was cut in half, does not make UTF-8 another charset. */
function decodeUnnamed(bytes: Buffer): string {
  if (isAscii(bytes)) return bytes.toString('latin1');
  const text = utf8.decode(bytes);
  if (isUtf8(bytes)) return text;
  const { good, bad } = countOthers(text);
  return good >= bad ? text : windows1252.decode(bytes);
}

/** Senders write UTF-8 over text in windows-1252. Damage alone is not enough: bytes must stand as they cannot in UTF-8 that was cut. */
function decodeNamedUtf8(bytes: Buffer): string {
  const text = utf8.decode(bytes);
  if (isUtf8(bytes)) return text;
  let alone = 0;
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i] ?? 0;
    if (byte < 0x80) continue;
    const neighbour = bytes[byte < 0xc0 ? i - 1 : i + 1];
    if (neighbour !== undefined && (neighbour < 0x80 || (byte >= 0xc0 && neighbour >= 0xc0))) alone++;
  }
  return countOthers(text).good >= alone ? text : windows1252.decode(bytes);
}

/** Characters that are not ASCII, and those that could not be decoded. */
function countOthers(text: string): { good: number; bad: number } {
  let good = 0;
  let bad = 0;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code === 0xfffd) bad++;
    else if (code > 0x7f) good++;
  }
  return { good, bad };
}

/** Their text hardly ever has even one character that is valid UTF-8. */
const western = /^(?:iso8859(?:1|15)|windows1252|macintosh)$/;
/** Their text hardly ever has two such characters and no other ones above 127. */
const otherAlphabets = /^(?:iso8859(?:[2-46-9]|10|13|14|16)|windows125\d|koi8\w+)$/;

/**
 * Valid UTF-8 is UTF-8, whatever its name says; but a short text in some charsets is valid UTF-8 by chance: the Chinese "模" in
 * GBK, the Thai "เขต". Those need more characters, or damage that the named charset would have.
 */
function isUtf8InFact(bytes: Buffer, name: string, text: string): boolean {
  if (isAscii(bytes) || !isUtf8(bytes)) return false;
  if (western.test(name) || text.includes('\ufffd')) return true;
  const enough = otherAlphabets.test(name) ? 2 : 8;
  let count = 0;
  for (let i = 0; i < bytes.length && count < enough; i++) if ((bytes[i] ?? 0) >= 0xc0) count++;
  return count === enough;
}

const utf16 = /^(?:utf16|ucs2)/;

/** In these charsets ASCII is ASCII, so that a field keeps its form: not in UTF-16, UTF-7 or EBCDIC. */
export function keepsAscii(label: string): boolean {
  return decodeCharset(printable, label) === printable.toString('latin1');
}

const printable = Buffer.from(Array.from({ length: 95 }, (_, i) => 0x20 + i));

/** RFC 2781 §3.2: the byte order mark. */
function readMark(bytes: Buffer): 'utf16le' | 'utf16be' | null {
  if (bytes.length % 2 === 1) return null;
  if (bytes[0] === 0xff && bytes[1] === 0xfe) return 'utf16le';
  return bytes[0] === 0xfe && bytes[1] === 0xff ? 'utf16be' : null;
}

/**
 * UTF-16 without a byte order mark: the first bytes of the units differ less than the second ones, because a text uses few
 * alphabets. RFC 2781 §4.3: the default is big-endian. Windows calls its little-endian form "unicode" and "ucs-2".
 */
function guessOrder(name: string, bytes: Buffer): 'utf16le' | 'utf16be' {
  const [even, odd] = [0, 1].map((from) => {
    const values = new Set<number>();
    for (let i = from; i < bytes.length && i < 1024; i += 2) values.add(bytes[i] ?? 0);
    return values.size;
  }) as [number, number];
  const isLittle = even === odd ? name === 'ucs2' : odd < even;
  return isLittle ? 'utf16le' : 'utf16be';
}

/** Null: the charset is unknown, or the bytes cannot be in it. */
function findDecoder(name: string, bytes: Buffer): Decode | null {
  if (name === 'utf7') return isAscii(bytes) ? decodeUtf7 : null;
  const native = findTextDecoder(name === 'utf16' || name === 'ucs2' ? guessOrder(name, bytes) : name);
  if (native) return (bytes) => native.decode(bytes);
  return iconv.encodingExists(name) ? (bytes) => iconv.decode(bytes, name) : null;
}

/** Names that iconv-lite lacks, or for which Node has a better table under another name. */
const moreNames: readonly (readonly [RegExp, string])[] = [
  [/utf8/, 'utf8'],
  [/utf7$/, 'utf7'],
  [/^(?:unicode(?:feff)?|iso10646ucs2)$/, 'ucs2'],
  [/^unicodefffe$/, 'utf16be'],
  [/^(?:iso2022jp.*|cp5022[012]|junet)$/, 'iso-2022-jp'],
  [/^(?:cp51932|eucpkdfmtjapanese)$/, 'eucjp'],
  [/^(?:gb2312(?:80)?|cp936)$/, 'gbk'],
  [/^uhc$/, 'cp949'],
  [/^koi8?$/, 'koi8r'],
  [/^iso88596[ei]$/, 'iso88596'],
  [/^macroman$/, 'macintosh'],
  [/^mac(?:cyrillic|ukrainian)$/, 'x-mac-cyrillic'],
];

/** Codecs of iconv-lite that are not charsets, and ASCII: iconv-lite would drop bytes above 127. */
const notCharsets = /^(?:ascii|binary|base64|hex|utf7imap)$/;

/** iconv-lite's name of the charset: "cp949" for "x-windows-949" and "KS_C_5601-1987". */
function findName(label: string): string | null {
  const known = foundNames.get(label);
  if (known !== undefined) return known;
  const found = searchName(label);
  if (foundNames.size === maxFoundNames) foundNames.clear();
  foundNames.set(label, found);
  return found;
}

/** By the sender's label. A message may use one label thousands of times. */
const foundNames = new Map<string, string | null>();
const maxFoundNames = 100;

function searchName(label: string): string | null {
  const plain = label
    .replace(/^(?:x-)+(?:ms-)?|^cs(?=euc|iso2022|iso8859|gb|unicode|windows)|:\d{4}$|[^0-9a-z]/g, '')
    .replace(/^(?:ibm|ms|windows|win|dos)0*(?=\d+$)/, 'cp');
  const more = moreNames.find(([pattern]) => pattern.test(plain));
  if (more) return more[1];
  // The first call fills `iconv.encodings`. The list avoids an exception (10 µs) for each of up to 30,000 unknown names.
  if (!iconv.encodings) iconv.encodingExists('ascii');
  const names: Readonly<Record<string, unknown>> = iconv.encodings ?? {};
  let name = plain;
  for (let next = names[name]; typeof next === 'string'; next = names[name]) name = next;
  return names[name] && !notCharsets.test(name) ? name : null;
}

/**
 * Node knows iconv-lite's names with a hyphen. "cp949" and "big5hkscs" must stay unknown to Node: its "euc-kr" lacks 8,822
 * syllables that mail uses, and its "big5" lacks the characters of Hong Kong.
 */
function findTextDecoder(name: string): TextDecoder | null {
  const known = textDecoders.get(name);
  if (known !== undefined) return known;
  const made = makeTextDecoder(name.replace(/^(euc|iso8859|koi8|shift|tis|ucs|utf|windows)(?=\w)/, '$1-'));
  textDecoders.set(name, made);
  return made;
}

/** By iconv-lite's names, so a sender cannot make it grow. To find out that Node lacks a charset takes 10 µs, for each word. */
const textDecoders = new Map<string, TextDecoder | null>();

function makeTextDecoder(name: string): TextDecoder | null {
  try {
    return new TextDecoder(name);
  } catch {
    return null;
  }
}

/** RFC 2152: "+" begins base64 of UTF-16. Our own because iconv-lite takes 2 seconds for 2 MiB of short runs. */
function decodeUtf7(bytes: Buffer): string {
  return bytes.toString('latin1').replace(/\+(?:([A-Za-z0-9+/]{3,})-?|-)/g, (_, run: string | undefined) => {
    if (run === undefined) return '+';
    const units = Buffer.from(run, 'base64');
    return units
      .subarray(0, units.length & ~1)
      .swap16()
      .toString('utf16le');
  });
}

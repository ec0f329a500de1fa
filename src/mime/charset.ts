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

/** With no charset, "us-ascii" or an unknown one: UTF-8 if the bytes are valid UTF-8, else windows-1252 (RFC 2045 §5.2: ASCII). */
export function decodeCharset(bytes: Buffer, label: string | undefined): string {
  const name = (label ?? '').trim().toLowerCase();
  if (/^utf-?8$/.test(name)) return tidy(utf8.decode(bytes));
  const decode = /^$|ascii/.test(name) ? null : findDecoder(name, bytes);
  return tidy(decode ? decode(bytes) : (isUtf8(bytes) ? utf8 : windows1252).decode(bytes));
}

/** Well-formed and without NULs. */
export function tidy(text: string): string {
  return (text.includes('\0') ? text.replaceAll('\0', '') : text).toWellFormed();
}

/** Null: the charset is unknown, or the bytes cannot be in it. */
function findDecoder(label: string, bytes: Buffer): Decode | null {
  const name = findName(label);
  if (name === null) return null;
  if (name === 'utf7') return isAscii(bytes) ? decodeUtf7 : null;
  // RFC 2781 §4.3: the byte order mark decides; the default is big-endian.
  const order = name === 'utf16' ? (bytes[0] === 0xff && bytes[1] === 0xfe ? 'le' : 'be') : '';
  const native = findTextDecoder(name + order);
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

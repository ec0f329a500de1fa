/**
 * Reads the fields of a header block: in order, with repeats, unfolded, encoded words not decoded. A line that is not a field (no
 * colon, or a name with spaces or non-ASCII characters) is skipped with its continuations: a name that only looks like "From" must
 * not count.
 * Guarantee: one pass, any bytes.
 */
import { isUtf8 } from 'node:buffer';
import { decodeCharset, keepsAscii, tidy } from './charset.ts';
import { escapeRawBytes } from './encoded-words.ts';
import { findBlankTail, isBlank, trimBlanks } from './lexical.ts';
import { readParameterized } from './parameters.ts';

export interface Field {
  name: string;
  value: string;
}

const lineFeed = 0x0a;
const carriageReturn = 0x0d;

/**
 * `block` ends before the empty line after the header. At most `max` fields are read. `bodyCharset` is for bytes that are not UTF-8,
 * if the header names no charset.
 */
export function readFields(block: Buffer, max: number, bodyCharset = ''): Field[] {
  const written: WrittenField[] = [];
  let start = 0;
  for (let i = 0; i < block.length && written.length < max; i++) {
    if (block[i] !== lineFeed || isBlank(block[i + 1])) continue;
    readField(block.subarray(start, i), written);
    start = i + 1;
  }
  if (written.length < max) readField(block.subarray(start), written);
  let charset: string | undefined;
  return written.map(({ name, bytes }) => {
    if (isUtf8(bytes)) return { name, value: unfold(bytes.toString()) };
    charset ??= findCharset(written, bodyCharset);
    return { name, value: unfold(decodeField(bytes, charset)) };
  });
}

interface WrittenField {
  name: string;
  bytes: Buffer;
}

/** Empty: not a charset that fields can be in. */
function findCharset(fields: readonly WrittenField[], bodyCharset: string): string {
  const type = fields.find(({ name }) => name.toLowerCase() === 'content-type');
  const { parameters } = readParameterized(unfold(type?.bytes.toString('latin1') ?? ''));
  const charset = parameters.get('charset') ?? bodyCharset;
  return keepsAscii(charset) ? charset : '';
}

/** The header block, or its whole lines within `maxBytes`. */
export function cutHeader(raw: Buffer, maxBytes: number): Buffer {
  const header = findHeaderEnd(raw, maxBytes);
  return header ? raw.subarray(0, header.end) : cutAtLine(raw, maxBytes);
}

/** Between the two is the empty line, or what stands for it. */
export interface HeaderEnd {
  end: number;
  bodyStart: number;
}

/** Null: the header does not end within `maxBytes`, or the message has no body. */
export function findHeaderEnd(raw: Buffer, maxBytes: number): HeaderEnd | null {
  const scan = scanHeader(raw, 0, false);
  const max = Math.min(raw.length, maxBytes);
  for (let line = 0, next = 0; line < max; line = next) {
    next = raw.indexOf(lineFeed, line) + 1 || raw.length;
    if (isEmptyLine(raw, line)) {
      scan.takeEmptyLine();
      return scan.missingEnd() ?? { end: line, bodyStart: next };
    }
    if (scan.isOverAt(line, next)) return scan.missingEnd();
  }
  return max < raw.length ? null : scan.missingEnd();
}

function isEmptyLine(bytes: Buffer, at: number): boolean {
  return bytes[at] === lineFeed || (bytes[at] === carriageReturn && bytes[at + 1] === lineFeed);
}

/** Fields that the header of a message has, unlike "Note: bring money" and "Status: open". */
const usualField = new RegExp(
  `^(?:${[
    'from|sender|reply-to|to|b?cc|subject|date|message-id|in-reply-to|references|received|mime-version|precedence|user-agent',
    '(?:arc|authentication|auto|content|delivered|disposition|dkim|domainkey|envelope|errors|feedback|list|mail|received)-.+',
    '(?:resent|return|thread|x)-.+',
  ].join('|')})$`,
);
/** RFC 2045 §3: other fields mean nothing in the header of a part; a forwarded message has them in its text. */
const usualPartField = /^content-/;
/** So much after the first line that is not a field, damage would have ended. */
const maxDamageBytes = 4096;

export interface HeaderScan {
  /** Takes the next line; `next` is the offset after it. True: the header ended before this line. */
  isOverAt(line: number, next: number): boolean;
  /** The header ends here, unless `missingEnd` says otherwise. */
  takeEmptyLine(): void;
  /** Where the body begins although no empty line says so. */
  missingEnd(): HeaderEnd | null;
  /** Lines were skipped because the header goes on after them, or the body begins with lines that are none of it. */
  hasDamage(): boolean;
}

/**
 * Finds the end of a header that has no empty line, or a line of blanks in its place: the first line that is not a field. If a
 * usual field follows that the header does not have yet, the line was damage and the header goes on. If an empty line follows and
 * the header says that the line cannot be body, the line was damage too. The parser and the verification of signatures both use
 * this, so that what is shown as body is what was signed as body.
 */
export function scanHeader(raw: Buffer, start: number, isPart: boolean): HeaderScan {
  const usual = isPart ? usualPartField : usualField;
  /** Where the fields begin. Their names are read only if a line is not a field: tidy mail costs little. */
  const fields: number[] = [];
  const seen = new Set<string>();
  let found: HeaderEnd | null = null;
  /** RFC 5322 §4.2: a line of blanks may be part of a folded field. Only a line after it shows that it was not. */
  let isCertain = false;
  let hasWords = false;
  let hasDamage = false;

  const isNewField = (line: number): boolean => {
    for (const field of fields.splice(0)) seen.add(readFieldName(raw, field));
    const name = readFieldName(raw, line);
    return usual.test(name) && !seen.has(name);
  };

  return {
    isOverAt(line, next) {
      const isField = findColon(raw, line) !== -1;
      if (found && isField && isNewField(line)) {
        hasDamage ||= hasWords;
        found = null;
      }
      if (isField && !found) {
        fields.push(line);
        hasWords = false;
        return false;
      }
      const hasField = fields.length > 0 || seen.size > 0;
      const isContinuation = hasField && (isBlank(raw[line]) || raw[line] === carriageReturn);
      if (!found && !isContinuation) found = { end: line, bodyStart: line };
      else if (!found && isBlankLine(raw, line, next)) {
        found = { end: line, bodyStart: next };
        isCertain = false;
      }
      if (!found || (isContinuation && !isCertain)) return false;
      isCertain = true;
      hasWords ||= !isField && !isSeparator(raw, line);
      return line - found.end > maxDamageBytes;
    },
    takeEmptyLine() {
      if (!isCertain || !found || !isDamage(raw, start, found)) return;
      hasDamage = true;
      found = null;
    },
    missingEnd: () => (isCertain ? found : null),
    hasDamage: () => hasDamage || (isCertain && found !== null && isDamage(raw, start, found)),
  };
}

/** Base64 may end in "=". */
const parameter = /^[^\s"(),/:;<=>@[\\\]]+[ \t]*=[ \t]*[^\s=]/;
const brokenField = /^[!-9;-~][^:]*:/;
const base64 = /^[A-Za-z0-9+/]+=*\s*$/;

/**
 * The line that the body would begin with is a parameter without the blank before it, or not of the type that the fields before it
 * name: not base64, or a field with a bad name instead of a file.
 */
function isDamage(raw: Buffer, start: number, { end, bodyStart }: HeaderEnd): boolean {
  // A line of blanks stands for the empty line.
  if (bodyStart > end) return false;
  const [line = ''] = raw.toString('latin1', end, end + 2 * maxName).split('\n', 1);
  const fields = readFields(raw.subarray(start, end), Infinity);
  const find = (name: string) => fields.find((field) => field.name.toLowerCase() === name)?.value ?? '';
  const last = fields.at(-1);
  if (/^content-/i.test(last?.name ?? '') && last?.value.endsWith(';') && parameter.test(line)) return true;
  if (/^base64\b/i.test(find('content-transfer-encoding'))) return !base64.test(line);
  return (
    /^(?:application|audio|font|image|model|video)\//i.test(find('content-type')) && brokenField.test(line)
  );
}

function isBlankLine(raw: Buffer, line: number, next: number): boolean {
  let at = line;
  while (isBlank(raw[at]) || raw[at] === carriageReturn || raw[at] === lineFeed) at++;
  return at >= next;
}

/** The line before each message in a mailbox file, perhaps escaped. */
function isSeparator(raw: Buffer, line: number): boolean {
  return /^>?From /.test(raw.toString('latin1', line, line + 6));
}

export function cutAtLine(block: Buffer, maxBytes: number): Buffer {
  return block.length <= maxBytes ? block : block.subarray(0, block.lastIndexOf(lineFeed, maxBytes) + 1);
}

function readField(bytes: Buffer, fields: WrittenField[]): void {
  const colon = findColon(bytes, 0);
  if (colon === -1) return;
  const name = bytes.toString('latin1', 0, findBlankTail(bytes, 0, colon));
  fields.push({ name, bytes: bytes.subarray(colon + 1) });
}

/** RFC 6532: UTF-8. Senders also write bytes in the charset of the body; those in an encoded word are in the charset of the word. */
function decodeField(bytes: Buffer, charset: string): string {
  const escaped = Buffer.from(escapeRawBytes(bytes.toString('latin1')), 'latin1');
  const text = decodeCharset(escaped, charset);
  return text.includes('\ufffd') ? decodeCharset(escaped, undefined) : text;
}

const maxName = 998;

/** The colon of the field that begins at `line`; -1 if the line is not a field. A line that begins with a tag or a link is text. */
function findColon(bytes: Buffer, line: number): number {
  let end = line;
  while (isNameByte(bytes[end]) && end - line <= maxName) end++;
  let colon = end;
  // RFC 5322 §4.5: the old form allows blanks before the colon.
  while (isBlank(bytes[colon])) colon++;
  if (bytes[colon] !== 0x3a || end === line || end - line > maxName || bytes[line] === 0x3c) return -1;
  const isLink = bytes[colon + 1] === 0x2f && bytes[colon + 2] === 0x2f;
  return isLink && /^(?:https?|ftp)$/i.test(bytes.toString('latin1', line, end)) ? -1 : colon;
}

/** In lower case. */
function readFieldName(bytes: Buffer, line: number): string {
  const end = findBlankTail(bytes, line, findColon(bytes, line));
  return bytes.toString('latin1', line, end).toLowerCase();
}

/** Printable ASCII without space and colon. */
function isNameByte(byte = 0): boolean {
  return byte > 0x20 && byte < 0x7f && byte !== 0x3a;
}

/** RFC 5322 §2.2.3: unfolding removes the line break and keeps the blanks after it. A lone CR is not allowed. */
function unfold(text: string): string {
  return tidy(trimBlanks(text.replace(/\r?\n/g, '').replace(/\r+/g, ' ')));
}

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
  for (const field of listFields(block, max)) written.push(field);
  return decodeLater(block, written, bodyCharset);
}

/**
 * RFC 2045 §3: of the header of a part only these count. Of each name the first field is read. `count`: of all fields, at most `max`.
 */
export function readContentFields(block: Buffer, max: number): { fields: Field[]; count: number } {
  const { first, count } = listContentFields(block, max);
  return { fields: decodeLater(block, [...first.values()], ''), count };
}

const contentNames = ['type', 'disposition', 'transfer-encoding', 'id'].map((name) => `content-${name}`);

function listContentFields(block: Buffer, max: number) {
  const first = new Map<string, WrittenField>();
  let last: WrittenField | undefined;
  let count = 0;
  for (const field of listFields(block, max)) {
    count++;
    last = field;
    const length = field.nameEnd - field.nameStart;
    if (!contentNames.some((name) => name.length === length)) continue;
    const name = readName(block, field).toLowerCase();
    if (contentNames.includes(name) && !first.has(name)) first.set(name, field);
  }
  return { first, last, count };
}

/** Offsets in a header block. */
interface WrittenField {
  nameStart: number;
  nameEnd: number;
  start: number;
  end: number;
}

function* listFields(block: Buffer, max: number): Generator<WrittenField> {
  let count = 0;
  for (let nameStart = 0, end = 0; nameStart < block.length && count < max; nameStart = end + 1) {
    end = findFieldEnd(block, nameStart);
    const colon = findColon(block, nameStart);
    if (colon === -1) continue;
    yield { nameStart, nameEnd: findBlankTail(block, nameStart, colon), start: colon + 1, end };
    count++;
  }
}

/** The offset of the line feed after the last line of the field, or the end of the block. */
function findFieldEnd(block: Buffer, line: number): number {
  let end = line;
  while (end < block.length && (block[end] !== lineFeed || isBlank(block[end + 1]))) end++;
  return end;
}

function readName(block: Buffer, { nameStart, nameEnd }: WrittenField): string {
  return block.toString('latin1', nameStart, nameEnd);
}

/** Decodes a value when it is read first: a header may have thousands, of which few are used. */
class LazyField implements Field {
  readonly name: string;
  readonly #written: WrittenField;
  readonly #decode: (field: WrittenField) => string;
  #value: string | undefined;

  constructor(name: string, written: WrittenField, decode: (field: WrittenField) => string) {
    this.name = name;
    this.#written = written;
    this.#decode = decode;
  }

  get value(): string {
    this.#value ??= this.#decode(this.#written);
    return this.#value;
  }
}

function decodeLater(block: Buffer, written: readonly WrittenField[], bodyCharset: string): Field[] {
  let charset: string | undefined;
  const decode = ({ start, end }: WrittenField): string => {
    const bytes = block.subarray(start, end);
    if (isUtf8(bytes)) return unfold(bytes.toString());
    charset ??= findCharset(block, written, bodyCharset);
    return unfold(decodeField(bytes, charset));
  };
  return written.map((field) => new LazyField(readName(block, field), field, decode));
}

/** Empty: not a charset that fields can be in. */
function findCharset(block: Buffer, fields: readonly WrittenField[], bodyCharset: string): string {
  const type = fields.find((field) => readName(block, field).toLowerCase() === 'content-type');
  const written = type ? block.toString('latin1', type.start, type.end) : '';
  const charset = readParameterized(unfold(written)).parameters.get('charset') ?? bodyCharset;
  // ISO-2022 has no bytes above 127.
  return keepsAscii(charset) && !/^(?:cs)?iso-?2022/i.test(charset.trim()) ? charset : '';
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
  const block = raw.subarray(start, end);
  const { first, last } = listContentFields(block, Infinity);
  const read = (field: WrittenField | undefined) =>
    field ? unfold(block.toString('latin1', field.start, field.end)) : '';
  const isOpen = last && /^content-/i.test(readName(block, last)) && read(last).endsWith(';');
  if (isOpen && parameter.test(line)) return true;
  if (/^base64\b/i.test(read(first.get('content-transfer-encoding')))) return !base64.test(line);
  return (
    /^(?:application|audio|font|image|model|video)\//i.test(read(first.get('content-type'))) &&
    brokenField.test(line)
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

/** RFC 6532: UTF-8. Senders also write bytes in the charset of the body; those in an encoded word are in the charset of the word. */
function decodeField(bytes: Buffer, charset: string): string {
  const hasWords = bytes.includes('=?');
  const escaped = hasWords ? Buffer.from(escapeRawBytes(bytes.toString('latin1')), 'latin1') : bytes;
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

/**
 * Reads the fields of a header block: in order, with repeats, unfolded, encoded words not decoded. A line that is not a field (no
 * colon, or a name with spaces or non-ASCII characters) is skipped with its continuations: a name that only looks like "From" must
 * not count.
 * Guarantee: one pass, any bytes.
 */
import { isUtf8 } from 'node:buffer';
import { decodeCharset, tidy } from './charset.ts';
import { escapeRawBytes } from './encoded-words.ts';
import { isBlank, trimBlanks } from './lexical.ts';

export interface Field {
  name: string;
  value: string;
}

const lineFeed = 0x0a;
const carriageReturn = 0x0d;

/** `block` ends before the empty line after the header. At most `max` fields are read. */
export function readFields(block: Buffer, max: number): Field[] {
  const fields: Field[] = [];
  let start = 0;
  for (let i = 0; i < block.length && fields.length < max; i++) {
    if (block[i] !== lineFeed || isBlank(block[i + 1])) continue;
    readField(block.subarray(start, i), fields);
    start = i + 1;
  }
  if (fields.length < max) readField(block.subarray(start), fields);
  return fields;
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
  const scan = scanHeader(raw);
  const max = Math.min(raw.length, maxBytes);
  for (let line = 0, next = 0; line < max; line = next) {
    next = raw.indexOf(lineFeed, line) + 1 || raw.length;
    if (isEmptyLine(raw, line)) return scan.missingEnd() ?? { end: line, bodyStart: next };
    if (scan.isOverAt(line, next)) return scan.missingEnd();
  }
  return max < raw.length ? null : scan.missingEnd();
}

function isEmptyLine(bytes: Buffer, at: number): boolean {
  return bytes[at] === lineFeed || (bytes[at] === carriageReturn && bytes[at + 1] === lineFeed);
}

/** Fields that mail has, unlike "Note: bring money". */
const usualField = new RegExp(
  `^(?:${[
    'from|sender|reply-to|to|b?cc|subject|date|message-id|in-reply-to|references|received|mime-version|priority|importance',
    'precedence|organization|user-agent|keywords|comments|auto-submitted|errors-to|feedback-id|status|lines',
    '(?:arc|authentication|content|delivered|disposition|dkim|domainkey|envelope|list|mail|received|resent|return|thread|x)-.+',
  ].join('|')})$`,
);
/** So much after the first line that is not a field, damage would have ended. */
const maxDamageBytes = 4096;

export interface HeaderScan {
  /** Takes the next line; `next` is the offset after it. True: the header ended before this line. */
  isOverAt(line: number, next: number): boolean;
  /** Where the body begins although no empty line says so. */
  missingEnd(): HeaderEnd | null;
  /** Lines were skipped because the header goes on after them. */
  hasDamage(): boolean;
}

/**
 * Finds the end of a header that has no empty line, or a line of blanks in its place: the first line that is not a field. If a
 * usual field follows that the header does not have yet, the line was damage and the header goes on. The parser and the
 * verification of signatures both use this, so that what is shown as body is what was signed as body.
 */
export function scanHeader(raw: Buffer): HeaderScan {
  const seen = new Set<string>();
  let hasField = false;
  let found: HeaderEnd | null = null;
  /** RFC 5322 §4.2: a line of blanks may be part of a folded field. Only a line after it shows that it was not. */
  let isCertain = false;
  let hasWords = false;
  let hasDamage = false;
  return {
    isOverAt(line, next) {
      const name = readFieldName(raw, line)?.toLowerCase();
      if (name !== undefined && usualField.test(name) && !seen.has(name)) {
        seen.add(name);
        hasDamage ||= hasWords;
        found = null;
      }
      if (name !== undefined && !found) {
        hasField = true;
        hasWords = false;
        return false;
      }
      const isContinuation = hasField && (isBlank(raw[line]) || raw[line] === carriageReturn);
      if (!found && !isContinuation) found = { end: line, bodyStart: line };
      else if (!found && isBlankLine(raw, line, next)) {
        found = { end: line, bodyStart: next };
        isCertain = false;
      }
      if (!found || (isContinuation && !isCertain)) return false;
      isCertain = true;
      hasWords ||= name === undefined && !isSeparator(raw, line);
      return line - found.end > maxDamageBytes;
    },
    missingEnd: () => (isCertain ? found : null),
    hasDamage: () => hasDamage,
  };
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

function readField(bytes: Buffer, fields: Field[]): void {
  const name = readFieldName(bytes, 0);
  if (name === null) return;
  const text = decodeField(bytes);
  fields.push({ name, value: unfold(text.slice(text.indexOf(':') + 1)) });
}

/** RFC 6532: UTF-8. Bytes that are not UTF-8 are windows-1252, or in the charset of the encoded word around them. */
function decodeField(bytes: Buffer): string {
  if (isUtf8(bytes)) return bytes.toString();
  return decodeCharset(Buffer.from(escapeRawBytes(bytes.toString('latin1')), 'latin1'), undefined);
}

const colon = 0x3a;
const maxName = 998;

/** Null: the line is not a field. A line that begins with a tag or a link is text. */
function readFieldName(bytes: Buffer, line: number): string | null {
  let end = line;
  while (isNameByte(bytes[end]) && end - line <= maxName) end++;
  let at = end;
  // RFC 5322 §4.5: the old form allows blanks before the colon.
  while (isBlank(bytes[at])) at++;
  if (bytes[at] !== colon || end === line || end - line > maxName || bytes[line] === 0x3c) return null;
  const name = bytes.toString('latin1', line, end);
  const isLink = /^(?:https?|ftp)$/i.test(name) && bytes[at + 1] === 0x2f && bytes[at + 2] === 0x2f;
  return isLink ? null : name;
}

function isNameByte(byte = 0): boolean {
  return byte > 0x20 && byte < 0x7f && byte !== colon;
}

/** RFC 5322 §2.2.3: unfolding removes the line break and keeps the blanks after it. A lone CR is not allowed. */
function unfold(text: string): string {
  return tidy(trimBlanks(text.replace(/\r?\n/g, '').replace(/\r+/g, ' ')));
}

/**
 * Reads the fields of a header block: in order, with repeats, unfolded, encoded words not decoded.
 * A field that is not valid UTF-8 (RFC 6532) is read as latin1, so that no byte is lost. A line that is not a field (no colon, or a
 * name with spaces or non-ASCII characters) is skipped with its continuations: a name that only looks like "From" must not count.
 * Guarantee: one pass, any bytes.
 */
import { isUtf8 } from 'node:buffer';
import { tidy } from './charset.ts';
import { isBlank, trimBlanks } from './lexical.ts';

export interface Field {
  name: string;
  value: string;
}

const lineFeed = 0x0a;

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
  const end = findHeaderEnd(raw, maxBytes);
  return end === -1 ? cutAtLine(raw, maxBytes) : raw.subarray(0, end);
}

/** The offset of the empty line after the header; -1 if there is none within `maxBytes`. */
export function findHeaderEnd(raw: Buffer, maxBytes: number): number {
  const start = raw.subarray(0, maxBytes);
  if (isEmptyLine(start, 0)) return 0;
  for (let feed = start.indexOf(lineFeed); feed !== -1; feed = start.indexOf(lineFeed, feed + 1)) {
    if (isEmptyLine(start, feed + 1)) return feed + 1;
  }
  return -1;
}

function isEmptyLine(bytes: Buffer, at: number): boolean {
  return bytes[at] === lineFeed || (bytes[at] === 0x0d && bytes[at + 1] === lineFeed);
}

export function cutAtLine(block: Buffer, maxBytes: number): Buffer {
  return block.length <= maxBytes ? block : block.subarray(0, block.lastIndexOf(lineFeed, maxBytes) + 1);
}

function readField(bytes: Buffer, fields: Field[]): void {
  const text = bytes.toString(isUtf8(bytes) ? 'utf8' : 'latin1');
  const colon = text.indexOf(':');
  if (colon === -1) return;
  // RFC 5322 §4.5: the old form allows blanks before the colon.
  const name = trimBlanks(text.slice(0, colon));
  if (!/^[!-9;-~]{1,998}$/.test(name) || text.startsWith(' ') || text.startsWith('\t')) return;
  fields.push({ name, value: unfold(text.slice(colon + 1)) });
}

/** RFC 5322 §2.2.3: unfolding removes the line break and keeps the blanks after it. A lone CR is not allowed. */
function unfold(text: string): string {
  return tidy(trimBlanks(text.replace(/\r?\n/g, '').replace(/\r+/g, ' ')));
}

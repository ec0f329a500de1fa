/**
 * The fields of a header block: in order, repeats kept, unfolded, encoded words as they were written.
 * A field that is not valid UTF-8 (RFC 6532) is read as latin1, one character for each byte, so that none is lost.
 * A line that is no field (no colon, or a name with spaces or characters beyond ASCII in it) is left out with its
 * continuations: a name that only looks like "From" must not become one.
 * Guarantee: one pass, any bytes.
 */
import { isUtf8 } from 'node:buffer';
import { tidy } from './charset.ts';
import { trimBlanks } from './lexical.ts';

export interface Field {
  name: string;
  value: string;
}

const lineFeed = 0x0a;

/** `block` ends before the empty line that ends the header. No more than the first `max` fields are read. */
export function readFields(block: Buffer, max: number): Field[] {
  const fields: Field[] = [];
  let start = 0;
  for (let i = 0; i < block.length && fields.length < max; i++) {
    if (block[i] !== lineFeed || isContinued(block, i + 1)) continue;
    readField(block.subarray(start, i), fields);
    start = i + 1;
  }
  if (fields.length < max) readField(block.subarray(start), fields);
  return fields;
}

/** The header block of a message, and of one that is longer than `maxBytes` the lines that fit. */
export function cutHeader(raw: Buffer, maxBytes: number): Buffer {
  const end = findHeaderEnd(raw, maxBytes);
  return end === -1 ? cutAtLine(raw, maxBytes) : raw.subarray(0, end);
}

/** Where the empty line begins that ends the header, or -1 when it does not within the first `maxBytes`. */
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

function isContinued(block: Buffer, next: number): boolean {
  return block[next] === 0x20 || block[next] === 0x09;
}

function readField(bytes: Buffer, fields: Field[]): void {
  const text = bytes.toString(isUtf8(bytes) ? 'utf8' : 'latin1');
  const colon = text.indexOf(':');
  if (colon === -1) return;
  // RFC 5322 §4.5: blanks before the colon are the old form, and read.
  const name = trimBlanks(text.slice(0, colon));
  if (!/^[!-9;-~]{1,998}$/.test(name) || text.startsWith(' ') || text.startsWith('\t')) return;
  fields.push({ name, value: unfold(text.slice(colon + 1)) });
}

/** RFC 5322 §2.2.3: only the line break goes, the blanks after it stay. A lone CR may not be in a value at all. */
function unfold(text: string): string {
  return tidy(trimBlanks(text.replace(/\r?\n/g, '').replace(/\r+/g, ' ')));
}

/** The values of the named fields, by lower-cased name. */
export function gatherValues(fields: readonly Field[], names: readonly string[]): Map<string, string[]> {
  const gathered = new Map<string, string[]>(names.map((name) => [name, []]));
  for (const { name, value } of fields) gathered.get(name.toLowerCase())?.push(value);
  return gathered;
}

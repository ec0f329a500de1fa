/**
 * The canonical forms that signatures are made over: of header fields and of bodies (RFC 6376 §3.4). A bare LF ends a line as
 * CRLF does. Guarantee: time grows with the bytes and with nothing else.
 */
import { createHash } from 'node:crypto';
import { trimBlanks } from '../mime/lexical.ts';

export type Form = 'simple' | 'relaxed';

const [tab, lineFeed, carriageReturn, space] = [0x09, 0x0a, 0x0d, 0x20];

/** Of a field as it was written, by CRLF, each character a byte. Without the line's end. */
export function canonicalField(field: string, form: Form): string {
  if (form === 'simple') return field;
  const colon = field.indexOf(':');
  const value = field
    .slice(colon + 1)
    .replaceAll('\r\n', '')
    .replace(/[ \t]+/g, ' ');
  return `${trimBlanks(field.slice(0, colon)).toLowerCase()}:${trimBlanks(value)}`;
}

export interface BodyHash {
  hash: Buffer;
  /** Of the canonical form, of which no more than the first `limit` bytes are hashed. */
  length: number;
}

/** What is hashed at once. Nothing is under way between two calls, so all share it. */
const chunk = Buffer.allocUnsafeSlow(16 * 1024);

export function hashBody(body: Uint8Array, form: Form, algorithm: string, limit = Infinity): BodyHash {
  const hash = createHash(algorithm);
  let length = 0;
  const add = (bytes: number) => {
    if (length < limit) hash.update(chunk.subarray(0, Math.min(bytes, limit - length)));
    length += bytes;
  };
  const state: Place = { at: 0, lineEnds: 0, isBlank: false };
  while (state.at < body.length) add(fillChunk(body, form === 'relaxed', state));
  // Of an empty body the simple form is an empty line, and the relaxed one is nothing.
  if (form === 'simple' || length > 0) add(chunk.write('\r\n'));
  return { hash: hash.digest(), length };
}

interface Place {
  at: number;
  /** Ends of lines, and a blank, that count only when something follows. */
  lineEnds: number;
  isBlank: boolean;
}

/** Goes on until the chunk is full or the body ends; returns how much is in it. Local variables make it four times as fast. */
function fillChunk(body: Uint8Array, isRelaxed: boolean, place: Place): number {
  let { at, lineEnds, isBlank } = place;
  let filled = 0;
  const room = chunk.length - 2;
  for (; at < body.length && filled < room; at++) {
    const byte = body[at] as number;
    if (byte === lineFeed || (byte === carriageReturn && body[at + 1] === lineFeed)) {
      if (byte === carriageReturn) at++;
      lineEnds++;
      isBlank = false;
    } else if (isRelaxed && (byte === space || byte === tab)) {
      isBlank = true;
    } else if (lineEnds > 0) {
      chunk[filled++] = carriageReturn;
      chunk[filled++] = lineFeed;
      lineEnds--;
      // This byte is for later.
      at--;
    } else {
      if (isBlank) chunk[filled++] = space;
      isBlank = false;
      chunk[filled++] = byte;
    }
  }
  place.at = at;
  place.lineEnds = lineEnds;
  place.isBlank = isBlank;
  return filled;
}

/**
 * The canonical forms of header fields and bodies that signatures cover (RFC 6376 §3.4). A bare LF counts as CRLF.
 * Guarantee: linear time.
 */
import { createHash } from 'node:crypto';
import { trimBlanks } from '../mime/lexical.ts';

export type CanonicalForm = 'simple' | 'relaxed';

const [tab, lineFeed, carriageReturn, space] = [0x09, 0x0a, 0x0d, 0x20];

/** `field`: as it was written, with CRLF, one character for each byte. The result has no line end. */
export function canonicalField(field: string, form: CanonicalForm): string {
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
  /** Of the whole canonical form; only its first `limit` bytes are hashed. */
  length: number;
}

/** Shared by all calls: `hashBody` is synchronous and leaves nothing in it. */
const chunk = Buffer.allocUnsafeSlow(16 * 1024);

export function hashBody(
  body: Uint8Array,
  form: CanonicalForm,
  algorithm: string,
  limit = Infinity,
): BodyHash {
  const hash = createHash(algorithm);
  let length = 0;
  const add = (bytes: number) => {
    if (length < limit) hash.update(chunk.subarray(0, Math.min(bytes, limit - length)));
    length += bytes;
  };
  const state: ScanState = { at: 0, lineEnds: 0, isBlank: false };
  while (state.at < body.length) add(fillChunk(body, form === 'relaxed', state));
  // The simple form of an empty body is an empty line; the relaxed form is nothing.
  if (form === 'simple' || length > 0) add(chunk.write('\r\n'));
  return { hash: hash.digest(), length };
}

interface ScanState {
  at: number;
  /** Line ends and a blank that count only if something follows. */
  lineEnds: number;
  isBlank: boolean;
}

/** Returns how many bytes it put into `chunk`. Local variables make it four times as fast. */
function fillChunk(body: Uint8Array, isRelaxed: boolean, state: ScanState): number {
  let { at, lineEnds, isBlank } = state;
  let filled = 0;
  for (; at < body.length && filled < chunk.length - 2; at++) {
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
      // The same byte again, until all line ends are written.
      at--;
    } else {
      if (isBlank) chunk[filled++] = space;
      isBlank = false;
      chunk[filled++] = byte;
    }
  }
  Object.assign(state, { at, lineEnds, isBlank });
  return filled;
}

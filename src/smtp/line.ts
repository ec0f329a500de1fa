/** Cuts command lines from the bytes that a client sent. Pure. Guarantee: of a line that is too long nothing is kept. */
const nothing = Buffer.alloc(0);
const lineFeed = 10;
const carriageReturn = 13;
/** So many times `maxLineBytes` without an end: the client does not send commands. */
const endlessFactor = 32;

interface TakenLine {
  /** Null: its end has not arrived yet. */
  line: Buffer | 'too long' | 'endless' | null;
  /** The bytes after the line. */
  rest: Buffer;
  /** How many bytes of a too long line were dropped, for the next call. */
  skipped: number;
}

/** A bare LF ends a command too: people type it, and unlike in DATA nothing can be smuggled with it. */
export function takeLine(bytes: Buffer, skipped: number, maxLineBytes: number): TakenLine {
  const end = bytes.indexOf(lineFeed);
  const length = skipped + (end === -1 ? bytes.length : end + 1);
  const isTooLong = length > maxLineBytes;
  if (length > endlessFactor * maxLineBytes) return { line: 'endless', rest: nothing, skipped: length };
  if (end === -1)
    return isTooLong ? { line: null, rest: nothing, skipped: length } : { line: null, rest: bytes, skipped };
  const line = bytes.subarray(0, bytes[end - 1] === carriageReturn ? end - 1 : end);
  return { line: isTooLong ? 'too long' : line, rest: bytes.subarray(end + 1), skipped: 0 };
}

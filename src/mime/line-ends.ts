/** Line ends of mail: CRLF, and what is given in its place. Guarantee: linear time. */
const lineFeed = 0x0a;
const carriageReturn = 0x0d;
/** RFC 5322 §2.1.1, without the CRLF. */
export const maxLine = 998;

export function isLineEnd(byte: number | undefined): boolean {
  return byte === carriageReturn || byte === lineFeed;
}

/** A CR without LF after it, or an LF without CR before it. */
function isBareEnd(bytes: Buffer, at: number): boolean {
  return bytes[at] === carriageReturn
    ? bytes[at + 1] !== lineFeed
    : bytes[at] === lineFeed && bytes[at - 1] !== carriageReturn;
}

export function countBareEnds(bytes: Buffer): number {
  let count = 0;
  for (let i = 0; i < bytes.length; i++) if (isBareEnd(bytes, i)) count++;
  return count;
}

/** Copies with CRLF in place of each bare line end. Returns the offset after the copy. */
export function copyLines(source: Buffer, target: Buffer, start: number): number {
  let at = start;
  let from = 0;
  for (let i = 0; i < source.length; i++) {
    if (!isBareEnd(source, i)) continue;
    if (i > from) at += source.copy(target, at, from, i);
    target[at++] = carriageReturn;
    target[at++] = lineFeed;
    from = i + 1;
  }
  return at + source.copy(target, at, from);
}

export function endLinesWithCrlf(bytes: Buffer): Buffer {
  const bareCount = countBareEnds(bytes);
  if (bareCount === 0) return bytes;
  const copy = Buffer.allocUnsafe(bytes.length + bareCount);
  copyLines(bytes, copy, 0);
  return copy;
}

/** The number of the first line with more than 998 octets, from 1; null: there is none. CRLF, CR and LF end a line. */
export function findLongLine(bytes: Buffer): number | null {
  for (let at = 0; at + maxLine < bytes.length; ) {
    // `at` is the start of a line: a line that is longer than allowed has no end in the next 999 octets.
    const next = bytes.subarray(at, at + maxLine + 1);
    const end = Math.max(next.lastIndexOf(lineFeed), next.lastIndexOf(carriageReturn));
    if (end === -1) return 1 + countLines(bytes.subarray(0, at));
    at += end + 1;
  }
  return null;
}

function countLines(bytes: Buffer): number {
  let count = 0;
  for (let i = 0; i < bytes.length; i++)
    if (bytes[i] === lineFeed || (bytes[i] === carriageReturn && bytes[i + 1] !== lineFeed)) count++;
  return count;
}

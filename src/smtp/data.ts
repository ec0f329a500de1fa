/**
 * The bytes of one message, from 354 to the final dot. Guarantees: the message is what the client sent with only the
 * dot-stuffing of RFC 5321 §4.5.2 undone; it ends at CRLF "." CRLF and at nothing that resembles it, however the bytes
 * were cut into chunks; and of a message that is too big nothing is kept.
 */
import { allocateShared, largeBytes } from '../lib/shared-bytes.ts';

/** Memory that connections share: those of one client a part, and all of them the whole. */
export class Budget {
  readonly #limit: number;
  readonly #whole: Budget | null;
  #used = 0;

  constructor(limit: number, whole: Budget | null = null) {
    this.#limit = limit;
    this.#whole = whole;
  }

  get limit(): number {
    return this.#limit;
  }

  get used(): number {
    return this.#used;
  }

  take(bytes: number): boolean {
    if (this.#used + bytes > this.#limit || this.#whole?.take(bytes) === false) return false;
    this.#used += bytes;
    return true;
  }

  giveBack(bytes: number): void {
    this.#used -= bytes;
    this.#whole?.giveBack(bytes);
  }
}

const lineEnd = Buffer.from('\r\n');
const lineEndAndDot = Buffer.from('\r\n.');
const carriageReturn = 13;
const lineFeed = 10;

const nothing = Buffer.alloc(0);
const firstBytes = 16_384;
const hugeBytes = 2 * 1024 * 1024;
/** By which a huge one takes of the budget. */
const stepBytes = 256 * 1024;

export class DataReader {
  readonly #maxBytes: number;
  readonly #budget: Budget;
  /** Starts with a line end that nobody sent, because a dot at the very start is one at the start of a line. */
  #kept: Buffer = nothing;
  /** The size of `kept`, which is 0 once its memory was handed to another thread. */
  #reserved = 0;
  #length = 0;
  /** The end of the last chunk, where it may be the beginning of a line end and a dot. */
  #carry: Buffer = lineEnd;
  #isRefused = false;

  constructor(maxBytes: number, budget: Budget) {
    this.#maxBytes = maxBytes;
    this.#budget = budget;
  }

  /** Of the message so far, kept or not. */
  get size(): number {
    return Math.max(0, this.#length - lineEnd.length);
  }

  /** Too big, or there was no room: the message is not kept. */
  get isRefused(): boolean {
    return this.#isRefused;
  }

  /** Takes a chunk; once the message has ended, gives what comes after it. */
  push(chunk: Buffer): Buffer | null {
    const bytes = this.#carry.length > 0 ? Buffer.concat([this.#carry, chunk]) : chunk;
    let from = 0;
    for (;;) {
      const found = bytes.indexOf(lineEndAndDot, from);
      if (found === -1) {
        return this.#carryOn(bytes, from, bytes.length - lengthOfHalfLineEnd(bytes));
      }
      const dot = found + 2;
      const [next, afterNext] = [bytes[dot + 1], bytes[dot + 2]];
      if (next === undefined || (next === carriageReturn && afterNext === undefined)) {
        return this.#carryOn(bytes, from, found);
      }
      // A dot followed by more is taken away, whatever follows; a line of one dot is the end.
      this.#keep(bytes, from, dot);
      if (next === carriageReturn && afterNext === lineFeed) return bytes.subarray(dot + 3);
      from = dot + 1;
    }
  }

  /** The whole message, after its end. Holds its memory until `release`. */
  message(): Buffer {
    return this.#kept.subarray(lineEnd.length, this.#length);
  }

  /** The message is dealt with, or given up. */
  release(): void {
    this.#budget.giveBack(this.#reserved);
    this.#reserved = 0;
    this.#kept = nothing;
  }

  #carryOn(bytes: Buffer, from: number, to: number): null {
    this.#keep(bytes, from, to);
    // A copy: a view of a byte or two would hold the whole chunk.
    this.#carry = to < bytes.length ? Buffer.from(bytes.subarray(to)) : nothing;
    return null;
  }

  #keep(bytes: Buffer, from: number, to: number): void {
    const length = this.#length + to - from;
    if (!this.#isRefused && length > this.#reserved) this.#grow(length);
    if (!this.#isRefused) bytes.copy(this.#kept, this.#length, from, to);
    this.#length = length;
  }

  /** One growing buffer rather than a list of chunks: a client that sends byte by byte costs no more than another. */
  #grow(length: number): void {
    const most = this.#maxBytes + lineEnd.length;
    const isHuge = length > hugeBytes;
    const wanted = isHuge ? length + stepBytes : Math.max(length, 2 * this.#reserved, firstBytes);
    const reserved = Math.min(most, wanted);
    if (length > most || !this.#budget.take(reserved - this.#reserved)) {
      this.#isRefused = true;
      this.release();
      return;
    }
    this.#reserved = reserved;
    // Room for the largest at once: doubling leaves as much behind as it takes, and pages never written cost nothing.
    if (reserved > this.#kept.length) this.#moveTo(allocate(isHuge ? most : reserved));
  }

  #moveTo(grown: Buffer): void {
    this.#kept.copy(grown, 0, 0, this.#length);
    this.#kept = grown;
  }
}

function allocate(bytes: number): Buffer {
  return bytes < largeBytes ? Buffer.allocUnsafeSlow(bytes) : allocateShared(bytes);
}

/** How many bytes at the end may be the beginning of a line end and a dot: 0, 1 (CR) or 2 (CR LF). */
function lengthOfHalfLineEnd(bytes: Buffer): number {
  if (bytes.at(-1) === carriageReturn) return 1;
  return bytes.at(-1) === lineFeed && bytes.at(-2) === carriageReturn ? 2 : 0;
}

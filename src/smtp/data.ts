/**
 * Reads the bytes of one message, from 354 to the final dot. Guarantees: only the dot-stuffing of RFC 5321 §4.5.2 is undone;
 * only CRLF "." CRLF ends the message, at any chunk boundaries (no SMTP smuggling); a message that is too big keeps no memory.
 */
import { allocateMessage } from '../lib/shared-bytes.ts';

/** A memory limit that connections share: a client's budget is a part of the budget of all (`whole`). */
export class Budget {
  readonly limit: number;
  readonly #whole: Budget | null;
  #used = 0;

  constructor(limit: number, whole: Budget | null = null) {
    this.limit = limit;
    this.#whole = whole;
  }

  get used(): number {
    return this.#used;
  }

  take(bytes: number): boolean {
    if (this.#used + bytes > this.limit || this.#whole?.take(bytes) === false) return false;
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
/** A huge message reserves its budget in these steps. */
const stepBytes = 256 * 1024;

export class DataReader {
  readonly #maxBytes: number;
  readonly #budget: Budget;
  /** Starts with a CRLF that nobody sent: a dot at the very start is at the start of a line too. */
  #kept: Buffer = nothing;
  /** Bytes taken from the budget. Not `#kept.length`: a buffer that was transferred to a worker has length 0. */
  #reserved = 0;
  #length = 0;
  /** The end of the last chunk, if it may be the beginning of CRLF ".". */
  #carry: Buffer = lineEnd;
  #isRefused = false;

  constructor(maxBytes: number, budget: Budget) {
    this.#maxBytes = maxBytes;
    this.#budget = budget;
  }

  /** Bytes of the message so far, kept or not. */
  get size(): number {
    return Math.max(0, this.#length - lineEnd.length);
  }

  /** The message is too big, or the budget is used up: nothing is kept. */
  get isRefused(): boolean {
    return this.#isRefused;
  }

  /** Null: the message goes on. Else the message has ended, and the bytes after it are returned. */
  push(chunk: Buffer): Buffer | null {
    const bytes = this.#carry.length > 0 ? Buffer.concat([this.#carry, chunk]) : chunk;
    let from = 0;
    for (;;) {
      const found = bytes.indexOf(lineEndAndDot, from);
      if (found === -1) return this.#awaitMore(bytes, from, bytes.length - countPartialLineEnd(bytes));
      const dot = found + 2;
      const [next, afterNext] = [bytes[dot + 1], bytes[dot + 2]];
      if (next === undefined || (next === carriageReturn && afterNext === undefined)) {
        return this.#awaitMore(bytes, from, found);
      }
      // A line of one dot is the end; at the start of any other line the dot is dropped.
      this.#keep(bytes, from, dot);
      if (next === carriageReturn && afterNext === lineFeed) return bytes.subarray(dot + 3);
      from = dot + 1;
    }
  }

  /** Call it after the end. The budget is used until `release`. */
  message(): Buffer {
    return this.#kept.subarray(lineEnd.length, this.#length);
  }

  release(): void {
    this.#budget.giveBack(this.#reserved);
    this.#reserved = 0;
    this.#kept = nothing;
  }

  #awaitMore(bytes: Buffer, from: number, to: number): null {
    this.#keep(bytes, from, to);
    // A copy: a view of one or two bytes would keep the whole chunk in memory.
    this.#carry = to < bytes.length ? Buffer.from(bytes.subarray(to)) : nothing;
    return null;
  }

  #keep(bytes: Buffer, from: number, to: number): void {
    const length = this.#length + to - from;
    if (!this.#isRefused && length > this.#reserved) this.#grow(length);
    if (!this.#isRefused) bytes.copy(this.#kept, this.#length, from, to);
    this.#length = length;
  }

  /** One growing buffer, not a list of chunks: a client that sends single bytes costs no more memory than another. */
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
    if (reserved <= this.#kept.length) return;
    // A huge message gets the largest size at once: doubling leaves much garbage, and pages never written cost nothing.
    const grown = allocateMessage(isHuge ? most : reserved);
    this.#kept.copy(grown, 0, 0, this.#length);
    this.#kept = grown;
  }
}

/** Bytes at the end that may be the beginning of CRLF ".": 0, 1 (CR) or 2 (CR LF). */
function countPartialLineEnd(bytes: Buffer): number {
  if (bytes.at(-1) === carriageReturn) return 1;
  return bytes.at(-1) === lineFeed && bytes.at(-2) === carriageReturn ? 2 : 0;
}

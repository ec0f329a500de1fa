/**
 * Reads the bytes of one message, from 354 to the final dot. Guarantees: only the dot-stuffing of RFC 5321 §4.5.2 is undone, also
 * after a bare LF, where Python's smtplib doubles dots too; only CRLF "." CRLF ends the message, at any chunk boundaries (no SMTP
 * smuggling); a message that is too big keeps no memory; a large message is in a file until it is complete.
 */
import { allocateMessage } from '../lib/shared-bytes.ts';
import type { Budget, SpoolFile } from './spool.ts';

const lineEnd = Buffer.from('\r\n');
const lineFeedAndDot = Buffer.from('\n.');
const carriageReturn = 13;
const lineFeed = 10;
const dotByte = 0x2e;

const nothing = Buffer.alloc(0);
const firstBytes = 16_384;
/** A message up to this size stays in memory, whatever room there is: small mail never waits for large mail. */
const smallBytes = 64 * 1024;

/** Kept to gather what goes to the file next: a new buffer each time would be garbage for every 2 MiB. */
const windowBytes = 256 * 1024;

/** The room that one message may use. */
export interface MessageRoom {
  maxBytes: number;
  /** The rest of a larger message goes to a file. */
  inMemoryBytes: number;
  memory: Budget;
  disk: {
    /** Makes room if it can. */
    take(bytes: number): boolean;
    giveBack(bytes: number): void;
    open(): Promise<SpoolFile>;
  };
}

export class DataReader {
  readonly #room: MessageRoom;
  /** What is not in the file yet. Starts with a CRLF that nobody sent: a dot at the very start is at the start of a line too. */
  #kept: Buffer = nothing;
  /** Bytes taken from the memory budget. Not `#kept.length`: a buffer that was transferred to a worker has length 0. */
  #reserved = 0;
  #length = 0;
  #file: SpoolFile | null = null;
  #spilled = 0;
  /** Of the whole message, with the first CRLF. */
  #size = 0;
  /** The end of the last chunk, if it may be the beginning of a line with a dot. */
  #carry: Buffer = lineEnd;
  #isRefused = false;
  #isReleased = false;

  constructor(room: MessageRoom) {
    this.#room = room;
  }

  /** Bytes of the message so far, kept or not. */
  get size(): number {
    return Math.max(0, this.#size - lineEnd.length);
  }

  /** The message is too big, or there is no room for it: nothing is kept. */
  get isRefused(): boolean {
    return this.#isRefused;
  }

  /** `spill` must be awaited before the next `push`. */
  get mustSpill(): boolean {
    const { inMemoryBytes, memory } = this.#room;
    if (this.#isRefused) return false;
    const most = this.isSpilled ? windowBytes / 2 : memory.isExceeded ? smallBytes : inMemoryBytes;
    return this.#length > Math.min(most, inMemoryBytes);
  }

  /** A part of the message is in a file: `load` needs memory for the whole. */
  get isSpilled(): boolean {
    return this.#spilled > 0;
  }

  /** Null: the message goes on. Else the message has ended, and the bytes after it are returned. */
  push(chunk: Buffer): Buffer | null {
    const bytes = this.#carry.length > 0 ? Buffer.concat([this.#carry, chunk]) : chunk;
    let from = 0;
    for (let searched = 0; ; ) {
      const feed = bytes.indexOf(lineFeedAndDot, searched);
      if (feed === -1) return this.#awaitMore(bytes, from, bytes.length - countPartialLineEnd(bytes));
      const isCrLf = bytes[feed - 1] === carriageReturn;
      const dot = feed + 1;
      const [next, afterNext] = [bytes[dot + 1], bytes[dot + 2]];
      if (next === undefined || (isCrLf && next === carriageReturn && afterNext === undefined)) {
        return this.#awaitMore(bytes, from, isCrLf ? feed - 1 : feed);
      }
      searched = dot + 1;
      // After a bare LF a dot stays, unless it was doubled.
      if (!isCrLf && next !== dotByte) continue;
      // A line of one dot is the end; at the start of any other line the dot is dropped.
      this.#keep(bytes, from, dot);
      if (isCrLf && next === carriageReturn && afterNext === lineFeed) return bytes.subarray(dot + 3);
      from = dot + 1;
    }
  }

  /** Moves what is in memory to the file. Rejects if the file cannot be written; then nothing is kept. */
  async spill(): Promise<void> {
    const part = this.#unspilled();
    if (!this.#room.disk.take(part.length)) return this.#refuse();
    this.#spilled += part.length;
    try {
      this.#file ??= await this.#room.disk.open();
      await this.#file.append(part);
    } catch (error) {
      this.#refuse();
      throw error;
    } finally {
      if (this.#isReleased) await this.#file?.close();
    }
    if (this.#reserved > windowBytes || this.#room.memory.isExceeded) this.#forgetKept();
    else this.#length = 0;
  }

  /** Call it after the end. What it uses of the budgets is used until `release`. */
  async load(): Promise<Buffer> {
    if (!this.#file) return this.#unspilled();
    const raw = allocateMessage(this.size);
    await this.#file.read(raw, this.#spilled);
    this.#unspilled().copy(raw, this.#spilled);
    return raw;
  }

  release(): void {
    if (this.#isReleased) return;
    this.#isReleased = true;
    this.#forgetKept();
    this.#room.disk.giveBack(this.#spilled);
    // While the file is written, `spill` closes it.
    this.#file?.close().catch(() => {});
  }

  #unspilled(): Buffer {
    return this.#kept.subarray(this.#spilled > 0 ? 0 : lineEnd.length, this.#length);
  }

  #forgetKept(): void {
    this.#room.memory.giveBack(this.#reserved);
    this.#reserved = 0;
    this.#length = 0;
    this.#kept = nothing;
  }

  #refuse(): void {
    this.#isRefused = true;
    this.release();
  }

  #awaitMore(bytes: Buffer, from: number, to: number): null {
    this.#keep(bytes, from, to);
    // A copy: a view of one or two bytes would keep the whole chunk in memory.
    this.#carry = to < bytes.length ? Buffer.from(bytes.subarray(to)) : nothing;
    return null;
  }

  #keep(bytes: Buffer, from: number, to: number): void {
    this.#size += to - from;
    if (!this.#isRefused && this.size > this.#room.maxBytes) this.#refuse();
    if (this.#isRefused) return;
    const length = this.#length + to - from;
    if (length > this.#reserved) this.#grow(length);
    bytes.copy(this.#kept, this.#length, from, to);
    this.#length = length;
  }

  /**
   * One growing buffer, not a list of chunks: a client that sends single bytes costs no more memory than another. May exceed the
   * budget by one chunk, until `spill`.
   */
  #grow(length: number): void {
    const reserved = Math.max(
      length,
      Math.min(2 * this.#reserved, this.#room.maxBytes + lineEnd.length),
      firstBytes,
    );
    this.#room.memory.add(reserved - this.#reserved);
    this.#reserved = reserved;
    const grown = allocateMessage(reserved);
    this.#kept.copy(grown, 0, 0, this.#length);
    this.#kept = grown;
  }
}

/** Bytes at the end that may come before a dot at the start of a line: 0, 1 (CR or LF) or 2 (CR LF). */
function countPartialLineEnd(bytes: Buffer): number {
  if (bytes.at(-1) === lineFeed) return bytes.at(-2) === carriageReturn ? 2 : 1;
  return bytes.at(-1) === carriageReturn ? 1 : 0;
}

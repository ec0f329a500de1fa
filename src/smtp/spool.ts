/**
 * Room for messages that are being received: a part of each in memory, the rest in a temporary file.
 * Guarantees: a file has no name, so a crash leaves nothing behind; a client uses at most its part of the room.
 */
import { randomUUID } from 'node:crypto';
import { type FileHandle, open, unlink } from 'node:fs/promises';
import path from 'node:path';

/** Bytes that connections share: the budget of a client is a part of the budget of all (`whole`). */
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

  /** Whether more was added than the limit allows. */
  get isExceeded(): boolean {
    return this.#used > this.limit || (this.#whole?.isExceeded ?? false);
  }

  /** Whether this budget alone has room. */
  fits(bytes: number): boolean {
    return this.#used + bytes <= this.limit;
  }

  take(bytes: number): boolean {
    if (!this.fits(bytes) || this.#whole?.take(bytes) === false) return false;
    this.#used += bytes;
    return true;
  }

  /** Also beyond the limit. */
  add(bytes: number): void {
    this.#used += bytes;
    this.#whole?.add(bytes);
  }

  giveBack(bytes: number): void {
    this.add(-bytes);
  }
}

/** Rejects with the code of the operating system, such as ENOSPC. */
export async function openSpoolFile(folder: string): Promise<SpoolFile> {
  const name = path.join(folder, `posthorn-${randomUUID()}`);
  const handle = await open(name, 'wx+', 0o600);
  try {
    await unlink(name);
  } catch (error) {
    await handle.close();
    throw error;
  }
  return new SpoolFile(handle);
}

export class SpoolFile {
  readonly #handle: FileHandle;

  constructor(handle: FileHandle) {
    this.#handle = handle;
  }

  append(bytes: Uint8Array): Promise<void> {
    return this.#handle.appendFile(bytes);
  }

  /** Fills the first `length` bytes of the buffer from the start of the file. */
  async read(into: Buffer, length: number): Promise<void> {
    for (let at = 0; at < length; ) {
      const { bytesRead } = await this.#handle.read(into, at, length - at, at);
      if (bytesRead === 0) throw new Error('A temporary file is shorter than what was written');
      at += bytesRead;
    }
  }

  /** Waits for what is being written, then frees the space. */
  close(): Promise<void> {
    return this.#handle.close();
  }
}

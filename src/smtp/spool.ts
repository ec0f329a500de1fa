/**
 * Room for messages that are being received: a part of each in memory, the rest in a temporary file.
 * Guarantees: a file has no name, so a crash leaves nothing behind; a client uses at most its part of the room; root writes through
 * no link in a folder of another user.
 */
import { randomUUID } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, mkdir, open, unlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Config } from '../config.ts';
import { findOwners } from '../lib/owned-file.ts';
import { pinnedPath } from '../lib/pinned-path.ts';

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

export interface SpoolFolder {
  /** Rejects with the code of the operating system, such as ENOSPC. */
  openFile(): Promise<SpoolFile>;
  close(): Promise<void>;
}

/** The data folder belongs to the embedded PostgreSQL; without it there may be none. */
export function chooseSpoolFolder({ databaseUrl, dataDir }: Config): string {
  return databaseUrl === null ? path.join(dataDir, 'spool') : tmpdir();
}

/** Creates the folder when it is missing, and keeps it open. Rejects when it cannot be written. */
export async function openSpoolFolder(folder: string): Promise<SpoolFolder> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const isForeign = findOwners(path.dirname(folder)) !== undefined;
  const { O_DIRECTORY, O_NOFOLLOW } = constants;
  const handle = await open(folder, isForeign ? O_DIRECTORY | O_NOFOLLOW : O_DIRECTORY);
  const openFile = () => openSpoolFile(isForeign ? pinnedPath(handle, folder) : folder);
  try {
    await (await openFile()).close();
  } catch (error) {
    await handle.close();
    throw error;
  }
  return { openFile, close: () => handle.close() };
}

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

/**
 * Root gives a database folder to another user, because an earlier Posthorn ran PostgreSQL as `nobody` or `postgres`, or
 * because root restored the folder. Guarantee: only files of the folder change their owner, whatever the previous owner does
 * meanwhile; after a crash the next start continues.
 */
import type { Dirent, Stats } from 'node:fs';
import { constants } from 'node:fs';
import { type FileHandle, open, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { OperatorError } from '../../lib/operator-error.ts';
import { pinnedPath } from '../../lib/pinned-path.ts';
import { errorCode } from '../client.ts';

interface Giving {
  folder: string;
  from: number;
  to: { readonly uid: number; readonly gid: number };
}

export async function giveFolder(folder: string, to: Giving['to']): Promise<void> {
  // Root's own link to the folder is followed.
  const handle = await open(folder, constants.O_RDONLY | constants.O_DIRECTORY);
  await giveContents(handle, folder, { folder, from: (await handle.stat()).uid, to });
}

/** The folder itself last, so that an interrupted run starts again. */
async function giveContents(handle: FileHandle, shownPath: string, giving: Giving): Promise<void> {
  try {
    const path = pinnedPath(handle, shownPath);
    for (const entry of await readdir(path, { withFileTypes: true })) {
      await giveEntry(entry, join(path, entry.name), join(shownPath, entry.name), giving);
    }
    await handle.chown(giving.to.uid, giving.to.gid);
  } finally {
    await handle.close();
  }
}

async function giveEntry(entry: Dirent, path: string, shownPath: string, giving: Giving): Promise<void> {
  if (!entry.isFile() && !entry.isDirectory()) {
    if (entry.isSymbolicLink()) throw notGiven(shownPath, giving);
    return;
  }
  const handle = await openEntry(path, shownPath, giving);
  if (!handle) return;
  const stats = await handle.stat();
  if (stats.isDirectory()) return giveContents(handle, shownPath, giving);
  try {
    if (!isOfFolder(stats, giving)) throw notGiven(shownPath, giving);
    await handle.chown(giving.to.uid, giving.to.gid);
  } finally {
    await handle.close();
  }
}

/** Undefined: the file was removed meanwhile. */
async function openEntry(path: string, shownPath: string, giving: Giving): Promise<FileHandle | undefined> {
  const { O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants;
  try {
    return await open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    if (errorCode(error) === 'ELOOP') throw notGiven(shownPath, giving);
    throw error;
  }
}

/** A file of another user with a second name may be a hard link that the previous owner made. */
function isOfFolder(stats: Stats, { from, to }: Giving): boolean {
  return stats.isFile() && (stats.nlink === 1 || stats.uid === to.uid || (stats.uid === from && from !== 0));
}

function notGiven(path: string, { folder, to }: Giving): OperatorError {
  return new OperatorError(
    `${path} is a link, and Posthorn gives nothing behind a link to another user. Check where the link leads, ` +
      `then give both to PostgreSQL's user: chown -Rh ${to.uid}:${to.gid} '${folder}'`,
  );
}

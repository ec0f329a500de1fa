/**
 * Files that root reads in a folder of another user. That user could put a link there to a file that only root can read, or a
 * pipe that never ends. Guarantee: root follows no link, and reads only regular files of the expected owners.
 */
import { closeSync, constants, fstatSync, openSync, readFileSync, type Stats, statSync } from 'node:fs';
import { OperatorError } from './operator-error.ts';

/** Undefined: any owner. This process is not root, or root owns the folder and every link in it. */
export type Owners = readonly number[] | undefined;

export function findOwners(folder: string): Owners {
  if (process.getuid?.() !== 0) return undefined;
  const { uid } = statSync(folder);
  return uid === 0 ? undefined : [uid, 0];
}

/** O_NONBLOCK: the open of a pipe would wait for a writer. */
export const ownedFileFlags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

export function readOwnedFile(path: string, owners: Owners): Buffer {
  if (owners === undefined) return readFileSync(path);
  const file = openOwnedFile(path);
  try {
    requireOwner(path, fstatSync(file), owners);
    return readFileSync(file);
  } finally {
    closeSync(file);
  }
}

function openOwnedFile(path: string): number {
  try {
    return openSync(path, ownedFileFlags);
  } catch (error) {
    // ENXIO: a socket.
    if (['ELOOP', 'ENXIO'].includes((error as NodeJS.ErrnoException).code ?? '')) throw notOurs(path, error);
    throw error;
  }
}

/** A file of root with a second name may be a secret of root that the owner of the folder linked. */
export function requireOwner(path: string, stats: Stats, owners: readonly number[]): void {
  const isExpected = stats.isFile() && owners.includes(stats.uid) && (stats.uid !== 0 || stats.nlink === 1);
  if (!isExpected) throw notOurs(path);
}

function notOurs(path: string, cause?: unknown): OperatorError {
  return new OperatorError(
    `${path} is a link, or is not a file of the user that owns its folder. Root does not open such a file, because that ` +
      'user could point it at a file of root. Find out who created it, and replace it with the right file.',
    { cause },
  );
}

/** A path below an open folder. Linux resolves it from the folder itself, so that nobody can replace a part of the path. */
import type { FileHandle } from 'node:fs/promises';

/** Elsewhere than on Linux: the path by which the folder was opened. */
export function pinnedPath(folder: FileHandle, path: string): string {
  return process.platform === 'linux' ? `/proc/self/fd/${folder.fd}` : path;
}

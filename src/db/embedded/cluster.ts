/**
 * The PostgreSQL cluster on disk. It is created in a temporary folder and renamed when it is complete.
 * Guarantee: `postgres/` is absent or complete, also after a crash or a race.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { chmod, chown, mkdir, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Log } from '../../lib/log.ts';
import { OperatorError } from '../../lib/operator-error.ts';
import { errorCode } from '../client.ts';
import {
  type Binaries,
  chooseUser,
  findBinaries,
  makeReachable,
  passesTest,
  type ServerUser,
} from './binaries.ts';

export interface Cluster {
  readonly pgdata: string;
  readonly password: string;
  readonly binaries: Binaries;
  readonly user: ServerUser;
}

/** Not our own environment: it has secrets, and its PG… variables would change PostgreSQL's behaviour. */
export const serverEnvironment = { PATH: '/usr/bin:/bin', LC_ALL: 'C' };

export function hasCluster(dataDir: string): boolean {
  return existsSync(join(dataDir, 'postgres', 'PG_VERSION'));
}

export async function openCluster(dataDir: string, log: Log): Promise<Cluster> {
  const pgdata = join(dataDir, 'postgres');
  try {
    const bundled = await findBinaries();
    const user = await chooseUser(pgdata);
    const binaries = await makeReachable(bundled, user);
    await makeDataDir(dataDir);
    if (await isMissingOrEmpty(pgdata)) await createCluster(dataDir, pgdata, binaries, user, log);
    await requireMajor(pgdata, binaries.major);
    await requireOrdinaryOwner(pgdata);
    return { pgdata, password: await readPassword(pgdata), binaries, user };
  } catch (error) {
    throw describeAccessError(error, dataDir);
  }
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

async function requireMajor(pgdata: string, major: string): Promise<void> {
  const found = await readFile(join(pgdata, 'PG_VERSION'), 'utf8').catch(() => undefined);
  if (found === undefined) {
    throw new OperatorError(
      `${pgdata} has files that are no PostgreSQL cluster. Move the folder away, or set POSTHORN_DATA_DIR to another folder.`,
    );
  }
  if (found.trim() === major) return;
  throw new OperatorError(
    `${pgdata} was written by PostgreSQL ${found.trim()}, and this Posthorn has PostgreSQL ${major}. ` +
      'Nothing was changed. To keep the data, dump the database with the Posthorn that wrote it and restore the dump here, ' +
      `or set DATABASE_URL to a PostgreSQL ${found.trim()} that runs on the folder. To start empty, move the folder away.`,
  );
}

/** Root owns a folder that root restored from a backup. */
async function requireOrdinaryOwner(pgdata: string): Promise<void> {
  if ((await stat(pgdata)).uid !== 0) return;
  throw new OperatorError(
    `${pgdata} belongs to root, and PostgreSQL does not run as root. ` +
      `Give the folder to an ordinary user: chown -R nobody '${pgdata}'`,
  );
}

async function readPassword(pgdata: string): Promise<string> {
  const path = join(pgdata, 'posthorn.password');
  try {
    return await readFile(path, 'utf8');
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
    await writeFile(passwordFile, randomBytes(24).toString('base64url'), { mode: 0o600, flush: true });
    if (user) await chown(unfinished, user.uid, user.gid);
    if (user) await chown(passwordFile, user.uid, user.gid);
    await runInitdb(unfinished, passwordFile, binaries, user);
    await rename(passwordFile, join(unfinished, 'posthorn.password'));
    await syncFolder(unfinished);
    await renameUnlessTaken(unfinished, pgdata);
    await syncFolder(dataDir);
  } finally {
    await rm(unfinished, { recursive: true, force: true });
    await rm(passwordFile, { force: true });
  }
}

async function runInitdb(
  folder: string,
  passwordFile: string,
  binaries: Binaries,
  user: ServerUser,
): Promise<void> {
  const flags = ['-U', 'posthorn', '--auth=scram-sha-256', '--pwfile=/dev/stdin', '-E', 'UTF8'];
  const locale = ['--no-locale', '--locale-provider=builtin', '--builtin-locale=C.UTF-8'];
  const args = ['-D', pathForUser(folder, user), ...flags, ...locale];
  // The password is passed as an open file, because the user may not be able to open its folder.
  const password = await open(passwordFile);
  const child = spawn(join(binaries.native, 'bin', 'initdb'), args, {
    ...user,
    cwd: folder,
    env: serverEnvironment,
    stdio: [password.fd, 'ignore', 'pipe'],
  });
  const failure = await readFailure(child).finally(() => password.close());
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
    const { mtimeMs } = await stat(path).catch(() => ({ mtimeMs: Date.now() }));
    if (!processExists(pid) || Date.now() - mtimeMs > 600_000)
      await rm(path, { recursive: true, force: true });
  }
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

/**
 * The cluster on disk: made once, in a folder beside its final place, and renamed there when it is complete
 * with its password. So `postgres/` is either absent or whole, whatever crashes or races meanwhile.
 */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import {
  chmod,
  chown,
  type FileHandle,
  mkdir,
  open,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  writeFile,
} from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Log } from '../../lib/log.ts';
import { OperatorError } from '../../lib/operator-error.ts';
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

/** Only what PostgreSQL needs: our own environment holds secrets, and PG… variables would steer it. */
export const serverEnvironment = { PATH: '/usr/bin:/bin', LC_ALL: 'C' };

/** Whether a database has ever been made in this data folder. */
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
    throw explainAccess(error, dataDir);
  }
}

/**
 * How the server's user names a folder of its own. Where a parent shuts it out (a data folder in root's home),
 * Linux lets it in by the working directory, which was entered before root's rights were dropped.
 */
export function pathForUser(folder: string, user: ServerUser): string {
  if (!user || passesTest(user, '-w', folder)) return folder;
  if (process.platform === 'linux') return '/proc/self/cwd';
  throw new OperatorError(
    `The unprivileged user that runs PostgreSQL (uid ${user.uid}) cannot reach ${folder}. ${elsewhere}`,
  );
}

const elsewhere = 'Set POSTHORN_DATA_DIR to a folder that it can use, such as /var/lib/posthorn.';
const namedUser = 'Start Posthorn as a user that has a name (an entry in /etc/passwd), or set DATABASE_URL.';

async function makeDataDir(dataDir: string): Promise<void> {
  const made = await mkdir(dataDir, { recursive: true });
  if (made) await chmod(dataDir, 0o755);
}

async function isMissingOrEmpty(folder: string): Promise<boolean> {
  try {
    return (await readdir(folder)).length === 0;
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return true;
    throw error;
  }
}

async function requireMajor(pgdata: string, major: string): Promise<void> {
  const found = await readFile(join(pgdata, 'PG_VERSION'), 'utf8').catch(() => undefined);
  if (found === undefined) {
    throw new OperatorError(
      `${pgdata} is not empty and holds no PostgreSQL cluster. Move it away, or set POSTHORN_DATA_DIR to another folder.`,
    );
  }
  if (found.trim() === major) return;
  throw new OperatorError(
    `${pgdata} was written by PostgreSQL ${found.trim()}, and this Posthorn brings PostgreSQL ${major}. ` +
      'Nothing was touched. To keep the data, dump it with the Posthorn that wrote it and restore the dump here, ' +
      `or set DATABASE_URL to a PostgreSQL ${found.trim()} that serves it; to begin anew, move the folder away.`,
  );
}

/** A folder that root restored from a backup. */
async function requireOrdinaryOwner(pgdata: string): Promise<void> {
  if ((await stat(pgdata)).uid !== 0) return;
  throw new OperatorError(
    `${pgdata} belongs to root, and PostgreSQL does not run as root. ` +
      `Give it to an ordinary user: chown -R nobody '${pgdata}'`,
  );
}

async function readPassword(pgdata: string): Promise<string> {
  const path = join(pgdata, 'posthorn.password');
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    if (codeOf(cause) !== 'ENOENT') throw cause;
    throw new OperatorError(`${path} is missing. Put it back from where the folder came from.`, { cause });
  }
}

async function createCluster(
  dataDir: string,
  pgdata: string,
  binaries: Binaries,
  user: ServerUser,
  log: Log,
): Promise<void> {
  log.info({ folder: pgdata }, 'making the database folder');
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
  const path = pathForUser(folder, user);
  // The password comes in as an open file, since the user may be shut out of the folder that it lies in.
  const password = await open(passwordFile);
  const flags = ['-U', 'posthorn', '--auth=scram-sha-256', '--pwfile=/dev/stdin', '-E', 'UTF8'];
  const locale = ['--no-locale', '--locale-provider=builtin', '--builtin-locale=C.UTF-8'];
  const output = await runProgram(join(binaries.native, 'bin', 'initdb'), ['-D', path, ...flags, ...locale], {
    cwd: folder,
    stdin: password,
    user,
  }).finally(() => password.close());
  if (output === undefined) return;
  const advice = output.includes('could not look up effective user ID') ? namedUser : elsewhere;
  throw new OperatorError(
    `PostgreSQL could not make its database in ${dirname(folder)}:\n${output}\n${advice}`,
  );
}

/** What a program that failed had to say, or `undefined` when it succeeded. */
async function runProgram(
  program: string,
  args: string[],
  options: { cwd: string; stdin: FileHandle; user: ServerUser },
): Promise<string | undefined> {
  const child = spawn(program, args, {
    ...options.user,
    cwd: options.cwd,
    env: serverEnvironment,
    stdio: [options.stdin.fd, 'ignore', 'pipe'],
  });
  let output = '';
  child.stderr?.setEncoding('utf8').on('data', (chunk) => {
    output += chunk;
  });
  return new Promise((resolve) => {
    child.once('error', (error) => resolve(`${error.message} (it needs glibc, which Alpine Linux lacks)`));
    child.once('close', (code) => resolve(code === 0 ? undefined : output.trim()));
  });
}

/** A rename onto a folder with something in it fails: then another start was quicker, and its cluster is used. */
async function renameUnlessTaken(from: string, to: string): Promise<void> {
  try {
    await rename(from, to);
  } catch (error) {
    if (!['ENOTEMPTY', 'EEXIST'].includes(codeOf(error) ?? '')) throw error;
  }
}

/** Of starts that died half-way. Age decides as well: in a container the same few pids come back every time. */
async function removeLeftovers(dataDir: string): Promise<void> {
  for (const name of await readdir(dataDir)) {
    const pid = Number(/^postgres\.init-(\d+)-/.exec(name)?.[1]);
    if (!pid) continue;
    const path = join(dataDir, name);
    const madeAt = await stat(path).then(
      (found) => found.mtimeMs,
      () => Date.now(),
    );
    if (!processExists(pid) || Date.now() - madeAt > 600_000)
      await rm(path, { recursive: true, force: true });
  }
}

export function processExists(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return codeOf(error) === 'EPERM';
  }
}

export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder);
  await handle.sync().finally(() => handle.close());
}

export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error ? String(error.code) : undefined;
}

function explainAccess(error: unknown, dataDir: string): unknown {
  if (error instanceof OperatorError || !(error instanceof Error)) return error;
  if (!['EACCES', 'EPERM', 'EROFS', 'ENOTDIR', 'EEXIST', 'ENOSPC', 'EBUSY'].includes(codeOf(error) ?? ''))
    return error;
  const who = process.getuid ? ` (uid ${process.getuid()})` : '';
  return new OperatorError(
    `Posthorn${who} cannot use its data folder ${dataDir}: ${error.message}. ` +
      'Start it as the user who owns that folder, or set POSTHORN_DATA_DIR to a folder that it may write.',
    { cause: error },
  );
}

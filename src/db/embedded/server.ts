/**
 * The server process: found through `postmaster.pid`, launched so that it outlives this process, shut down in order.
 * Because pids are reused, a process counts as the server only when it is a PostgreSQL that works in this folder.
 */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { lstat, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { OperatorError } from '../../lib/operator-error.ts';
import { readOwnedFile } from '../../lib/owned-file.ts';
import { errorCode } from '../client.ts';
import { type Cluster, pathForUser, processExists, serverEnvironment } from './cluster.ts';

/** What `postmaster.pid` says. */
export interface LockFile {
  readonly pid: number;
  readonly port: number;
  /** Empty: the server listens on 127.0.0.1 only, as the servers of earlier versions did. */
  readonly socketFolder: string;
  readonly status: string;
  readonly content: string;
  readonly changedAt: number;
}

export async function findPostmaster(cluster: Cluster): Promise<LockFile | undefined> {
  const lock = await readLockFile(cluster);
  return lock && (await isPostmaster(lock.pid, cluster.pgdata)) ? lock : undefined;
}

/**
 * Lines of postmaster.pid: pid, folder, start time, port, socket folder, address, shared memory, status.
 * While PostgreSQL writes the file some lines may be missing: then pid or port is NaN, or the status is empty.
 */
async function readLockFile({ pgdata, owners }: Cluster): Promise<LockFile | undefined> {
  const path = join(pgdata, 'postmaster.pid');
  try {
    const { mtimeMs } = await lstat(path);
    const content = readOwnedFile(path, owners).toString();
    const lines = content.split('\n');
    const [pid, port] = [Number.parseInt(lines[0] ?? '', 10), Number.parseInt(lines[3] ?? '', 10)];
    const [socketFolder = '', status = ''] = [lines[4], lines[7]?.trim()];
    return { pid, port, socketFolder, status, content, changedAt: mtimeMs };
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
}

async function isPostmaster(pid: number, pgdata: string): Promise<boolean> {
  if (!(pid > 0)) return false;
  const { name, zombie } = await describeProcess(pid);
  return name === 'postgres' && !zombie && (await worksIn(pid, pgdata));
}

/** A zombie is a server that has ended: this process may be pid 1 of a container, which does not reap it. */
async function describeProcess(pid: number): Promise<{ name?: string; zombie?: boolean }> {
  try {
    if (process.platform === 'linux') {
      const [, name, state] = /\((.*)\) (\S)/s.exec(await readFile(`/proc/${pid}/stat`, 'utf8')) ?? [];
      return { name: name ?? '', zombie: state === 'Z' || state === 'X' };
    }
    const found = execFileSync('ps', ['-o', 'stat=,comm=', '-p', String(pid)], { encoding: 'utf8' }).trim();
    return { name: found.split('/').at(-1)?.split(' ').at(-1) ?? '', zombie: found.startsWith('Z') };
  } catch {
    return {};
  }
}

/** The working directory of PostgreSQL is its data folder, which distinguishes servers on different folders. */
async function worksIn(pid: number, pgdata: string): Promise<boolean> {
  if (process.platform !== 'linux') return true;
  try {
    const [theirs, ours] = await Promise.all([stat(`/proc/${pid}/cwd`), stat(pgdata)]);
    return theirs.dev === ours.dev && theirs.ino === ours.ino;
  } catch (error) {
    if (errorCode(error) !== 'EACCES') return false;
    // Linux hides the folder of a process that has more capabilities, such as a service that systemd allows to bind port 25.
    // Assume that it is the server, or the lock of a running server would be removed; the connection shows whether it is.
    return process.getuid?.() !== 0 || worksInForOwner(pid, pgdata);
  }
}

/** In a container root cannot inspect another user's process (no CAP_SYS_PTRACE); that user can. */
async function worksInForOwner(pid: number, pgdata: string): Promise<boolean> {
  const { uid, gid } = await stat(pgdata);
  const args = ['-c', 'test "/proc/$1/cwd" -ef .', 'sh', String(pid)];
  return spawnSync('/bin/sh', args, { uid, gid, cwd: pgdata }).status === 0;
}

/**
 * PostgreSQL itself replaces the lock file of a dead process, after checking that no backend of it still writes. Only an empty
 * file, or another process that got the pid, misleads it. The file is renamed and read again before it is removed, because
 * another start may have written a new lock file meanwhile.
 */
async function removeMisleadingLock(cluster: Cluster): Promise<void> {
  const lock = await readLockFile(cluster);
  if (!lock || !(await isMisleading(lock, cluster.pgdata))) return;
  const script =
    'mv postmaster.pid "$1" || exit; [ "$(cat "$1")" = "$2" ] || ln "$1" postmaster.pid; rm -f "$1"';
  runAsUser(cluster, script, `postmaster.pid.stale-${process.pid}`, lock.content.trimEnd());
}

/** The lock of the folder is enough. The lock of the socket can be misleading too, and PostgreSQL would not start. */
function removeSocketLocks(cluster: Cluster): void {
  runAsUser(cluster, 'rm -f .s.PGSQL.*.lock');
}

/** In the folder and with the rights of the server's user: root would follow that user's links. */
function runAsUser({ pgdata, user }: Cluster, script: string, ...args: string[]): void {
  spawnSync('/bin/sh', ['-c', script, 'sh', ...args], { ...user, cwd: pgdata, stdio: 'ignore' });
}

async function isMisleading(lock: LockFile, pgdata: string): Promise<boolean> {
  if (Number.isNaN(lock.pid)) return Date.now() - lock.changedAt > 5_000;
  return processExists(lock.pid) && !(await isPostmaster(lock.pid, pgdata));
}

/** Why a launch ended. Only `failed` cannot be retried. */
export type LaunchEnd = { why: 'ended' | 'port-taken' | 'locked' | 'draining' | 'failed'; lines: string };

export interface Launch {
  readonly pid: number | undefined;
  /** Undefined while the server runs. */
  end(): Promise<LaunchEnd | undefined>;
}

export async function launchServer(cluster: Cluster, settings: Record<string, string>): Promise<Launch> {
  const { pgdata, binaries, user } = cluster;
  await removeMisleadingLock(cluster);
  removeSocketLocks(cluster);
  const args = ['-D', pathForUser(pgdata, user)];
  for (const [name, value] of Object.entries({ ...serverSettings, ...settings })) {
    args.push('-c', `${name}=${value}`);
  }
  const { size, isFull } = await measureLog(pgdata);
  // The shell opens the log with the rights of the server's user, because root would follow that user's links.
  const script = `${isFull ? ': >server.log; ' : ''}exec "$0" "$@" >>server.log 2>&1`;
  const child = spawn('/bin/sh', ['-c', script, join(binaries.native, 'bin', 'postgres'), ...args], {
    ...user,
    cwd: pgdata,
    env: serverEnvironment,
    // A process session of its own: Ctrl-C in the terminal must not stop the server before Posthorn.
    detached: true,
    // Errors of the shell. PostgreSQL has the log instead.
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  child.unref();
  return { pid: child.pid, end: watchEnd(child, cluster, isFull ? 0 : size) };
}

const serverSettings = {
  // Only a socket in the data folder, which other users cannot enter: any of them could take a port after a crash.
  listen_addresses: '',
  // Relative to the data folder, because the path of a socket may have 107 bytes only.
  unix_socket_directories: '.',
  unix_socket_permissions: '0700',
  port: 5432,
  max_connections: 200,
  fsync: 'on',
  synchronous_commit: 'on',
  full_page_writes: 'on',
  // Above ERROR: the caller logs failed statements, and their details may contain mail.
  log_min_messages: 'log',
  log_checkpoints: 'off',
};

const maxLogBytes = 10 * 1024 * 1024;

async function measureLog(pgdata: string): Promise<{ size: number; isFull: boolean }> {
  const path = join(pgdata, 'server.log');
  const found = await lstat(path).catch(() => undefined);
  if (!found) return { size: 0, isFull: false };
  if (!found.isFile())
    throw new OperatorError(`${path} is not a file. Remove it, then start Posthorn again.`);
  return { size: found.size, isFull: found.size > maxLogBytes };
}

function watchEnd(child: ChildProcess, cluster: Cluster, from: number): Launch['end'] {
  const shellErrors = child.stderr ? text(child.stderr).catch(() => '') : '';
  let ended: { code: number | null; lines?: string } | undefined;
  child.once('error', (error) => {
    ended = { code: 1, lines: error.message };
  });
  child.once('exit', (code) => {
    ended = { code };
  });
  return async () => {
    if (!ended) return undefined;
    const lines = ended.lines || (await shellErrors) || readLastLines(cluster, from, child.pid);
    // Code 0 or a signal: the server was stopped or killed, and can be launched again.
    return { why: ended.code ? classify(lines) : 'ended', lines };
  };
}

function classify(lines: string): LaunchEnd['why'] {
  if (/Address already in use/.test(lines)) return 'port-taken';
  // `No such file`: two processes removed the same stale file.
  if (/lock file ".*"(: No such file| already exists| is empty)/.test(lines)) return 'locked';
  if (/pre-existing shared memory block/.test(lines)) return 'draining';
  return 'failed';
}

/** Without the lines of another server, which started first and writes to the same file. */
function readLastLines({ pgdata, owners }: Cluster, from: number, pid: number | undefined): string {
  const log = readOwnedFile(join(pgdata, 'server.log'), owners);
  const lines = log.subarray(from).toString('utf8').trim().split('\n');
  const ours = lines.filter((line) => line.includes(`[${pid}]`) || !/ \[\d+\] /.test(line));
  return ours.slice(-12).join('\n');
}

/** Fast shutdown: PostgreSQL closes all sessions and keeps what is committed. False after the timeout. */
export async function stopServer(cluster: Cluster, timeoutMs: number): Promise<boolean> {
  const postmaster = await findPostmaster(cluster);
  if (!postmaster) return true;
  process.kill(postmaster.pid, 'SIGINT');
  const deadline = performance.now() + timeoutMs;
  while (await isPostmaster(postmaster.pid, cluster.pgdata)) {
    if (performance.now() > deadline) return false;
    await delay(20);
  }
  return true;
}

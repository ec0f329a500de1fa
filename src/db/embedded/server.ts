/**
 * The server process: found through `postmaster.pid`, launched so that it outlives this process, shut down in order.
 * Because pids are reused, a process counts as the server only when it is a PostgreSQL that works in this folder.
 */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { constants } from 'node:fs';
import { type FileHandle, link, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { errorCode } from '../client.ts';
import { type Cluster, pathForUser, processExists, serverEnvironment } from './cluster.ts';

/** What `postmaster.pid` says. */
interface LockFile {
  readonly pid: number;
  readonly port: number;
  readonly status: string;
  readonly content: string;
  readonly changedAt: number;
}

export async function findPostmaster(pgdata: string): Promise<LockFile | undefined> {
  const lock = await readLockFile(pgdata);
  return lock && (await isPostmaster(lock.pid, pgdata)) ? lock : undefined;
}

/** From the lock file that a killed server left behind: on the same port, existing pools find the new server. */
export async function findLastPort(pgdata: string): Promise<number | undefined> {
  return (await readLockFile(pgdata))?.port || undefined;
}

/**
 * Lines of postmaster.pid: pid, folder, start time, port, socket folder, address, shared memory, status.
 * While PostgreSQL writes the file some lines may be missing: then pid or port is NaN, or the status is empty.
 */
async function readLockFile(pgdata: string): Promise<LockFile | undefined> {
  const path = join(pgdata, 'postmaster.pid');
  try {
    const [content, { mtimeMs }] = await Promise.all([readFile(path, 'utf8'), stat(path)]);
    const lines = content.split('\n');
    const [pid, port] = [Number.parseInt(lines[0] ?? '', 10), Number.parseInt(lines[3] ?? '', 10)];
    return { pid, port, status: (lines[7] ?? '').trim(), content, changedAt: mtimeMs };
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
async function removeMisleadingLock(pgdata: string): Promise<void> {
  const lock = await readLockFile(pgdata);
  if (!lock || !(await isMisleading(lock, pgdata))) return;
  const path = join(pgdata, 'postmaster.pid');
  const aside = `${path}.stale-${process.pid}`;
  try {
    await rename(path, aside);
    if ((await readFile(aside, 'utf8')) !== lock.content) await link(aside, path);
  } catch (error) {
    // Another start was faster.
    if (!['ENOENT', 'EEXIST'].includes(errorCode(error) ?? '')) throw error;
  } finally {
    await rm(aside, { force: true });
  }
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

export async function launchServer(
  cluster: Cluster,
  port: number,
  settings: Record<string, string>,
): Promise<Launch> {
  const { pgdata, binaries, user } = cluster;
  await removeMisleadingLock(pgdata);
  const args = ['-D', pathForUser(pgdata, user)];
  for (const [name, value] of Object.entries({ ...serverSettings, ...settings, port })) {
    args.push('-c', `${name}=${value}`);
  }
  const { output, from } = await openServerLog(cluster);
  try {
    const child = spawn(join(binaries.native, 'bin', 'postgres'), args, {
      ...user,
      cwd: pgdata,
      env: serverEnvironment,
      // A process session of its own: Ctrl-C in the terminal must not stop the server before Posthorn.
      detached: true,
      stdio: ['ignore', output.fd, output.fd],
    });
    child.unref();
    return { pid: child.pid, end: watchEnd(child, pgdata, from) };
  } finally {
    await output.close();
  }
}

const serverSettings = {
  listen_addresses: '127.0.0.1',
  unix_socket_directories: '',
  max_connections: 200,
  fsync: 'on',
  synchronous_commit: 'on',
  full_page_writes: 'on',
  // Above ERROR: the caller logs failed statements, and their details may contain mail.
  log_min_messages: 'log',
  log_checkpoints: 'off',
};

const maxLogBytes = 10 * 1024 * 1024;

/** O_NOFOLLOW: the folder belongs to an unprivileged user, and this process may be root. */
async function openServerLog(cluster: Cluster): Promise<{ output: FileHandle; from: number }> {
  const { O_APPEND, O_CREAT, O_NOFOLLOW, O_WRONLY } = constants;
  const path = join(cluster.pgdata, 'server.log');
  const output = await open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0o600);
  if (cluster.user) await output.chown(cluster.user.uid, cluster.user.gid);
  if ((await output.stat()).size > maxLogBytes) await output.truncate();
  return { output, from: (await output.stat()).size };
}

function watchEnd(child: ChildProcess, pgdata: string, from: number): () => Promise<LaunchEnd | undefined> {
  let ended: { code: number | null; lines?: string } | undefined;
  child.once('error', (error) => {
    ended = { code: 1, lines: error.message };
  });
  child.once('exit', (code) => {
    ended = { code };
  });
  return async () => {
    if (!ended) return undefined;
    const lines = ended.lines ?? (await readLastLines(pgdata, from, child.pid));
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
async function readLastLines(pgdata: string, from: number, pid: number | undefined): Promise<string> {
  const log = await readFile(join(pgdata, 'server.log'));
  const lines = log.subarray(from).toString('utf8').trim().split('\n');
  const ours = lines.filter((line) => line.includes(`[${pid}]`) || !/ \[\d+\] /.test(line));
  return ours.slice(-12).join('\n');
}

/** Fast shutdown: PostgreSQL closes all sessions and keeps what is committed. False after the timeout. */
export async function stopServer(pgdata: string, timeoutMs: number): Promise<boolean> {
  const postmaster = await findPostmaster(pgdata);
  if (!postmaster) return true;
  process.kill(postmaster.pid, 'SIGINT');
  const deadline = performance.now() + timeoutMs;
  while (await isPostmaster(postmaster.pid, pgdata)) {
    if (performance.now() > deadline) return false;
    await delay(20);
  }
  return true;
}

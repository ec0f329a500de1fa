/**
 * The server process: found through `postmaster.pid`, launched so that it outlives us, stopped in order.
 * A process counts as the server only when it runs PostgreSQL on this very folder: pids are used again.
 */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { constants } from 'node:fs';
import { type FileHandle, link, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { type Cluster, codeOf, pathForUser, processExists, serverEnvironment } from './cluster.ts';

interface Postmaster {
  readonly pid: number;
  readonly port: number;
  readonly status: string;
}

interface LockFile extends Postmaster {
  readonly content: string;
  readonly changedAt: number;
}

/** The server that runs on this folder, in whatever state. */
export async function findPostmaster(pgdata: string): Promise<Postmaster | undefined> {
  const lock = await readLockFile(pgdata);
  return lock && (await isPostmaster(lock.pid, pgdata)) ? lock : undefined;
}

/** The port of the last server, where it left its lock file behind: pools that knew it find it again there. */
export async function findLastPort(pgdata: string): Promise<number | undefined> {
  return (await readLockFile(pgdata))?.port || undefined;
}

/**
 * Lines of postmaster.pid: pid, folder, start time, port, socket folder, address, shared memory, status.
 * Read while it is being written, it may lack some of them: then pid or port is NaN or the status empty.
 */
async function readLockFile(pgdata: string): Promise<LockFile | undefined> {
  const path = join(pgdata, 'postmaster.pid');
  try {
    const [content, { mtimeMs }] = await Promise.all([readFile(path, 'utf8'), stat(path)]);
    const lines = content.split('\n');
    const [pid, port] = [Number.parseInt(lines[0] ?? '', 10), Number.parseInt(lines[3] ?? '', 10)];
    return { pid, port, status: (lines[7] ?? '').trim(), content, changedAt: mtimeMs };
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

async function isPostmaster(pid: number, pgdata: string): Promise<boolean> {
  if (!(pid > 0)) return false;
  const { name, zombie } = await describeProcess(pid);
  return name === 'postgres' && !zombie && (await worksIn(pid, pgdata));
}

/** A zombie is a server that has ended: as pid 1 of a container we may be the one who never reaps it. */
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

/** PostgreSQL works in its data folder, which tells it from a server on another one. */
async function worksIn(pid: number, pgdata: string): Promise<boolean> {
  if (process.platform !== 'linux') return true;
  try {
    const [theirs, ours] = await Promise.all([stat(`/proc/${pid}/cwd`), stat(pgdata)]);
    return theirs.dev === ours.dev && theirs.ino === ours.ino;
  } catch (error) {
    if (codeOf(error) !== 'EACCES') return false;
    // A process with capabilities that we lack, as a service has that systemd lets bind port 25, does not show us its folder. To
    // take it for another's would mean to remove the lock of a server that lives: whether it is ours, connecting tells.
    return process.getuid?.() !== 0 || ownerSaysItWorksIn(pid, pgdata);
  }
}

/** In a container root may not look at another user's process (no CAP_SYS_PTRACE); that user may. */
async function ownerSaysItWorksIn(pid: number, pgdata: string): Promise<boolean> {
  const { uid, gid } = await stat(pgdata);
  const args = ['-c', 'test "/proc/$1/cwd" -ef .', 'sh', String(pid)];
  return spawnSync('/bin/sh', args, { uid, gid, cwd: pgdata }).status === 0;
}

/**
 * PostgreSQL replaces the lock file of a dead process by itself, and checks first that no backend of it still
 * writes; only a living process that took over the pid, or an empty file, misleads it. Moved aside and looked
 * at again before it goes, because a racing start may have written its own in between.
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
    const overtaken = ['ENOENT', 'EEXIST'].includes(codeOf(error) ?? '');
    if (!overtaken) throw error;
  } finally {
    await rm(aside, { force: true });
  }
}

async function isMisleading(lock: LockFile, pgdata: string): Promise<boolean> {
  if (Number.isNaN(lock.pid)) return Date.now() - lock.changedAt > 5_000;
  return processExists(lock.pid) && !(await isPostmaster(lock.pid, pgdata));
}

/** What became of a launch: `port-taken`, `locked` and `draining` are worth another try. */
export type LaunchEnd = { why: 'ended' | 'port-taken' | 'locked' | 'draining' | 'failed'; lines: string };

export interface Launch {
  readonly pid: number | undefined;
  /** `undefined` while it runs */
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
      // Its own session: Ctrl-C at the terminal must not stop it under our hands.
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
  // Above ERROR: a failed statement is the caller's to report, and its details may be someone's mail.
  log_min_messages: 'log',
  log_checkpoints: 'off',
};

const maxLogBytes = 10 * 1024 * 1024;

/** Not through a link: the folder belongs to an unprivileged user, and we may be root. */
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
    // Code 0 or a signal: someone stopped or killed it, which says nothing against trying again.
    return { why: ended.code ? classify(lines) : 'ended', lines };
  };
}

function classify(lines: string): LaunchEnd['why'] {
  if (/Address already in use/.test(lines)) return 'port-taken';
  // Also while two starters clear away the same stale file and one finds it gone.
  if (/lock file ".*"(: No such file| already exists| is empty)/.test(lines)) return 'locked';
  if (/pre-existing shared memory block/.test(lines)) return 'draining';
  return 'failed';
}

/** Without the lines of another server, which won the race to start and writes to the same file. */
async function readLastLines(pgdata: string, from: number, pid: number | undefined): Promise<string> {
  const log = await readFile(join(pgdata, 'server.log'));
  const lines = log.subarray(from).toString('utf8').trim().split('\n');
  const ours = lines.filter((line) => line.includes(`[${pid}]`) || !/ \[\d+\] /.test(line));
  return ours.slice(-12).join('\n');
}

/** Fast shutdown: sessions are cut, what is committed stays. False when it takes longer than the patience. */
export async function stopServer(pgdata: string, patienceMs: number): Promise<boolean> {
  const postmaster = await findPostmaster(pgdata);
  if (!postmaster) return true;
  process.kill(postmaster.pid, 'SIGINT');
  const deadline = performance.now() + patienceMs;
  while (await isPostmaster(postmaster.pid, pgdata)) {
    if (performance.now() > deadline) return false;
    await delay(20);
  }
  return true;
}

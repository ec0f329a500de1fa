/**
 * The embedded PostgreSQL, used when DATABASE_URL is not set. Guarantees: commits are durable; a server whose Posthorn was
 * killed is adopted; a server that was killed is started again; one service per data folder; only the last user of the
 * server stops it.
 */
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Log } from '../../lib/log.ts';
import { once } from '../../lib/once.ts';
import { OperatorError } from '../../lib/operator-error.ts';
import type { DatabaseAddress, Endpoint } from '../address.ts';
import { type DedicatedConnection, errorCode } from '../client.ts';
import { type Cluster, hasOtherOwner, openCluster, takeFolder } from './cluster.ts';
import { isOnlyUser, joinServer, releaseServer, renameSession, takeServeLock } from './guard.ts';
import {
  findPostmaster,
  type Launch,
  type LaunchEnd,
  type LockFile,
  launchServer,
  stopServer,
} from './server.ts';
import { openSocketFolder, type SocketFolder } from './socket-folder.ts';

export interface EmbeddedPostgres {
  /** To be read for each new connection: the server may come back elsewhere. */
  readonly address: DatabaseAddress;
  /** Whether the server was already running. */
  readonly adopted: boolean;
  /** Lets the next service on the data folder wait for this one to stop. The server stays usable. */
  announceStop(): Promise<void>;
  /** Stops the server when no other process uses it. The caller has closed its connections. Idempotent. */
  stop(): Promise<void>;
}

interface EmbeddedOptions {
  /** Absolute; the cluster is in `postgres/`. */
  dataDir: string;
  log: Log;
  /** `serve`: one process per data folder. `tool`: any number, also while a service runs. */
  purpose: 'serve' | 'tool';
  /** More settings (`-c name=value`) for a server that this process starts. */
  settings?: Record<string, string>;
  /** How long a `serve` waits for another one that has not announced its stop. */
  patienceMs?: number;
}

interface Joined {
  readonly guard: DedicatedConnection;
  readonly address: DatabaseAddress;
  readonly adopted: boolean;
}

const pollMs = 25;
const slowMs = 2_000;
/** The backends of a killed server need this time to release its shared memory. */
const drainMs = 10_000;
const timeoutMs = 60_000;

export async function openEmbedded(options: EmbeddedOptions): Promise<EmbeddedPostgres> {
  const { log } = options;
  const cluster = await openCluster(options.dataDir, log);
  const socketFolder = await openSocketFolder(cluster.pgdata);
  const stopping = new AbortController();
  let name = `posthorn ${options.purpose} pid=${process.pid}`;
  let joined: Joined | undefined;
  let recovery: Promise<void> | undefined;

  async function join(): Promise<Joined> {
    const found = await joinOrStart({ cluster, socketFolder, options, name, signal: stopping.signal });
    joined = found;
    found.guard.closed.then(() => {
      joined = undefined;
      if (!stopping.signal.aborted) recovery = recover(found.guard);
    });
    return found;
  }

  async function recover(lost: DedicatedConnection): Promise<void> {
    log.warn('lost the connection to the embedded PostgreSQL; reconnecting, or restarting the server');
    await lost.end();
    for (let waitMs = 100; !stopping.signal.aborted; waitMs = Math.min(2 * waitMs, 5_000)) {
      try {
        ({ address } = await join());
        return log.info('connected to the embedded PostgreSQL again');
      } catch (err) {
        if (stopping.signal.aborted) return;
        log.error({ err }, 'could not reach or restart the embedded PostgreSQL; retrying');
        await delay(waitMs, undefined, { signal: stopping.signal }).catch(() => {});
      }
    }
  }

  async function announceStop(): Promise<void> {
    if (!name.endsWith(' stopping')) name += ' stopping';
    if (!joined) return;
    await renameSession(joined.guard, name).catch((err) => {
      log.debug({ err }, 'could not announce the stop');
    });
  }

  const first = await join().catch(async (error) => {
    await socketFolder.close();
    throw error;
  });
  let { address } = first;
  return {
    adopted: first.adopted,
    get address() {
      return address;
    },
    announceStop,
    stop: once(async () => {
      await announceStop();
      stopping.abort();
      await recovery;
      if (joined) await leave(joined.guard, cluster, log);
      await socketFolder.close();
    }),
  };
}

interface JoinOptions {
  cluster: Cluster;
  socketFolder: SocketFolder;
  options: EmbeddedOptions;
  name: string;
  signal: AbortSignal;
}

/** Joins the running server or starts one. Retries, because other processes may start, stop or kill the server meanwhile. */
async function joinOrStart(joinOptions: JoinOptions): Promise<Joined> {
  const { cluster, options, signal } = joinOptions;
  const checkWait = startWaiting(cluster.pgdata, options.log);
  let launch: Launch | undefined;
  for (;;) {
    // After a launch there is no abort: it would leave a server behind that nobody uses.
    if (!launch) signal.throwIfAborted();
    const postmaster = await findPostmaster(cluster);
    let state = postmaster ? `is ${postmaster.status || 'starting'}` : 'did not start';
    if (postmaster?.status === 'ready') {
      const found = await tryToJoin(joinOptions, postmaster);
      const adopted = postmaster.pid !== launch?.pid;
      if ('guard' in found) return { ...found, adopted };
      state = `refuses the connection: ${found.message}`;
    } else if (!postmaster && !launch) {
      await takeFolder(cluster, options.log);
      launch = await launchServer(cluster, options.settings ?? {});
    }
    const end = await launch?.end();
    if (end) launch = undefined;
    checkWait(state, end);
    await delay(pollMs);
  }
}

/** Logs when the start is slow. Throws when the start failed or took too long. */
function startWaiting(pgdata: string, log: Log): (state: string, end: LaunchEnd | undefined) => void {
  const startedAt = performance.now();
  let isLogged = false;
  return (state, end) => {
    const waitedMs = performance.now() - startedAt;
    const isFailed = end?.why === 'failed' || (end?.why === 'draining' && waitedMs > drainMs);
    if (isFailed || waitedMs > timeoutMs) {
      const lines = end ? `\n${end.lines}` : '';
      const advice = `Read ${path.join(pgdata, 'server.log')}, fix the cause, then start Posthorn again.`;
      throw new OperatorError(`The PostgreSQL in ${pgdata} ${state}.${lines}\n${advice}`);
    }
    if (waitedMs > slowMs && !isLogged) {
      isLogged = true;
      log.info({ state }, 'waiting for the embedded PostgreSQL; recovery after a crash can take a while');
    }
  };
}

/** Returns an error when the server stopped, is not ready or must be replaced: then the caller retries. */
async function tryToJoin(
  joinOptions: JoinOptions,
  postmaster: LockFile,
): Promise<Omit<Joined, 'adopted'> | Error> {
  const { cluster, socketFolder, options, name } = joinOptions;
  const host = postmaster.socketFolder === '.' ? socketFolder.path : '127.0.0.1';
  const endpoint = { host, port: postmaster.port, ssl: false, isFallback: false } as const;
  let guard: DedicatedConnection | undefined;
  try {
    guard = await joinServer(addressOf(cluster, endpoint, 'postgres'), name);
    if (options.purpose === 'serve') await takeServeLock(guard, options.dataDir, options.patienceMs);
    if (await mustBeReplaced(joinOptions, postmaster, guard)) {
      await leave(guard, cluster, options.log);
      return new Error('an earlier Posthorn started it, and other processes still use it');
    }
    return { guard, address: addressOf(cluster, endpoint, 'posthorn') };
  } catch (error) {
    if (guard) await leave(guard, cluster, options.log);
    if (error instanceof OperatorError || !(error instanceof Error)) throw error;
    if (errorCode(error) === '28P01') throw wrongPassword(cluster, error);
    return error;
  }
}

/**
 * The server of an earlier version listens on a port, or runs as a user that other programs share. The service does not use
 * such a server, and waits for the processes that do. A command uses it while they run: the earlier service may be one of them.
 */
async function mustBeReplaced(
  { cluster, options }: JoinOptions,
  postmaster: LockFile,
  guard: DedicatedConnection,
): Promise<boolean> {
  if (postmaster.socketFolder !== '' && !(await hasOtherOwner(cluster))) return false;
  return options.purpose === 'serve' || (await isOnlyUser(guard));
}

async function leave(guard: DedicatedConnection, cluster: Cluster, log: Log): Promise<void> {
  try {
    const isLast = await releaseServer(guard);
    if (isLast && !(await stopServer(cluster, timeoutMs))) {
      log.warn('the embedded PostgreSQL is still shutting down; it stops by itself');
    }
  } catch (err) {
    log.debug({ err }, 'the embedded PostgreSQL had already stopped');
  } finally {
    await guard.end();
  }
}

function addressOf(cluster: Cluster, endpoint: Endpoint, database: string): DatabaseAddress {
  return {
    ...{ user: 'posthorn', password: cluster.password, database, endpoints: [endpoint] },
    ...{
      isPrimaryWanted: false,
      isChannelBindingRequired: false,
      connectTimeoutMs: undefined,
      settings: new Map(),
    },
  };
}

function wrongPassword(cluster: Cluster, cause: unknown): OperatorError {
  const file = path.join(cluster.pgdata, 'posthorn.password');
  return new OperatorError(
    `The PostgreSQL in ${cluster.pgdata} refuses the password in ${file}. Restore the file that belongs to this folder.`,
    { cause },
  );
}

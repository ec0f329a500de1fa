/**
 * The embedded PostgreSQL, used when DATABASE_URL is not set. Guarantees: commits are durable; a server whose Posthorn was
 * killed is adopted; a server that was killed is started again; one service per data folder; only the last user of the
 * server stops it.
 */
import { randomInt } from 'node:crypto';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Log } from '../../lib/log.ts';
import { once } from '../../lib/once.ts';
import { OperatorError } from '../../lib/operator-error.ts';
import { type DedicatedConnection, errorCode } from '../client.ts';
import { type Cluster, openCluster } from './cluster.ts';
import { joinServer, releaseServer, renameSession, takeServeLock } from './guard.ts';
import {
  findLastPort,
  findPostmaster,
  type Launch,
  type LaunchEnd,
  launchServer,
  stopServer,
} from './server.ts';

export interface EmbeddedPostgres {
  /** postgres://posthorn:<password>@127.0.0.1:<port>/posthorn. The port can change after a crash. */
  readonly url: string;
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
}

interface Joined {
  readonly guard: DedicatedConnection;
  readonly port: number;
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
  const stopping = new AbortController();
  let name = `posthorn ${options.purpose} pid=${process.pid}`;
  let port: number | undefined;
  let joined: Joined | undefined;
  let recovery: Promise<void> | undefined;

  async function join(): Promise<Joined> {
    const found = await joinOrStart({ cluster, options, name, port, signal: stopping.signal });
    joined = found;
    port = found.port;
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
        await join();
        return log.info({ port }, 'connected to the embedded PostgreSQL again');
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

  const { adopted } = await join();
  return {
    adopted,
    get url() {
      return urlOf(cluster, port, 'posthorn');
    },
    announceStop,
    stop: once(async () => {
      await announceStop();
      stopping.abort();
      await recovery;
      if (joined) await leave(joined.guard, cluster, log);
    }),
  };
}

interface JoinOptions {
  cluster: Cluster;
  options: EmbeddedOptions;
  name: string;
  port: number | undefined;
  signal: AbortSignal;
}

/** Joins the running server or starts one. Retries, because other processes may start, stop or kill the server meanwhile. */
async function joinOrStart(joinOptions: JoinOptions): Promise<Joined> {
  const { cluster, options, signal } = joinOptions;
  const { pgdata } = cluster;
  const checkWait = startWaiting(pgdata, options.log);
  let port = joinOptions.port ?? (await findLastPort(pgdata)) ?? randomPort();
  let launch: Launch | undefined;
  for (;;) {
    // After a launch there is no abort: it would leave a server behind that nobody uses.
    if (!launch) signal.throwIfAborted();
    const postmaster = await findPostmaster(pgdata);
    let state = postmaster ? `is ${postmaster.status || 'starting'}` : 'did not start';
    if (postmaster?.status === 'ready') {
      const guard = await tryToJoin(joinOptions, postmaster.port);
      const adopted = postmaster.pid !== launch?.pid;
      if ('sql' in guard) return { guard, port: postmaster.port, adopted };
      state = `refuses the connection: ${guard.message}`;
    } else if (!postmaster) {
      launch ??= await launchServer(cluster, port, options.settings ?? {});
    }
    const end = await launch?.end();
    if (end) launch = undefined;
    if (end?.why === 'port-taken') port = randomPort();
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

/** Returns an error when the server stopped or is not ready: then the caller retries. */
async function tryToJoin(joinOptions: JoinOptions, port: number): Promise<DedicatedConnection | Error> {
  const { cluster, options, name } = joinOptions;
  let guard: DedicatedConnection | undefined;
  try {
    guard = await joinServer(urlOf(cluster, port, 'postgres'), name);
    if (options.purpose === 'serve') await takeServeLock(guard, options.dataDir);
    return guard;
  } catch (error) {
    if (guard) await leave(guard, cluster, options.log);
    if (error instanceof OperatorError || !(error instanceof Error)) throw error;
    if (errorCode(error) === '28P01') throw wrongPassword(cluster, error);
    return error;
  }
}

async function leave(guard: DedicatedConnection, cluster: Cluster, log: Log): Promise<void> {
  try {
    const isLast = await releaseServer(guard);
    if (isLast && !(await stopServer(cluster.pgdata, timeoutMs))) {
      log.warn('the embedded PostgreSQL is still shutting down; it stops by itself');
    }
  } catch (err) {
    log.debug({ err }, 'the embedded PostgreSQL had already stopped');
  } finally {
    await guard.end();
  }
}

function urlOf(cluster: Cluster, port: number | undefined, database: string): string {
  return `postgres://posthorn:${cluster.password}@127.0.0.1:${port}/${database}`;
}

/**
 * Below the range of outgoing connections: in that range a client that retries while the server is down can connect to
 * itself and block the port.
 */
function randomPort(): number {
  return randomInt(20_000, 32_768);
}

function wrongPassword(cluster: Cluster, cause: unknown): OperatorError {
  const file = path.join(cluster.pgdata, 'posthorn.password');
  return new OperatorError(
    `The PostgreSQL in ${cluster.pgdata} refuses the password in ${file}. Restore the file that belongs to this folder.`,
    { cause },
  );
}

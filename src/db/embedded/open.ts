/**
 * The PostgreSQL that Posthorn brings along, for whoever sets no DATABASE_URL. Guarantees: commits are durable;
 * a server left behind by a killed parent is adopted, one that was killed comes back by itself; one service per
 * data folder; the last one out stops the server, and nobody else does.
 */
import { randomInt } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Log } from '../../lib/log.ts';
import { OperatorError } from '../../lib/operator-error.ts';
import type { Session } from '../client.ts';
import { type Cluster, codeOf, openCluster } from './cluster.ts';
import { isLastOut, joinServer, renameSession, takeServeLock } from './guard.ts';
import {
  findLastPort,
  findPostmaster,
  type Launch,
  type LaunchEnd,
  launchServer,
  stopServer,
} from './server.ts';

export interface EmbeddedPostgres {
  /** postgres://posthorn:<password>@127.0.0.1:<port>/posthorn; read it anew, the port can change after a crash. */
  readonly url: string;
  /** True when a live server was found rather than started. */
  readonly adopted: boolean;
  /** Tells a successor on the same data folder that waiting is worth it. The server stays usable. */
  announceStop(): Promise<void>;
  /** Leaves; the last one out stops the server. The caller has closed its own connections. Idempotent. */
  stop(): Promise<void>;
}

interface EmbeddedOptions {
  /** absolute; holds `postgres/` */
  dataDir: string;
  log: Log;
  /** `serve`: only one per data folder at a time. `tool`: any number, beside a serve. */
  purpose: 'serve' | 'tool';
  /** more settings (`-c name=value`) for a server that is started here */
  settings?: Record<string, string>;
}

interface Entered {
  readonly guard: Session;
  readonly port: number;
  readonly adopted: boolean;
}

const pollMs = 25;
const slowMs = 2_000;
/** Backends of a killed server let go of its memory once they notice. */
const drainMs = 10_000;
const patienceMs = 60_000;

export async function openEmbedded(options: EmbeddedOptions): Promise<EmbeddedPostgres> {
  const { log } = options;
  const cluster = await openCluster(options.dataDir, log);
  const stopping = new AbortController();
  let name = `posthorn ${options.purpose} pid=${process.pid}`;
  let port: number | undefined;
  let session: Entered | undefined;
  let recovery: Promise<void> | undefined;
  let stopped: Promise<void> | undefined;

  async function enter(): Promise<Entered> {
    const entered = await reach({ cluster, options, name, port, signal: stopping.signal });
    session = entered;
    port = entered.port;
    entered.guard.gone.then(() => {
      session = undefined;
      if (!stopping.signal.aborted) recovery = recover(entered.guard);
    });
    return entered;
  }

  async function recover(lost: Session): Promise<void> {
    log.warn('lost the embedded PostgreSQL; bringing it back');
    await lost.end();
    for (let waitMs = 100; !stopping.signal.aborted; waitMs = Math.min(2 * waitMs, 5_000)) {
      try {
        const back = await enter();
        return log.info({ port: back.port }, 'the embedded PostgreSQL is back');
      } catch (err) {
        if (stopping.signal.aborted) return;
        log.error({ err }, 'the embedded PostgreSQL is not back yet; trying again');
        await delay(waitMs, undefined, { signal: stopping.signal }).catch(() => {});
      }
    }
  }

  async function announceStop(): Promise<void> {
    if (!name.endsWith(' stopping')) name += ' stopping';
    if (!session) return;
    await renameSession(session.guard, name).catch((err) => {
      log.debug({ err }, 'could not announce the stop');
    });
  }

  async function leaveForGood(): Promise<void> {
    await announceStop();
    stopping.abort();
    await recovery;
    if (session) await leave(session.guard, cluster, log);
  }

  const { adopted } = await enter();
  return {
    adopted,
    get url() {
      return urlOf(cluster, port, 'posthorn');
    },
    announceStop,
    stop() {
      stopped ??= leaveForGood();
      return stopped;
    },
  };
}

interface Reaching {
  cluster: Cluster;
  options: EmbeddedOptions;
  name: string;
  port: number | undefined;
  signal: AbortSignal;
}

/** Adopts or starts, again and again until it holds, whoever else starts, stops or kills the server meanwhile. */
async function reach(reaching: Reaching): Promise<Entered> {
  const { cluster, options, signal } = reaching;
  const { pgdata } = cluster;
  const requirePatience = beginWaiting(pgdata, options.log);
  let port = reaching.port ?? (await findLastPort(pgdata)) ?? randomPort();
  let launch: Launch | undefined;
  for (;;) {
    // What we launched is seen through, or a server would be left behind that nobody uses.
    if (!launch) signal.throwIfAborted();
    const postmaster = await findPostmaster(pgdata);
    let state = postmaster ? `is ${postmaster.status || 'starting'}` : 'did not start';
    if (postmaster?.status === 'ready') {
      const joined = await tryToJoin(reaching, postmaster.port);
      const adopted = postmaster.pid !== launch?.pid;
      if ('sql' in joined) return { guard: joined, port: postmaster.port, adopted };
      state = `does not let us in: ${joined.message}`;
    } else if (!postmaster) {
      launch ??= await launchServer(cluster, port, options.settings ?? {});
    }
    const end = await launch?.end();
    if (end) launch = undefined;
    if (end?.why === 'port-taken') port = randomPort();
    requirePatience(state, end);
    await delay(pollMs);
  }
}

/** Says when it is slow, and gives up where waiting is no use or took too long. */
function beginWaiting(pgdata: string, log: Log): (state: string, end: LaunchEnd | undefined) => void {
  const began = performance.now();
  let said = false;
  return (state, end) => {
    const waitedMs = performance.now() - began;
    const hopeless = end?.why === 'failed' || (end?.why === 'draining' && waitedMs > drainMs);
    if (hopeless || waitedMs > patienceMs) {
      const lines = end ? `\n${end.lines}` : '';
      const advice = `See ${join(pgdata, 'server.log')} for more`;
      throw new OperatorError(`The PostgreSQL in ${pgdata} ${state}.${lines}\n${advice}, then start again.`);
    }
    if (waitedMs > slowMs && !said) {
      said = true;
      log.info({ state }, 'waiting for the embedded PostgreSQL; recovery after a crash can take a while');
    }
  };
}

/** An error means that the server went away or was not ready after all: then the caller looks again. */
async function tryToJoin(reaching: Reaching, port: number): Promise<Session | Error> {
  const { cluster, options, name } = reaching;
  let guard: Session | undefined;
  try {
    guard = await joinServer(urlOf(cluster, port, 'postgres'), name);
    if (options.purpose === 'serve') await takeServeLock(guard, options.dataDir);
    return guard;
  } catch (error) {
    if (guard) await leave(guard, cluster, options.log);
    if (error instanceof OperatorError || !(error instanceof Error)) throw error;
    if (codeOf(error) === '28P01') throw wrongPassword(cluster, error);
    return error;
  }
}

async function leave(guard: Session, cluster: Cluster, log: Log): Promise<void> {
  try {
    const last = await isLastOut(guard);
    if (last && !(await stopServer(cluster.pgdata, patienceMs))) {
      log.warn('the embedded PostgreSQL is still shutting down; it ends by itself');
    }
  } catch (err) {
    log.debug({ err }, 'the embedded PostgreSQL was gone before we left');
  } finally {
    await guard.end();
  }
}

function urlOf(cluster: Cluster, port: number | undefined, database: string): string {
  return `postgres://posthorn:${cluster.password}@127.0.0.1:${port}/${database}`;
}

/**
 * Below the range that outgoing connections are given: there, a client that keeps trying a server that is down
 * can end up connected to itself and hold the port.
 */
function randomPort(): number {
  return randomInt(20_000, 32_768);
}

function wrongPassword(cluster: Cluster, cause: unknown): OperatorError {
  const file = join(cluster.pgdata, 'posthorn.password');
  return new OperatorError(
    `The PostgreSQL in ${cluster.pgdata} refuses the password in ${file}. Put back the file that belongs to it.`,
    { cause },
  );
}

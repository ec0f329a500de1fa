/**
 * The connections to PostgreSQL. Every store function takes a `Sql`: a pool or a transaction, the caller decides.
 * Guarantees: while the database is unavailable every query fails, after 35 s at the latest; the pool reconnects by itself.
 */
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { type DatabaseAddress, type Endpoint, readDatabaseUrl } from './address.ts';
import { addErrorCode, Connection, type ConnectionOptions, closeTimeoutMs } from './connection.ts';
import { makeSql, type Sql, type UseConnection } from './query.ts';
import { runTransaction } from './transaction.ts';

export type { Sql };

export interface Pool extends Sql {
  begin<T>(work: (sql: Sql) => Promise<T>): Promise<T>;
  /** Calls `onNotify` after each NOTIFY, and after a reconnect, because notifications may have been lost. */
  listen(channel: string, onNotify: () => void): Promise<{ stop(): Promise<void> }>;
  /** The same connections, but every query and transaction first waits for `enter`, and at its end disposes of the result. */
  behind(enter: () => Disposable | Promise<Disposable>): Pool;
  /** Refuses new queries, waits at most `timeoutMs` for the running ones, then aborts them. */
  end(options?: { timeoutMs?: number }): Promise<void>;
}

/** A URL, or a function that is called for each new connection: the embedded server may come back elsewhere. */
export type Target = string | (() => DatabaseAddress);

interface PoolOptions extends ConnectionOptions {
  max: number;
  /** How long a query waits for a free connection: longer than the slowest statement before it may run. */
  checkOutTimeoutMs?: number;
}

export function connect(target: Target, options: PoolOptions): Pool {
  const findAddress = readTarget(target);
  const { use, end } = openPool(findAddress, options);
  const makePool = (use: UseConnection): Pool =>
    Object.assign(makeSql(use), {
      begin: <T>(work: (sql: Sql) => Promise<T>) => use((connection) => runTransaction(connection, work)),
      listen: (channel: string, onNotify: () => void) => listen(findAddress, options, channel, onNotify),
      behind: (enter: () => Disposable | Promise<Disposable>) => makePool(enterFirst(use, enter)),
      end,
    });
  return makePool(use);
}

function enterFirst(use: UseConnection, enter: () => Disposable | Promise<Disposable>): UseConnection {
  return async (work) => {
    const entered = enter();
    using _entered = entered instanceof Promise ? await entered : entered;
    return await use(work);
  };
}

function readTarget(target: Target): () => DatabaseAddress {
  if (typeof target === 'function') return target;
  const address = readDatabaseUrl(target);
  return () => address;
}

/** Runs `work` in a new transaction of a pool, or in the transaction that `sql` already is. */
export function transaction<T>(sql: Sql, work: (sql: Sql) => Promise<T>): Promise<T> {
  return isTransaction(sql) ? work(sql) : (sql as Pool).begin(work);
}

export function isTransaction(sql: Sql): boolean {
  return !('begin' in sql);
}

/** One connection outside of any pool, for locks that belong to a session of PostgreSQL. */
export interface DedicatedConnection {
  readonly sql: Sql;
  /** Resolves when the connection is closed or lost. */
  readonly closed: Promise<void>;
  end(): Promise<void>;
}

export async function openDedicated(
  target: Target,
  options: ConnectionOptions,
): Promise<DedicatedConnection> {
  const connection = await connectFirst(readTarget(target)(), options);
  return {
    sql: makeSql((work) => work(connection)),
    closed: new Promise((resolve) => connection.once('end', resolve)),
    end: () => connection.close(),
  };
}

/** `prepare` is a part of connecting: when it fails, or `signal` ends it, the connection is closed. */
async function connectFirst(
  address: DatabaseAddress,
  options: ConnectionOptions,
  { prepare, signal }: { prepare?: (connection: Connection) => Promise<unknown>; signal?: AbortSignal } = {},
): Promise<Connection> {
  let [endpoint] = address.endpoints;
  for (let attempts = 1; ; attempts += 1) {
    const connection = new Connection(address, endpoint, options);
    const abort = () => connection.abort('The connection is not needed any more');
    signal?.addEventListener('abort', abort, { once: true });
    try {
      await connection.connect();
      await connection.checkRole();
      await prepare?.(connection);
      return connection;
    } catch (error) {
      await connection.close();
      const failure = addErrorCode(error as Error);
      if (attempts >= address.endpoints.length || signal?.aborted) throw failure;
      endpoint = findNextEndpoint(address.endpoints, endpoint, failure);
    } finally {
      signal?.removeEventListener('abort', abort);
    }
  }
}

/** Skips fallbacks when the server was unavailable: that says nothing about encryption, and the pool would stay without it. */
function findNextEndpoint(
  endpoints: DatabaseAddress['endpoints'],
  failed: Endpoint,
  failure: Error,
): Endpoint {
  const index = endpoints.indexOf(failed);
  const others = [...endpoints.slice(index + 1), ...endpoints.slice(0, index)];
  return others.find(({ isFallback }) => !isFallback || !isUnavailable(failure)) ?? failed;
}

const defaultCheckOutTimeoutMs = 35_000;

function openPool(findAddress: () => DatabaseAddress, options: PoolOptions) {
  let address = findAddress();
  /** The endpoint that worked last. */
  let [endpoint] = address.endpoints;
  const connections = new Set<Connection>();
  const drained = Promise.withResolvers<void>();
  let inUse = 0;
  let isEnding = false;
  let isAborted = false;

  class PooledConnection extends Connection {
    readonly endpoint: Endpoint;

    constructor() {
      followAddress();
      super(address, endpoint, options);
      this.endpoint = endpoint;
      connections.add(this);
      this.once('end', () => connections.delete(this));
      // The pool opens a connection for each caller that still waits.
      if (isAborted) process.nextTick(() => this.abort('The pool was closed'));
    }

    override connect(): Promise<pg.Client>;
    override connect(callback: (error: Error) => void): void;
    override connect(callback?: (error: Error) => void): Promise<pg.Client> | undefined {
      if (!callback) return super.connect();
      super.connect((error: Error) => {
        // Before the pool lets the next caller connect.
        if (error) leave(this.endpoint, error);
        else this.once('end', leaveFallback);
        callback(error);
      });
    }
  }
  const pool = new pg.Pool({
    Client: PooledConnection,
    max: options.max,
    idleTimeoutMillis: 0,
    connectionTimeoutMillis: options.checkOutTimeoutMs ?? defaultCheckOutTimeoutMs,
  });
  // An idle connection was lost: the pool has removed it.
  pool.on('error', () => {});

  function followAddress(): void {
    const found = findAddress();
    if (found === address) return;
    address = found;
    [endpoint] = found.endpoints;
  }

  /** New connections use the next endpoint, unless another caller has moved on already. */
  function leave(failed: Endpoint, failure: Error): void {
    if (endpoint === failed) endpoint = findNextEndpoint(address.endpoints, failed, addErrorCode(failure));
  }

  /** When all connections were lost, the server may have restarted and may now accept what it refused. */
  function leaveFallback(): void {
    if (connections.size === 0 && endpoint.isFallback)
      endpoint = address.endpoints[address.endpoints.indexOf(endpoint) - 1] ?? endpoint;
  }

  /** Tries each endpoint once, beginning with the one that worked last. */
  async function checkOut(): Promise<PooledConnection & pg.PoolClient> {
    for (let attempts = 1; ; attempts += 1) {
      try {
        const connection = await connectToPool();
        if (!connection.isRoleKnown) await checkRole(connection);
        return connection;
      } catch (error) {
        const failure = addErrorCode(error as Error);
        // All connections are in use: that says nothing about the endpoint.
        const isBusy = failure.message.startsWith('timeout exceeded');
        if (isBusy || attempts >= address.endpoints.length || isAborted) throw failure;
      }
    }
  }

  function connectToPool(): Promise<PooledConnection & pg.PoolClient> {
    return new Promise((resolve, reject) => {
      pool.connect((error, client) =>
        client ? resolve(client as unknown as PooledConnection & pg.PoolClient) : reject(error),
      );
    });
  }

  /** Not by the `verify` option of the pool: it loses the connection of a caller that times out during the check. */
  async function checkRole(connection: PooledConnection & pg.PoolClient): Promise<void> {
    try {
      await connection.checkRole();
    } catch (error) {
      leave(connection.endpoint, error as Error);
      discard(connection);
      throw error;
    }
  }

  /** Calls `close` first: the pool's own end waits for the server, and callers that need a connection would wait with it. */
  function discard(connection: Connection & pg.PoolClient): void {
    void connection.close();
    connection.release(true);
  }

  async function use<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    if (isEnding) throw poolClosed();
    inUse += 1;
    try {
      const connection = await checkOut();
      try {
        if (isAborted) throw poolClosed();
        return await work(connection);
      } finally {
        if (connection.isReusable()) connection.release();
        else discard(connection);
      }
    } finally {
      inUse -= 1;
      if (isEnding && inUse === 0) drained.resolve();
    }
  }

  /** A part of the service may end its own pool before all pools are ended: the first call counts. */
  let ending: Promise<void> | undefined;
  function end(options: { timeoutMs?: number } = {}): Promise<void> {
    ending ??= endOnce(options);
    return ending;
  }

  // `pool.end` alone never answers callers that wait for a connection.
  async function endOnce({ timeoutMs }: { timeoutMs?: number }): Promise<void> {
    isEnding = true;
    if (inUse > 0) {
      const timer = timeoutMs === undefined ? undefined : setTimeout(abortAll, timeoutMs);
      await drained.promise;
      clearTimeout(timer);
    }
    const closed = [...connections].map(
      (connection) => new Promise((resolve) => connection.once('end', resolve)),
    );
    await pool.end();
    // The pool does not wait for its sockets, and a silent server would keep them open.
    const timer = setTimeout(abortAll, closeTimeoutMs);
    await Promise.all(closed);
    clearTimeout(timer);
  }

  function abortAll(): void {
    isAborted = true;
    for (const connection of connections) connection.abort('The pool was closed');
  }

  return { use, end };
}

function poolClosed(): Error {
  return Object.assign(new Error('The connections to the database are closed'), { code: 'CONNECTION_LOST' });
}

const relistenMs = 250;

async function listen(
  findAddress: () => DatabaseAddress,
  options: ConnectionOptions,
  channel: string,
  onNotify: () => void,
): Promise<{ stop(): Promise<void> }> {
  const stopping = new AbortController();
  let reopening: Promise<void> | undefined;
  let connection = await open();

  async function open(): Promise<Connection> {
    const opened = await connectFirst(findAddress(), options, {
      prepare: (connection) =>
        connection.on('notification', onNotify).run(`listen ${pg.escapeIdentifier(channel)}`),
      signal: stopping.signal,
    });
    opened.once('end', () => {
      reopening = reopen();
    });
    return opened;
  }

  async function reopen(): Promise<void> {
    while (!stopping.signal.aborted) {
      await delay(relistenMs, undefined, { signal: stopping.signal, ref: false }).catch(() => {});
      if (stopping.signal.aborted) return;
      try {
        connection = await open();
        return onNotify();
      } catch {
        // Every listener also polls, and logs that the database is unavailable.
      }
    }
  }

  return {
    async stop() {
      stopping.abort();
      await reopening;
      await connection.close();
    },
  };
}

/** The row of a query that always returns one. */
export function only<T>(rows: readonly T[]): T {
  const [row] = rows;
  if (row === undefined) throw new Error('The query returned no row');
  return row;
}

const unavailable = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ENOTFOUND',
  'EAI_AGAIN',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'CONNECTION_LOST', // ours, for errors of the driver without a code
  'STANDBY', // ours: no host is the primary
  'PASSWORD_REFUSED', // ours: perhaps a false server, in place of ours
  'ENOENT', // the Unix socket of a server that restarts
  '53100', // disk_full
  '53200', // out_of_memory
  '53300', // too_many_connections
  '57P01', // admin_shutdown
  '57P02', // crash_shutdown
  '57P03', // cannot_connect_now: starting up, shutting down, in recovery
  '57P05', // idle_session_timeout
  '25P03', // idle_in_transaction_session_timeout
  '40001', // serialization_failure
  '40P01', // deadlock_detected
  '57014', // query_canceled: our own statement_timeout
  '25006', // read_only_sql_transaction: a standby that is not promoted yet
]);

/** Whether the database was unreachable or too busy, so that a retry may succeed. */
export function isUnavailable(error: unknown): boolean {
  const code = errorCode(error);
  // The schema has changed since the statement was prepared: a new connection prepares the statement again.
  const isOutdated = code === '0A000' && /cached plan/.test((error as Error).message);
  // A file of our own that is missing, and not the socket of the server.
  const isFile = code === 'ENOENT' && (error as NodeJS.ErrnoException).syscall !== 'connect';
  if (code === undefined || isFile) return false;
  return unavailable.has(code) || code.startsWith('08') || isOutdated;
}

/** Whether PostgreSQL refused the statement, so that nothing was committed. After a lost connection nobody knows. */
export function isRefusal(error: unknown): boolean {
  return error instanceof pg.DatabaseError && !/^(08|57P)/.test(error.code ?? '');
}

/** The code of PostgreSQL (SQLSTATE), of the driver or of the operating system. */
export function errorCode(error: unknown): string | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  return typeof code === 'string' ? code : undefined;
}

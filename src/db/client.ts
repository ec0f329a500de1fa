/**
 * The connections to PostgreSQL. `Sql` is what every store function takes: a pool or a transaction, the caller decides.
 * Guarantees: all statements of a transaction run on one connection, and none runs elsewhere when that connection is lost; a
 * database that is away fails a query within seconds, and the pool connects again by itself.
 */
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { type DatabaseAddress, readDatabaseUrl } from './address.ts';
import { Connection, configure, describeError, type SessionOptions } from './connection.ts';
import { makeSql, type Runner, type Sql } from './query.ts';

export type { Sql };

export interface Pool extends Sql {
  begin<T>(work: (sql: Sql) => Promise<T>): Promise<T>;
  /** Calls `heard` after each NOTIFY, and when a lost connection is back, since some may have been missed. */
  listen(channel: string, heard: () => void): Promise<{ stop(): Promise<void> }>;
  /** Waits for what is under way, `timeoutMs` at most, then cuts it. From the call on, new queries are refused. */
  end(options?: { timeoutMs?: number }): Promise<void>;
}

export function connect(url: string, options: SessionOptions & { max: number }): Pool {
  const address = readDatabaseUrl(url);
  const connections = openPool(address, options);
  const { use } = connections;
  const runner: Runner = {
    ask: (statement) => use((connection) => connection.ask(statement)),
    askRows: (statement, take) => use((connection) => connection.askRows(statement, take)),
    runScript: (text) => use((connection) => connection.runScript(text)),
  };
  return Object.assign(makeSql(runner), {
    begin: <T>(work: (sql: Sql) => Promise<T>) => use((connection) => runTransaction(connection, work)),
    listen: (channel: string, heard: () => void) => listen(address, options, channel, heard),
    end: connections.end,
  });
}

/** One transaction: a new one on a pool, or the caller's own when it already is in one. */
export function transaction<T>(sql: Sql, work: (sql: Sql) => Promise<T>): Promise<T> {
  return 'begin' in sql ? (sql as Pool).begin(work) : work(sql);
}

/** A single connection for as long as it lasts, for whoever holds locks of the session. */
export interface Session {
  readonly sql: Sql;
  /** Resolves when the connection is gone, whoever closed it. */
  readonly gone: Promise<void>;
  end(): Promise<void>;
}

export async function openSession(url: string, options: SessionOptions): Promise<Session> {
  const connection = await connectFirst(readDatabaseUrl(url), options);
  const { promise: gone, resolve } = Promise.withResolvers<void>();
  connection.once('end', resolve);
  return { sql: makeSql(connection), gone, end: () => connection.close() };
}

/** By the first route that leads to a server that will do. */
async function connectFirst(address: DatabaseAddress, options: SessionOptions): Promise<Connection> {
  let failure: unknown;
  for (const route of address.routes) {
    const connection = new Connection(configure(address, route, options));
    try {
      await connection.connect();
      if (address.isPrimaryWanted) await connection.requirePrimary();
      return connection;
    } catch (error) {
      failure = error;
      await connection.close();
    }
  }
  throw describeError(failure as Error);
}

const waitTimeoutMs = 35_000;

interface Connections {
  /** Lends a connection for the time of `work`. */
  use<T>(work: (connection: Connection) => Promise<T>): Promise<T>;
  end(options?: { timeoutMs?: number }): Promise<void>;
}

function openPool(address: DatabaseAddress, options: SessionOptions & { max: number }): Connections {
  const { routes, isPrimaryWanted } = address;
  const connections = new Set<Connection>();
  let [route] = routes;
  let inUse = 0;
  let isEnding = false;
  let isCut = false;
  let drained = () => {};

  class PooledConnection extends Connection {
    constructor() {
      super(configure(address, route, options));
      connections.add(this);
      this.once('end', () => connections.delete(this));
    }
  }
  const pool = new pg.Pool({
    Client: PooledConnection,
    max: options.max,
    idleTimeoutMillis: 0,
    // How long a query waits for its turn: as long as the slowest statement before it may take.
    connectionTimeoutMillis: waitTimeoutMs,
    ...(isPrimaryWanted
      ? {
          verify: (client, done) =>
            void (client as unknown as Connection).requirePrimary().then(() => done(), done),
        }
      : {}),
  });
  // A connection at rest was lost: the pool has removed it.
  pool.on('error', () => {});

  /** Tries each route once, beginning with the one that worked last. */
  async function checkOut(): Promise<Connection & pg.PoolClient> {
    for (let tries = 1; ; tries += 1) {
      const tried = route;
      try {
        return (await pool.connect()) as unknown as Connection & pg.PoolClient;
      } catch (error) {
        // Unless another caller has moved on already.
        if (route === tried) route = routes[(routes.indexOf(tried) + 1) % routes.length] ?? tried;
        if (tries >= routes.length || isCut) throw describeError(error as Error);
      }
    }
  }

  async function use<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    if (isEnding) throw closed();
    inUse += 1;
    try {
      const connection = await checkOut();
      try {
        if (isCut) throw closed();
        return await work(connection);
      } finally {
        connection.release(!connection.isReusable());
      }
    } finally {
      inUse -= 1;
      if (inUse === 0) drained();
    }
  }

  async function end({ timeoutMs = Number.POSITIVE_INFINITY } = {}): Promise<void> {
    isEnding = true;
    const cut = () => {
      isCut = true;
      for (const connection of connections) connection.cut('The pool was closed');
    };
    if (inUse > 0) {
      const timer = Number.isFinite(timeoutMs) ? setTimeout(cut, timeoutMs) : undefined;
      await new Promise<void>((resolve) => {
        drained = resolve;
      });
      clearTimeout(timer);
    }
    await pool.end();
  }

  return { use, end };
}

function closed(): Error {
  return Object.assign(new Error('The connections to the database are closed'), { code: 'CONNECTION_LOST' });
}

async function runTransaction<T>(connection: Connection, work: (sql: Sql) => Promise<T>): Promise<T> {
  let isOpen = true;
  /** Statements run one after another, also when the work starts several at once. */
  let last: Promise<unknown> = Promise.resolve();
  function inTurn<A>(ask: () => Promise<A>): Promise<A> {
    if (!isOpen) return Promise.reject(new Error('This transaction has ended'));
    const answer = last.then(ask, ask);
    last = answer;
    return answer;
  }

  await connection.ask('begin');
  try {
    const result = await work(
      makeSql({
        ask: (statement) => inTurn(() => connection.ask(statement)),
        askRows: (statement, take) => inTurn(() => connection.askRows(statement, take)),
        runScript: (text) => inTurn(() => connection.runScript(text)),
      }),
    );
    const { command } = await inTurn(() => connection.ask('commit'));
    // After an error that the work swallowed, PostgreSQL answers a commit by rolling back.
    if (command !== 'COMMIT')
      throw new Error('The transaction was rolled back: one of its statements failed');
    return result;
  } catch (error) {
    // On a connection that is lost, PostgreSQL has rolled back already.
    await inTurn(() => connection.ask('rollback')).catch(() => {});
    throw error;
  } finally {
    isOpen = false;
  }
}

const relistenMs = 250;

async function listen(
  address: DatabaseAddress,
  options: SessionOptions,
  channel: string,
  heard: () => void,
): Promise<{ stop(): Promise<void> }> {
  const stopping = new AbortController();
  let connection = await open();

  async function open(): Promise<Connection> {
    const opened = await connectFirst(address, options);
    opened.on('notification', heard);
    try {
      await opened.ask(`listen ${pg.escapeIdentifier(channel)}`);
    } catch (error) {
      await opened.close();
      throw error;
    }
    opened.once('end', () => void reopen());
    return opened;
  }

  async function reopen(): Promise<void> {
    await delay(relistenMs, undefined, { signal: stopping.signal, ref: false }).catch(() => {});
    if (stopping.signal.aborted) return;
    try {
      connection = await open();
      heard();
    } catch {
      // Away: whoever listens also polls, and logs that.
      await reopen();
    }
  }

  return {
    async stop() {
      stopping.abort();
      await connection.close();
    },
  };
}

/** The only row of an answer that always has one. */
export function only<T>(rows: readonly T[]): T {
  const [row] = rows;
  if (row === undefined) throw new Error('The query was to give a row and gave none');
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
  'CONNECTION_LOST', // ours, for errors that the driver gives no code
  'STANDBY', // ours: none of the hosts is the primary
  '0A000', // feature_not_supported: a prepared statement from before an upgrade of the schema
  '53100', // disk_full
  '53300', // too_many_connections
  '57P01', // admin_shutdown
  '57P02', // crash_shutdown
  '57P03', // cannot_connect_now: starting up, shutting down, in recovery
  '40001', // serialization_failure
  '40P01', // deadlock_detected
  '57014', // query_canceled: our own statement_timeout
  '25006', // read_only_sql_transaction: a standby not promoted yet
]);

/** Whether the database was away or too busy, so that the same request may well work in a moment. */
export function isUnavailable(error: unknown): boolean {
  const code = errorCode(error);
  return code !== undefined && (unavailable.has(code) || code.startsWith('08'));
}

/** The SQLSTATE or the driver's or system's code. */
export function errorCode(error: unknown): string | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  return typeof code === 'string' ? code : undefined;
}

/** Waits, with a message and growing pauses, until the database answers; a version too old or a wrong password ends it. */
export async function waitForDatabase(sql: Pool, log: Log, signal?: AbortSignal): Promise<void> {
  for (let pauseMs = 250; ; pauseMs = Math.min(pauseMs * 2, 10_000)) {
    try {
      const { version } = only(await sql`select current_setting('server_version_num')::int as version`);
      if (version >= 150_000) return;
      throw new OperatorError(
        `PostgreSQL 15 or newer is needed; the database says ${Math.floor(version / 10_000)}.`,
      );
    } catch (error) {
      if (error instanceof OperatorError) throw error;
      const reason = error instanceof Error ? error.message || errorCode(error) : String(error);
      if (!isUnavailable(error)) {
        throw new OperatorError(`The database refused the connection: ${reason}\nCheck DATABASE_URL.`, {
          cause: error,
        });
      }
      log.warn(`the database does not answer (${reason}); trying again in ${pauseMs / 1000} s`);
      await pause(pauseMs, signal);
    }
  }
}

function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return delay(ms, undefined, signal ? { signal } : {}).catch(() => {
    throw new OperatorError('Stopped while waiting for the database.');
  });
}

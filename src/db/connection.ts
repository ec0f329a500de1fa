/**
 * One connection to PostgreSQL, by node-postgres. Guarantees: every question ends, with its own answer or an error, also when
 * the network falls silent; an error that comes while nobody asks ends the connection and not the process.
 */
import { Socket } from 'node:net';
import pg from 'pg';
import type { DatabaseAddress, Route } from './address.ts';
import type { Statement } from './sql.ts';

export interface SessionOptions {
  applicationName: string;
  /** 0: statements may take as long as they like. */
  statementTimeoutMs?: number;
  lockTimeoutMs?: number;
}

const connectTimeoutMs = 10_000;
const closeTimeoutMs = 1000;
const defaultStatementTimeoutMs = 30_000;

export class Connection extends pg.Client {
  #isAsked = false;
  #isSpent = false;
  readonly #socket: Socket;

  constructor(config: pg.ClientConfig & { silenceMs?: number }) {
    const socket = new Socket();
    const { silenceMs = 0, ...rest } = config;
    super({ ...rest, connectionTimeoutMillis: connectTimeoutMs, keepAlive: true, stream: () => socket });
    this.#socket = socket;
    // Whoever waits for an answer gets the error; a connection at rest leaves its pool by itself.
    this.on('error', () => {});
    if (silenceMs === 0) return;
    socket.setTimeout(silenceMs);
    // Counted from the last byte either way. The kernel would wait for a quarter of an hour.
    socket.on('timeout', () => {
      if (this.#isAsked) this.cut('PostgreSQL has not answered for too long');
    });
  }

  /** Whether another may use it: no transaction is open, and the server takes writes and knows its statements. */
  isReusable(): boolean {
    return !this.#isSpent && this.getTransactionStatus() === 'I';
  }

  async requirePrimary(): Promise<void> {
    const { rows } = await this.ask('select pg_is_in_recovery() as standby');
    if (rows[0]?.standby) throw Object.assign(new Error('The server is a standby'), { code: 'STANDBY' });
  }

  /** Says goodbye; a server that does not hear it is left after a second. */
  async close(): Promise<void> {
    const timer = setTimeout(() => this.cut('PostgreSQL did not end the connection'), closeTimeoutMs);
    await this.end();
    clearTimeout(timer);
  }

  /** Ends it at once, whatever is under way. */
  cut(reason: string): void {
    this.#socket.destroy(Object.assign(new Error(reason), { code: 'ETIMEDOUT' }));
  }

  ask(statement: Statement | string): Promise<pg.QueryResult> {
    this.#isAsked = true;
    return new Promise((resolve, reject) => {
      this.query(statement as Statement, (error: Error | undefined, result: pg.QueryResult) => {
        this.#isAsked = false;
        if (error) reject(this.#note(error));
        else resolve(result);
      });
    });
  }

  /** Hands over each row as it is read, and keeps none. */
  askRows(statement: Statement, take: (row: never) => void): Promise<void> {
    this.#isAsked = true;
    return new Promise<void>((resolve, reject) => {
      const query = new pg.Query(statement);
      let failure: { error: unknown } | undefined;
      query.on('row', (row) => {
        // Called while the driver reads: an exception here would break the connection.
        try {
          take(row as never);
        } catch (error) {
          failure ??= { error };
        }
      });
      query.on('error', (error) => reject(this.#note(error)));
      query.on('end', () => (failure ? reject(failure.error) : resolve()));
      this.query(query);
    }).finally(() => {
      this.#isAsked = false;
    });
  }

  /** One or more statements without parameters, which may take as long as they like. */
  async runScript(text: string): Promise<void> {
    await this.query(text).catch((error) => Promise.reject(this.#note(error)));
  }

  #note(error: Error): Error {
    this.#isSpent ||= !(error instanceof pg.DatabaseError) || spent.test(error.code ?? '');
    return describeError(error);
  }
}

/**
 * After these a connection is of no more use: the session ends, the server has become a standby, or a prepared statement is
 * older than the schema.
 */
const spent = /^(08|57P|25006|0A000)/;

/** The driver's configuration for a connection by that route. */
export function configure(
  address: DatabaseAddress,
  route: Route,
  options: SessionOptions,
): pg.ClientConfig & { silenceMs?: number } {
  const { user, password, database, settings } = address;
  const timeoutMs = options.statementTimeoutMs ?? defaultStatementTimeoutMs;
  const own = Number(settings.get('statement_timeout') ?? timeoutMs);
  const given = [...settings].filter(([name]) => name !== 'options');
  const flags = given.map(([name, value]) => `-c ${name}=${value.replaceAll(/[\\ ]/g, '\\$&')}`);
  return {
    ...route,
    ...(user === undefined ? {} : { user }),
    ...(password === undefined ? {} : { password }),
    ...(database === undefined ? {} : { database }),
    application_name: options.applicationName,
    ...(settings.has('statement_timeout') || timeoutMs === 0 ? {} : { statement_timeout: timeoutMs }),
    ...(options.lockTimeoutMs ? { lock_timeout: options.lockTimeoutMs } : {}),
    ...(flags.length > 0 || settings.has('options')
      ? { options: [settings.get('options'), ...flags].filter(Boolean).join(' ') }
      : {}),
    // Longer than any statement may take.
    ...(own > 0 ? { silenceMs: (own * 7) / 6 } : {}),
  };
}

/** Of these the driver has no code. */
const lost =
  /^(Connection terminated|timeout expired|Client (was closed|has encountered a connection error))/;

export function describeError(error: Error): Error {
  if ('code' in error && error.code !== undefined) return error;
  return lost.test(error.message) ? Object.assign(error, { code: 'CONNECTION_LOST' }) : error;
}

/**
 * One connection to PostgreSQL, by node-postgres. Guarantees: every statement ends with its own result or an error, also when
 * the network is silent; an error between two statements ends the connection and not the process; the password leaves only as
 * a SCRAM proof, from which a false server learns nothing.
 */
import { Socket } from 'node:net';
import pg from 'pg';
import { OperatorError } from '../lib/operator-error.ts';
import type { DatabaseAddress, Endpoint } from './address.ts';
import type { Statement } from './sql.ts';

export interface ConnectionOptions {
  applicationName: string;
  /** 0: no limit, whatever the URL or the role of the database say. The same for locks. */
  statementTimeoutMs?: number;
  lockTimeoutMs?: number;
}

const connectTimeoutMs = 10_000;
export const closeTimeoutMs = 1000;
const defaultStatementTimeoutMs = 30_000;

/** After these SQLSTATEs the session is over, the server is a standby, or a prepared statement is older than the schema. */
const unusableAfter = /^(08|57P|25006|0A000)/;

export class Connection extends pg.Client {
  readonly #address: DatabaseAddress;
  readonly #socket: Socket;
  #runningStatements = 0;
  #isRoleKnown = false;
  #isUnusable = false;

  constructor(address: DatabaseAddress, endpoint: Endpoint, options: ConnectionOptions) {
    const { user, password, database } = address;
    const settings = new Map([...address.settings, ...listUnlimited(options)]);
    const ownTimeoutMs = readMs(settings.get('statement_timeout'));
    const socket = new Socket();
    const timeoutMs = options.statementTimeoutMs ?? defaultStatementTimeoutMs;
    super({
      // To the driver 0 and an empty string mean: not set.
      ...{ ...endpoint, user, password, database, options: writeServerOptions(settings) },
      application_name: options.applicationName,
      statement_timeout: settings.has('statement_timeout') ? 0 : timeoutMs,
      lock_timeout: options.lockTimeoutMs ?? 0,
      connectionTimeoutMillis: address.connectTimeoutMs ?? connectTimeoutMs,
      keepAlive: true,
      enableChannelBinding: true,
      stream: () => socket,
    });
    this.#address = address;
    this.#socket = socket;
    // The failed statement reports the error; an idle connection leaves its pool by itself.
    this.on('error', () => {});
    const silenceMs = ((ownTimeoutMs ?? timeoutMs) * 7) / 6;
    if (!(silenceMs > 0)) return;
    // Without this timeout the kernel waits for a quarter of an hour.
    socket.setTimeout(silenceMs);
    socket.on('timeout', () => {
      if (this.#runningStatements > 0) this.abort('PostgreSQL did not reply in time');
    });
  }

  /** Whether the pool may lend the connection again. */
  isReusable(): boolean {
    return !this.#isUnusable && this.getTransactionStatus() === 'I';
  }

  /** Whether the server will do: any server, or one that is known to be the primary. */
  get isRoleKnown(): boolean {
    return this.#isRoleKnown || !this.#address.isPrimaryWanted;
  }

  /** Throws when only the primary will do and the server is a standby. */
  async checkRole(): Promise<void> {
    if (this.isRoleKnown) return;
    const { rows } = await this.run('select pg_is_in_recovery() as standby');
    if (rows[0]?.standby) throw Object.assign(new Error('The server is a standby'), { code: 'STANDBY' });
    this.#isRoleKnown = true;
  }

  /** Closes the connection in order; when the server does not react, after a second without it. */
  async close(): Promise<void> {
    const timer = setTimeout(() => this.abort('PostgreSQL did not close the connection'), closeTimeoutMs);
    await this.end();
    clearTimeout(timer);
  }

  /** Closes the connection at once; running statements fail. */
  abort(reason: string): void {
    this.#socket.destroy(Object.assign(new Error(reason), { code: 'ETIMEDOUT' }));
  }

  /** The driver calls this method when the server asks, and would send the password to any server that does. */
  _handleAuthCleartextPassword(): void {
    this.#refusePassword('in clear text');
  }

  /** As above. A false server could ask with the salt of the real server, and open a session there with the answer. */
  _handleAuthMD5Password(): void {
    this.#refusePassword('as an MD5 hash');
  }

  /** With channel binding, a false server cannot pass the proof of the password on to the real server. */
  _handleAuthSASL(request: { mechanisms: string[] }): void {
    if (this.#address.isChannelBindingRequired && !request.mechanisms.includes('SCRAM-SHA-256-PLUS')) {
      this.#refuseLogin(
        'DATABASE_URL has channel_binding=require, but the server does not offer it on this connection. Use TLS ' +
          '(sslmode=require) and SCRAM passwords, or remove the parameter.',
      );
    } else Reflect.get(pg.Client.prototype, '_handleAuthSASL').call(this, request);
  }

  #refusePassword(form: string): void {
    this.#refuseLogin(
      `The database server asked for the password ${form}, and Posthorn answers only SCRAM. On the server set ` +
        "password_encryption = 'scram-sha-256', set the password again (ALTER ROLE … PASSWORD …), and set the method " +
        'scram-sha-256 in pg_hba.conf.',
    );
  }

  #refuseLogin(message: string): void {
    this.connection.emit('error', Object.assign(new OperatorError(message), { code: 'PASSWORD_REFUSED' }));
    this.#socket.destroy();
  }

  /** By callback: the driver's own promises cost a tenth of a small query. */
  run(statement: Statement | string): Promise<pg.QueryResult> {
    this.#runningStatements += 1;
    return new Promise((resolve, reject) => {
      this.query(statement as Statement, (error: Error | null, result: pg.QueryResult) => {
        this.#runningStatements -= 1;
        if (error) reject(this.#inspect(error));
        else resolve(result);
      });
    });
  }

  /** Passes on each row when it arrives, and keeps none. */
  async runForEach(statement: Statement, take: (row: never) => void): Promise<void> {
    const query = new pg.Query(statement);
    let failure: { error: unknown } | undefined;
    query.on('row', (row) => {
      // An exception in the driver's event handler would break the connection.
      try {
        take(row as never);
      } catch (error) {
        failure ??= { error };
      }
    });
    const ended = new Promise<unknown>((resolve, reject) => query.on('end', resolve).on('error', reject));
    this.#runningStatements += 1;
    this.query(query);
    try {
      await ended;
    } catch (error) {
      throw this.#inspect(error as Error);
    } finally {
      this.#runningStatements -= 1;
    }
    if (failure) throw failure.error;
  }

  /** One or more statements without parameters and without a time limit. */
  async runScript(text: string): Promise<void> {
    await this.query(text).catch((error) => Promise.reject(this.#inspect(error)));
  }

  #inspect(error: Error): Error {
    this.#isUnusable ||= !(error instanceof pg.DatabaseError) || unusableAfter.test(error.code ?? '');
    return addErrorCode(error);
  }
}

/** Session settings from DATABASE_URL in the form of the `options` start parameter. */
/**
 * Every statement reads by an index. PostgreSQL keeps a plan that it made while a table was empty, when reading all of it is cheapest:
 * after a quiet night the queue of deliveries is empty, then a replay puts 400,000 rows into it, and recording a result took more
 * than 30 s until the next ANALYZE. A merge join would read a whole index. An incremental sort would read all rows of an owner by an
 * index for lists, to return one row: each hop of a claim did so when the queue had filled since the last ANALYZE. JIT would compile
 * the few statements that have no index to read by, because PostgreSQL up to 17 makes them look expensive.
 */
const planSettings = {
  enable_seqscan: 'off',
  enable_mergejoin: 'off',
  enable_incremental_sort: 'off',
  jit: 'off',
};

/** The driver cannot send a limit of 0. */
function listUnlimited({ statementTimeoutMs, lockTimeoutMs }: ConnectionOptions): [string, string][] {
  return [
    ...(statementTimeoutMs === 0 ? [['statement_timeout', '0'] as [string, string]] : []),
    ...(lockTimeoutMs === 0 ? [['lock_timeout', '0'] as [string, string]] : []),
  ];
}

function writeServerOptions(settings: ReadonlyMap<string, string>): string {
  const { options, ...others }: Record<string, string> = { ...planSettings, ...Object.fromEntries(settings) };
  const flags = Object.entries(others).map(
    ([name, value]) => `-c ${name}=${value.replaceAll(/[\\ ]/g, '\\$&')}`,
  );
  return [options, ...flags].filter(Boolean).join(' ');
}

const unitsMs: Record<string, number> = { ms: 1, s: 1000, min: 60_000, h: 3_600_000, d: 86_400_000 };

/** A time as PostgreSQL writes it, such as `5s`; undefined when it cannot be read. */
function readMs(text = ''): number | undefined {
  const [, digits, unit] = /^\s*(\d+)\s*([a-z]*)\s*$/.exec(text) ?? [];
  const unitMs = unitsMs[unit || 'ms'];
  return digits && unitMs ? Number(digits) * unitMs : undefined;
}

/** Errors of the driver that have no code. */
const lost =
  /^(Connection terminated|timeout (expired|exceeded)|Client (was closed|has encountered a connection error))/;

export function addErrorCode(error: Error): Error {
  if ('code' in error && error.code !== undefined) return error;
  return lost.test(error.message) ? Object.assign(error, { code: 'CONNECTION_LOST' }) : error;
}

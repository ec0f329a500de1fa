/**
 * The connection to PostgreSQL. `Sql` is what every store function takes: a pool or a transaction, the caller
 * decides. A database that is away fails a query within seconds, and the pool connects again by itself.
 */
import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { checkServerIdentity, type PeerCertificate } from 'node:tls';
import type postgresTypes from 'postgres';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { postgres } from './driver.ts';

// biome-ignore lint/complexity/noBannedTypes: the driver's own default for "no custom types".
export type Sql = postgresTypes.ISql<{}>;
export type Pool = postgresTypes.Sql;

/** An array type, which PostgreSQL writes as `{a,"b c",NULL}`. */
function arrayType(oid: number, write: (value: unknown) => string) {
  return {
    to: oid,
    from: [oid],
    serialize: (values: readonly unknown[]) =>
      `{${values.map((value) => (value === null ? 'NULL' : write(value))).join(',')}}`,
    parse: (text: string) =>
      [...text.slice(1, -1).matchAll(/"((?:[^"\\]|\\.)*)"|[^,]+/g)].map(([plain, quoted]) =>
        quoted === undefined ? plain : quoted.replace(/\\(.)/g, '$1'),
      ),
  };
}

/** Any text between quotes. */
function quoted(value: unknown): string {
  const text = String(value);
  return /["\\]/.test(text) ? `"${text.replace(/["\\]/g, '\\$&')}"` : `"${text}"`;
}

// Their oids are fixed in PostgreSQL's own catalogue.
const types = {
  textArray: arrayType(1009, quoted),
  // No character of these means something in an array.
  uuidArray: arrayType(2951, String),
  intArray: arrayType(1007, String),
  floatArray: arrayType(1022, String),
  jsonArray: arrayType(199, quoted),
};

export function connect(
  url: string,
  options: { max: number; applicationName: string; statementTimeoutMs?: number },
): Pool {
  const { rest, isPrimaryWanted } = readHostWish(url);
  const { plainUrl, ssl } = readTls(rest);
  return postgres(plainUrl, {
    max: options.max,
    ...(ssl === undefined ? {} : { ssl }),
    ...(isPrimaryWanted ? { target_session_attrs: 'primary' } : {}),
    connect_timeout: 5,
    // The driver's own backoff grows to 20 s, and a request would hang that long; ours is answered 503 soon.
    backoff: () => 0.25,
    // Fetching array types at connect crashes the process when the connection dies in the middle of it
    // (porsager/postgres 3.4.9, an unhandled rejection), so the ones we use are told here.
    fetch_types: false,
    types,
    connection: {
      application_name: options.applicationName,
      statement_timeout: options.statementTimeoutMs ?? 30_000,
    },
    onnotice: () => {},
  });
}

/** One transaction: a new one on a pool, or the caller's own when it already is in one. */
export function transaction<T>(sql: Sql, work: (sql: Sql) => Promise<T>): Promise<T> {
  return 'begin' in sql ? ((sql as Pool).begin(work) as Promise<T>) : work(sql);
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
  'CONNECT_TIMEOUT',
  'CONNECTION_CLOSED',
  'CONNECTION_ENDED',
  'CONNECTION_DESTROYED',
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

/**
 * Of several hosts the service wants the one that takes writes. The driver's own `read-write` asks a server for its default
 * only, which a standby has as well; `primary` asks what it is.
 */
function readHostWish(url: string): { rest: string; isPrimaryWanted: boolean } {
  const [address = '', query = ''] = url.split('?', 2);
  const parameters = new URLSearchParams(query);
  const wish = parameters.get('target_session_attrs');
  parameters.delete('target_session_attrs');
  if (![null, 'any', 'primary', 'read-write'].includes(wish)) {
    throw new OperatorError(
      `DATABASE_URL has target_session_attrs=${wish}, and Posthorn writes: leave it out, or say primary.`,
    );
  }
  const rest = parameters.size > 0 ? `${address}?${parameters}` : address;
  const isPrimaryWanted = readHosts(address).length > 1 || wish === 'primary' || wish === 'read-write';
  return { rest, isPrimaryWanted };
}

type TlsOption = NonNullable<postgresTypes.Options<Record<string, never>>['ssl']>;

/** libpq's TLS parameters; the driver knows `sslmode` alone and would send the files' names to the server. */
function readTls(url: string): { plainUrl: string; ssl: TlsOption | undefined } {
  const [address = '', query = ''] = url.split('?', 2);
  const parameters = new URLSearchParams(query);
  const take = (name: string) => {
    const value = parameters.get(name);
    parameters.delete(name);
    return value;
  };
  const mode = take('sslmode');
  const files = { ca: take('sslrootcert'), cert: take('sslcert'), key: take('sslkey') };
  const plainUrl = parameters.size > 0 ? `${address}?${parameters}` : address;

  const named = Object.entries(files).filter(
    (entry): entry is [string, string] => entry[1] !== null && entry[1] !== 'system',
  );
  if (mode === 'disable' || (mode === null && named.length === 0))
    return { plainUrl, ssl: mode ? false : undefined };
  if (named.length === 0 && !mode?.startsWith('verify')) return { plainUrl, ssl: mode as TlsOption };
  const contents = named.map(([option, file]) => [option, readPem(file)]);
  // As libpq does: a root certificate makes `require` check the chain; only verify-full checks the name.
  const checks = { rejectUnauthorized: files.ca !== null || mode?.startsWith('verify') === true };
  const checkName = mode === 'verify-full' ? checkAgainst(readHosts(address)) : () => undefined;
  return { plainUrl, ssl: { ...Object.fromEntries(contents), ...checks, checkServerIdentity: checkName } };
}

/** The driver names no address to TLS, and a certificate would be held against `localhost` instead. */
function checkAgainst(hosts: readonly string[]) {
  return (name: string, certificate: PeerCertificate): Error | undefined => {
    const names = hosts.includes(name) ? [name] : hosts.filter((host) => isIP(host));
    const faults = names.map((host) => checkServerIdentity(host, certificate));
    return faults.includes(undefined) ? undefined : (faults[0] ?? checkServerIdentity(name, certificate));
  };
}

function readHosts(address: string): string[] {
  const [authority = ''] = address.replace(/^\w+:\/\//, '').split('/', 1);
  const hosts = authority.slice(authority.lastIndexOf('@') + 1).split(',');
  return hosts.map((host) => host.replace(/:\d+$/, '').replaceAll(/[[\]]/g, ''));
}

function readPem(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    throw new OperatorError(`DATABASE_URL names the file ${file}, which cannot be read.`, { cause });
  }
}

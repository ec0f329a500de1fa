/** Parses DATABASE_URL as libpq does: hosts, TLS, and settings for the session. */
import { readFileSync } from 'node:fs';
import type { ConnectionOptions } from 'node:tls';
import { OperatorError } from '../lib/operator-error.ts';

export interface Endpoint {
  host: string;
  port: number;
  ssl: ConnectionOptions | false;
}

export interface DatabaseAddress {
  user: string | undefined;
  password: string | undefined;
  database: string | undefined;
  /** In the order in which they are tried. */
  endpoints: readonly [Endpoint, ...Endpoint[]];
  isPrimaryWanted: boolean;
  connectTimeoutMs: number | undefined;
  /** PostgreSQL settings for every session, such as `statement_timeout`. */
  settings: ReadonlyMap<string, string>;
}

export function readDatabaseUrl(url: string): DatabaseAddress {
  const [base = '', query = ''] = url.split('?', 2);
  const [, authority = '', path = ''] = /^\w+:\/\/([^/]*)\/?(.*)$/.exec(base) ?? [];
  const at = authority.lastIndexOf('@');
  const [user, password] = authority.slice(0, Math.max(at, 0)).split(/:(.*)/s);
  const settings = new Map(new URLSearchParams(query));
  const take = (name: string) => {
    const value = settings.get(name);
    settings.delete(name);
    return value;
  };
  const hosts = readHosts(take('host') ?? authority.slice(at + 1), take('port'));
  const wantedRole = take('target_session_attrs') ?? 'any';
  if (!['any', 'primary', 'read-write'].includes(wantedRole)) {
    throw new OperatorError(
      `DATABASE_URL has target_session_attrs=${wantedRole}, but Posthorn needs a server that accepts writes. ` +
        'Remove the parameter, or set it to primary.',
    );
  }
  const files = { ca: take('sslrootcert'), cert: take('sslcert'), key: take('sslkey') };
  // As in libpq: the certificates of the system verify the host name too.
  const tls = readTls(take('sslmode') ?? (files.ca === 'system' ? 'verify-full' : undefined), files);
  const connectTimeoutMs = Number(take('connect_timeout') ?? 0) * 1000 || undefined;
  return {
    user: decode(user),
    password: decode(password),
    database: decode(path),
    endpoints: hosts.flatMap((host) => tls.map((ssl) => ({ ...host, ssl }))) as [Endpoint],
    isPrimaryWanted: hosts.length > 1 || wantedRole !== 'any',
    connectTimeoutMs,
    settings,
  };
}

function decode(text: string | undefined): string | undefined {
  return text ? decodeURIComponent(text) : undefined;
}

function readHosts(list: string, port = '5432'): Omit<Endpoint, 'ssl'>[] {
  return list.split(',').map((text) => {
    const [, host = '', ownPort = port] = /^(.*?)(?::(\d+))?$/.exec(text) ?? [];
    return { host: decode(host.replaceAll(/[[\]]/g, '')) ?? 'localhost', port: Number(ownPort) };
  });
}

/** The ways to encrypt, in the order in which they are tried. */
function readTls(
  mode: string | undefined,
  files: Record<'ca' | 'cert' | 'key', string | undefined>,
): (ConnectionOptions | false)[] {
  const named = Object.entries(files).filter(
    (entry): entry is [string, string] => entry[1] !== undefined && entry[1] !== 'system',
  );
  if (mode === 'disable' || (mode === undefined && named.length === 0)) return [false];
  const isVerified = files.ca !== undefined || mode?.startsWith('verify') === true;
  const encrypted: ConnectionOptions = {
    ...Object.fromEntries(named.map(([option, file]) => [option, readPem(file)])),
    // As in libpq: with a root certificate `require` verifies the chain; only verify-full verifies the host name.
    rejectUnauthorized: isVerified,
    ...(mode === 'verify-full' ? {} : { checkServerIdentity: () => undefined }),
  };
  if (mode === 'prefer') return [encrypted, false];
  return mode === 'allow' ? [false, encrypted] : [encrypted];
}

function readPem(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    throw new OperatorError(`Posthorn cannot read the file ${file} that DATABASE_URL names.`, { cause });
  }
}

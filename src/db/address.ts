/** What a DATABASE_URL says, read as libpq reads it: hosts, TLS, and settings for the session. */
import { readFileSync } from 'node:fs';
import type { ConnectionOptions } from 'node:tls';
import { OperatorError } from '../lib/operator-error.ts';

/** One way to reach the database. */
export interface Route {
  host: string;
  port: number;
  ssl: ConnectionOptions | false;
}

export interface DatabaseAddress {
  user: string | undefined;
  password: string | undefined;
  database: string | undefined;
  /** In the order in which they are tried. */
  routes: readonly [Route, ...Route[]];
  /** A standby will not do. */
  isPrimaryWanted: boolean;
  /** Session settings that PostgreSQL is given at the start, such as `statement_timeout`. */
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
  const wish = take('target_session_attrs');
  refuseStandbyWish(wish);
  const tls = readTls({
    mode: take('sslmode'),
    ca: take('sslrootcert'),
    cert: take('sslcert'),
    key: take('sslkey'),
  });
  return {
    user: decode(user),
    password: decode(password),
    database: decode(path),
    routes: hosts.flatMap((host) => tls.map((ssl) => ({ ...host, ssl }))) as [Route],
    // Of several hosts the service wants the one that takes writes.
    isPrimaryWanted: hosts.length > 1 || wish === 'primary' || wish === 'read-write',
    settings,
  };
}

function decode(text: string | undefined): string | undefined {
  return text ? decodeURIComponent(text) : undefined;
}

function readHosts(list: string, port = '5432'): Omit<Route, 'ssl'>[] {
  return list.split(',').map((text) => {
    const [, host = '', ownPort = port] = /^(.*?)(?::(\d+))?$/.exec(text) ?? [];
    return { host: decode(host.replaceAll(/[[\]]/g, '')) ?? 'localhost', port: Number(ownPort) };
  });
}

function refuseStandbyWish(wish: string | undefined): void {
  if (wish === undefined || ['any', 'primary', 'read-write'].includes(wish)) return;
  throw new OperatorError(
    `DATABASE_URL has target_session_attrs=${wish}, but Posthorn needs a server that accepts writes. ` +
      'Remove the parameter, or set it to primary.',
  );
}

type TlsFiles = { ca: string | undefined; cert: string | undefined; key: string | undefined };

/** The ways to encrypt, in the order in which they are tried. */
function readTls({ mode, ...files }: TlsFiles & { mode: string | undefined }): (ConnectionOptions | false)[] {
  const named = Object.entries(files).filter(
    (entry): entry is [string, string] => entry[1] !== undefined && entry[1] !== 'system',
  );
  if (mode === 'disable' || (mode === undefined && named.length === 0)) return [false];
  const isChecked = files.ca !== undefined || mode?.startsWith('verify') === true;
  const encrypted: ConnectionOptions = {
    ...Object.fromEntries(named.map(([option, file]) => [option, readPem(file)])),
    // As libpq does: a root certificate makes `require` check the chain; only verify-full checks the name.
    rejectUnauthorized: isChecked,
    ...(mode === 'verify-full' ? {} : { checkServerIdentity: () => undefined }),
  };
  if (mode === 'prefer') return [encrypted, false];
  return mode === 'allow' ? [false, encrypted] : [encrypted];
}

function readPem(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    throw new OperatorError(`DATABASE_URL names the file ${file}, which cannot be read.`, { cause });
  }
}

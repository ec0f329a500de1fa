/** Parses DATABASE_URL as libpq does: hosts, TLS, and settings for the session. */
import { readFileSync } from 'node:fs';
import { type ConnectionOptions, createSecureContext, getCACertificates, type SecureContext } from 'node:tls';
import { OperatorError } from '../lib/operator-error.ts';

export interface Endpoint {
  host: string;
  port: number;
  ssl: ConnectionOptions | false;
  /** Tried only when the server has refused the endpoint before it, which differs in encryption. */
  isFallback: boolean;
}

export interface DatabaseAddress {
  user: string | undefined;
  password: string | undefined;
  database: string | undefined;
  /** In the order in which they are tried. */
  endpoints: readonly [Endpoint, ...Endpoint[]];
  isPrimaryWanted: boolean;
  /** The server must prove that it is the end of the TLS connection (SCRAM-SHA-256-PLUS). */
  isChannelBindingRequired: boolean;
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
  const hosts = readHosts(authority.slice(at + 1), take('host'), take('port'));
  const wantedRole = take('target_session_attrs') ?? 'any';
  if (!['any', 'primary', 'read-write'].includes(wantedRole)) {
    throw new OperatorError(
      `DATABASE_URL has target_session_attrs=${wantedRole}, but Posthorn needs a server that accepts writes. ` +
        'Remove the parameter, or set it to primary.',
    );
  }
  const tls = readTls(take('sslmode'), {
    ca: take('sslrootcert'),
    cert: take('sslcert'),
    key: take('sslkey'),
  });
  const address = {
    user: take('user') ?? decode(user),
    password: take('password') ?? decode(password),
    database: take('dbname') ?? decode(path),
    endpoints: hosts.flatMap((host) =>
      tls.map((ssl, n) => ({ ...host, ssl, isFallback: n > 0 })),
    ) as readonly Endpoint[] as DatabaseAddress['endpoints'],
    isPrimaryWanted: hosts.length > 1 || wantedRole !== 'any',
    isChannelBindingRequired: settings.get('channel_binding') === 'require',
    connectTimeoutMs: readTimeout(take('connect_timeout')),
  };
  for (const [name, allowed] of Object.entries(clientParameters)) {
    const value = take(name);
    if (value !== undefined && !allowed.test(value)) {
      throw new OperatorError(
        `DATABASE_URL has the parameter ${name} with a value that Posthorn does not support. Remove the parameter.`,
      );
    }
  }
  return { ...address, settings };
}

/** The other parameters that libpq reads itself, and the values that need nothing. To PostgreSQL they are unknown settings. */
const clientParameters: Readonly<Record<string, RegExp>> = {
  // Posthorn notices by itself when the network is silent, and tries hosts in their order.
  ...allow(
    /^/,
    'keepalives',
    'keepalives_idle',
    'keepalives_interval',
    'keepalives_count',
    'tcp_user_timeout',
  ),
  ...allow(/^/, 'load_balance_hosts', 'fallback_application_name', 'max_protocol_version'),
  ...allow(/^/, 'gssdelegation', 'gsslib', 'krbsrvname'),
  gssencmode: /^(disable|prefer)$/,
  channel_binding: /^(disable|prefer|require)$/,
  require_auth: /^(scram-sha-256)?$/,
  ...allow(/^0$/, 'requiressl', 'sslcompression'),
  client_encoding: /^(auto|utf-?8)$/i,
  min_protocol_version: /^3\.0$/,
  sslcertmode: /^allow$/,
  sslnegotiation: /^postgres$/,
  sslsni: /^1$/,
  // Node begins with TLS 1.2.
  ssl_min_protocol_version: /^TLSv1(\.[12])?$/,
  ssl_max_protocol_version: /^TLSv1\.3$/,
  ...allow(/^$/, 'requirepeer', 'sslcrl', 'sslcrldir', 'sslkeylogfile', 'sslpassword'),
  ...allow(/^$/, 'scram_client_key', 'scram_server_key', 'passfile', 'service', 'servicefile', 'hostaddr'),
  ...allow(/^$/, 'replication'),
};

function allow(values: RegExp, ...names: string[]): Record<string, RegExp> {
  return Object.fromEntries(names.map((name) => [name, values]));
}

function decode(text: string | undefined): string | undefined {
  return text ? decodeURIComponent(text) : undefined;
}

/** Hosts and ports come from `@one:5432,two:5433`; the parameters `host` and `port` replace them, as in libpq. */
function readHosts(
  authority: string,
  hostParameter: string | undefined,
  portParameter: string | undefined,
): Pick<Endpoint, 'host' | 'port'>[] {
  const written = authority.split(',').map((text) => /^(\[.*\]|[^:]*)(?::(.*))?$/.exec(text) ?? [text, text]);
  const hosts = hostParameter?.split(',') ?? written.map(([, host]) => decode(host) ?? '');
  const ports = portParameter?.split(',') ?? written.map(([, , port]) => port ?? '');
  if (ports.length !== 1 && ports.length !== hosts.length) {
    throw new OperatorError(
      `DATABASE_URL has ${hosts.length} hosts and ${ports.length} ports. Give each host a port, or give one port for all.`,
    );
  }
  return hosts.map((host, n) => ({
    host: host.replaceAll(/[[\]]/g, '') || 'localhost',
    port: readPort(ports[ports.length === 1 ? 0 : n] || '5432'),
  }));
}

function readPort(text: string): number {
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0;
  if (port >= 1 && port <= 65_535) return port;
  throw new OperatorError(`DATABASE_URL has the port "${text}". A port is a number from 1 to 65535.`);
}

/** Undefined: the default. For libpq 0 means no limit; Posthorn never waits for ever. */
function readTimeout(seconds = '0'): number | undefined {
  if (!/^-?\d{1,6}$/.test(seconds)) {
    throw new OperatorError(
      `DATABASE_URL has connect_timeout=${seconds}. Give a whole number of seconds, at most six digits.`,
    );
  }
  return Number(seconds) > 0 ? Number(seconds) * 1000 : undefined;
}

const tlsModes = ['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full'];

/** The ways to encrypt, in the order in which they are tried. */
function readTls(
  wanted: string | undefined,
  files: Record<'ca' | 'cert' | 'key', string | undefined>,
): (ConnectionOptions | false)[] {
  const isSystem = files.ca === 'system';
  const hasFiles = Object.values(files).some((file) => file !== undefined);
  // As in libpq: the certificates of the system verify the host name too.
  const mode = wanted ?? (isSystem ? 'verify-full' : hasFiles ? 'require' : 'disable');
  if (!tlsModes.includes(mode)) {
    throw new OperatorError(`DATABASE_URL has sslmode=${mode}. Use one of: ${tlsModes.join(', ')}.`);
  }
  // Anybody can get a certificate from a public authority: without the host name it proves nothing.
  if (isSystem && mode !== 'verify-full') {
    throw new OperatorError(
      `DATABASE_URL has sslrootcert=system with sslmode=${mode}. Set sslmode=verify-full, or remove sslmode.`,
    );
  }
  if (mode === 'disable') return [false];
  const { ca, cert, key } = files;
  const encrypted: ConnectionOptions = {
    // Made once: the system has hundreds of certificates, and each connection would parse all of them.
    secureContext: readCertificates({
      ca: isSystem ? getCACertificates('system') : readPem(ca),
      cert: readPem(cert),
      key: readPem(key),
    }),
    // As in libpq: with a root certificate `require` verifies the chain; only verify-full verifies the host name.
    rejectUnauthorized: ca !== undefined || mode.startsWith('verify'),
    ...(mode === 'verify-full' ? {} : { checkServerIdentity: () => undefined }),
  };
  if (mode === 'prefer') return [encrypted, false];
  return mode === 'allow' ? [false, encrypted] : [encrypted];
}

function readCertificates(options: Parameters<typeof createSecureContext>[0]): SecureContext {
  try {
    return createSecureContext(options);
  } catch (cause) {
    const reason = (cause as Error).message;
    throw new OperatorError(
      `Posthorn cannot use the certificates that DATABASE_URL names: ${reason}\nCheck sslrootcert, sslcert and sslkey.`,
      { cause },
    );
  }
}

function readPem(file: string | undefined): string | undefined {
  if (file === undefined) return undefined;
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    throw new OperatorError(`Posthorn cannot read the file ${file} that DATABASE_URL names.`, { cause });
  }
}

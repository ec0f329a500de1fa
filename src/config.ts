/**
 * The only reader of the environment. Every setting is declared once, in `settings` below or in what it takes in: how it is read, its
 * default, and the sentence that docs/config.md shows. A mistake stops the start, and all mistakes are told at once.
 */
import path from 'node:path';
import { type LogLevel, logLevels } from './lib/log.ts';
import { OperatorError } from './lib/operator-error.ts';
import {
  addressRange,
  basePath,
  bool,
  dnsServer,
  Fault,
  hostName,
  list,
  nodeEnv,
  oneOf,
  origin,
  port,
  postgresUrl,
  publicUrl,
  secretKey,
  setting,
  text,
  token,
  wholeNumber,
} from './lib/setting-readers.ts';
import { suggest } from './lib/suggest.ts';
import { readTraceConfig, traceSettings, wantsTraces } from './lib/trace-settings.ts';

const roles = ['api', 'smtp', 'deliver', 'verify'] as const;
type Role = (typeof roles)[number];

export type Config = ReturnType<typeof readConfig>;

// `null` as a default means: depends on the others, worked out in `readConfig`.
export const settings = {
  PORT: setting(port, 3000, '3000', 'Port of the API. `0` takes a free one.'),
  HOST: setting(text, '127.0.0.1', '127.0.0.1', 'Address the API listens on.'),
  NODE_ENV: setting<string>(
    nodeEnv,
    'development',
    'development',
    '`production` turns on the strict defaults below.',
  ),
  DATABASE_URL: setting<string | null>(
    postgresUrl,
    null,
    'the embedded PostgreSQL',
    'A PostgreSQL 15 or newer: `postgres://user:password@host/database`. `sslmode`, `sslrootcert`, `sslcert` and `sslkey` are honoured. Of several hosts (`@one:5432,two:5432/database`) the primary is used, also after a failover.',
    { secret: true },
  ),
  POSTHORN_DATA_DIR: setting<string>(
    text,
    './data',
    './data',
    'Folder of the embedded PostgreSQL (`postgres/`) and of `secret.key`.',
  ),
  POSTHORN_AUTO_MIGRATE: setting(
    bool,
    true,
    'true',
    'Bring the schema up to date at start. `false`: run `posthorn migrate` yourself.',
  ),
  POSTHORN_BASE_PATH: setting(basePath, '', 'none', 'Prefix of every route, for example `/api/v2`.'),
  POSTHORN_PUBLIC_URL: setting<string | null>(
    publicUrl,
    null,
    'none; required in production',
    'Where the world reaches this service, without the base path. `Link` and `Location` are absolute under it.',
  ),
  POSTHORN_ROLES: setting<readonly Role[]>(
    list(oneOf(roles)),
    roles,
    roles.join(','),
    'What this process does. Run more processes with fewer roles each to scale out.',
  ),
  POSTHORN_SECRET_KEY: setting<readonly Buffer[] | null>(
    list(secretKey),
    null,
    'made and kept in the data folder when embedded; else required',
    'Encrypts secrets at rest: 32 bytes in base64 or hex (`openssl rand -base64 32`). Several with commas: the first encrypts, the others only decrypt.',
    { secret: true },
  ),
  POSTHORN_ADMIN_TOKEN: setting<string | null>(
    token,
    null,
    'none: the routes do not exist',
    'Bearer token of the `/admin` routes, at least 32 characters.',
    { secret: true },
  ),
  POSTHORN_RATE_LIMIT: setting(
    wholeNumber(0, 1e9),
    6000,
    '6000',
    'Requests a minute for each API key and process. `0`: no limit.',
  ),
  POSTHORN_CORS_ORIGINS: setting<readonly string[]>(
    list(origin),
    [],
    'none: CORS is off',
    'Origins whose pages may call the API, with commas, or `*`.',
  ),
  POSTHORN_METRICS_TOKEN: setting<string | null>(
    token,
    null,
    'none',
    'Bearer token for `/metrics`, at least 32 characters. In production `/metrics` exists only with this or the port below.',
    { secret: true },
  ),
  POSTHORN_METRICS_PORT: setting<number | null>(
    port,
    null,
    'none',
    'Serves `/metrics`, without a token, on this port of `HOST` and no longer on `PORT`; and `/health/live` and `/health/ready`, in every role.',
  ),
  POSTHORN_LOG_LEVEL: setting<LogLevel>(
    oneOf(logLevels),
    'info',
    'info',
    `One of ${logLevels.map((level) => `\`${level}\``).join(', ')}.`,
  ),
  POSTHORN_ALLOW_HTTP: setting<boolean | null>(
    bool,
    null,
    'false in production, else true',
    'Whether webhooks may have `http` URLs.',
  ),
  POSTHORN_INSECURE_DEV: setting(bool, false, 'false', 'Allows development mode to listen beyond loopback.'),
  POSTHORN_SMTP_HOST: setting(text, '127.0.0.1', '127.0.0.1', 'Address the mail door listens on.'),
  POSTHORN_SMTP_PORT: setting(port, 2525, '2525', 'Port of the mail door.'),
  POSTHORN_MAIL_HOST: setting<string | null>(
    hostName,
    null,
    'localhost; required in production',
    'What the mail door calls itself, and the MX name that users are told.',
  ),
  POSTHORN_TLS_CERT: setting<string | null>(
    text,
    null,
    'a self-signed one',
    'Certificate file (PEM) of the mail door.',
  ),
  POSTHORN_TLS_KEY: setting<string | null>(text, null, 'a self-signed one', 'Its private key.'),
  POSTHORN_MAX_MESSAGE_BYTES: setting(
    wholeNumber(1024, 1 << 30),
    26_214_400,
    '26214400',
    'Largest message that is taken.',
  ),
  POSTHORN_SMTP_MAX_RECIPIENTS: setting(
    wholeNumber(1, 10_000),
    100,
    '100',
    'Most recipients of one message; the rest are told to come in another.',
  ),
  POSTHORN_SMTP_MAX_LINE_BYTES: setting(
    wholeNumber(512, 65_536),
    2048,
    '2048',
    'Longest command line. Lines of a message have no bound.',
  ),
  POSTHORN_SMTP_MAX_ERRORS: setting(
    wholeNumber(1, 10_000),
    20,
    '20',
    'Refusals since the last message that was taken, after which a connection is closed.',
  ),
  POSTHORN_SMTP_COMMAND_TIMEOUT: setting(
    wholeNumber(1, 3600),
    300,
    '300',
    'Seconds for a command to come whole.',
  ),
  POSTHORN_SMTP_DATA_TIMEOUT: setting(
    wholeNumber(1, 3600),
    180,
    '180',
    'Seconds between two pieces of a message.',
  ),
  POSTHORN_SMTP_MESSAGE_TIMEOUT: setting(
    wholeNumber(1, 86_400),
    1800,
    '1800',
    'Seconds for a message to come whole.',
  ),
  POSTHORN_SMTP_MAX_CONNECTIONS: setting(
    wholeNumber(1, 100_000),
    1000,
    '1000',
    'SMTP connections at once, in each process.',
  ),
  POSTHORN_SMTP_MAX_CONNECTIONS_PER_ADDRESS: setting(
    wholeNumber(1, 100_000),
    50,
    '50',
    'The same for one IPv4 address or IPv6 /64.',
  ),
  POSTHORN_SMTP_MAX_BYTES_UNDER_WAY: setting(
    wholeNumber(1024, 2 ** 40),
    134_217_728,
    '134217728',
    'Memory for messages that are being read; beyond it senders are told to try again later.',
  ),
  POSTHORN_INLINE_RAW_BYTES: setting(
    wholeNumber(0, 1 << 20),
    1_048_576,
    '1048576',
    'Messages up to this size are in the event itself; larger ones are linked.',
  ),
  POSTHORN_ACCEPT_UNVERIFIED: setting<boolean | null>(
    bool,
    null,
    'false in production, else true',
    'Whether unverified identities receive mail.',
  ),
  POSTHORN_DNS_SERVERS: setting<readonly string[] | null>(
    list(dnsServer),
    null,
    "the machine's",
    'Resolvers, `ip:port` with commas; they then answer everything the service asks of DNS.',
  ),
  POSTHORN_RETRY_SCHEDULE: setting<readonly number[]>(
    list(wholeNumber(0, 31_536_000)),
    [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400],
    '5,300,1800,7200,18000,36000,50400,72000,86400',
    'Seconds to wait after each failed try.',
  ),
  POSTHORN_ALLOW_TARGETS: setting<readonly string[] | null>(
    list(addressRange),
    null,
    'none in production, else loopback',
    'Address ranges (CIDR) that webhooks may reach although they are not public.',
  ),
  POSTHORN_RETENTION_DAYS: setting(
    wholeNumber(1, 36_500),
    30,
    '30',
    'How long messages, events and deliveries are kept.',
  ),
  ...traceSettings,
};

type SettingName = keyof typeof settings;
type Values = { [Name in SettingName]: (typeof settings)[Name]['fallback'] };
const names = Object.keys(settings) as SettingName[];

export function readConfig(environment: Record<string, string | undefined>) {
  const { values, faults } = readValues(environment);
  const production = values.NODE_ENV === 'production';
  const embedded = values.DATABASE_URL === null;

  for (const name of ['POSTHORN_SECRET_KEY', 'POSTHORN_MAIL_HOST', 'POSTHORN_PUBLIC_URL'] as const) {
    // One that was given and is wrong has been told already.
    if (!production || values[name] !== null || environment[name]) continue;
    faults.push(`${name} is required with NODE_ENV=production.`);
  }
  if (!production && !embedded && values.POSTHORN_SECRET_KEY === null) {
    faults.push('POSTHORN_SECRET_KEY is required with DATABASE_URL. Make one with: openssl rand -base64 32');
  }
  for (const name of ['HOST', 'POSTHORN_SMTP_HOST'] as const) {
    if (production || values.POSTHORN_INSECURE_DEV || isLoopback(values[name])) continue;
    faults.push(
      `${name}=${values[name]} would open a development server to others. Set NODE_ENV=production, ` +
        'or POSTHORN_INSECURE_DEV=true if you mean it.',
    );
  }
  if ((values.POSTHORN_TLS_CERT === null) !== (values.POSTHORN_TLS_KEY === null)) {
    faults.push('POSTHORN_TLS_CERT and POSTHORN_TLS_KEY belong together: set both, or neither.');
  }
  if (faults.length > 0) {
    throw new OperatorError(
      `The configuration has ${count(faults)}:\n${faults.map((fault) => `  - ${fault}`).join('\n')}`,
    );
  }

  return {
    production,
    host: values.HOST,
    port: values.PORT,
    databaseUrl: values.DATABASE_URL,
    dataDir: path.resolve(values.POSTHORN_DATA_DIR),
    autoMigrate: values.POSTHORN_AUTO_MIGRATE,
    basePath: values.POSTHORN_BASE_PATH,
    publicUrl: values.POSTHORN_PUBLIC_URL,
    roles: values.POSTHORN_ROLES,
    secretKeys: values.POSTHORN_SECRET_KEY,
    adminToken: values.POSTHORN_ADMIN_TOKEN,
    rateLimitPerMinute: values.POSTHORN_RATE_LIMIT,
    corsOrigins: values.POSTHORN_CORS_ORIGINS,
    metricsToken: values.POSTHORN_METRICS_TOKEN,
    metricsPort: values.POSTHORN_METRICS_PORT,
    logLevel: values.POSTHORN_LOG_LEVEL,
    allowHttp: values.POSTHORN_ALLOW_HTTP ?? !production,
    allowTargets: values.POSTHORN_ALLOW_TARGETS ?? (production ? [] : ['127.0.0.0/8', '::1/128']),
    dnsServers: values.POSTHORN_DNS_SERVERS,
    retrySchedule: values.POSTHORN_RETRY_SCHEDULE,
    retentionDays: values.POSTHORN_RETENTION_DAYS,
    smtpHost: values.POSTHORN_SMTP_HOST,
    smtpPort: values.POSTHORN_SMTP_PORT,
    mailHost: values.POSTHORN_MAIL_HOST ?? 'localhost',
    tls:
      values.POSTHORN_TLS_CERT && values.POSTHORN_TLS_KEY
        ? { certFile: values.POSTHORN_TLS_CERT, keyFile: values.POSTHORN_TLS_KEY }
        : null,
    maxMessageBytes: values.POSTHORN_MAX_MESSAGE_BYTES,
    smtpLimits: {
      maxMessageBytes: values.POSTHORN_MAX_MESSAGE_BYTES,
      maxRecipients: values.POSTHORN_SMTP_MAX_RECIPIENTS,
      maxLineBytes: values.POSTHORN_SMTP_MAX_LINE_BYTES,
      maxErrors: values.POSTHORN_SMTP_MAX_ERRORS,
      commandTimeoutMs: values.POSTHORN_SMTP_COMMAND_TIMEOUT * 1000,
      dataTimeoutMs: values.POSTHORN_SMTP_DATA_TIMEOUT * 1000,
      messageTimeoutMs: values.POSTHORN_SMTP_MESSAGE_TIMEOUT * 1000,
      maxConnections: values.POSTHORN_SMTP_MAX_CONNECTIONS,
      maxConnectionsPerAddress: values.POSTHORN_SMTP_MAX_CONNECTIONS_PER_ADDRESS,
      maxBytesUnderWay: values.POSTHORN_SMTP_MAX_BYTES_UNDER_WAY,
    },
    inlineRawBytes: values.POSTHORN_INLINE_RAW_BYTES,
    acceptUnverified: values.POSTHORN_ACCEPT_UNVERIFIED ?? !production,
    /** Null: tracing is off. */
    traces: readTraceConfig(values),
    /** Not ours to refuse (Kubernetes sets `POSTHORN_SERVICE_HOST` beside a service of that name), worth a line. */
    unknown: Object.keys(environment).filter((name) => name.startsWith('POSTHORN_') && !(name in settings)),
  };
}

function readValues(environment: Record<string, string | undefined>) {
  const values: Record<string, unknown> = {};
  const faults: string[] = [];
  for (const name of names) {
    const { read, fallback, secret } = settings[name];
    const given = environment[name];
    values[name] = fallback;
    // `NAME=` in a compose or .env file means "not set".
    if (given === undefined || given === '') continue;
    if (name in traceSettings && !wantsTraces(environment)) continue;
    try {
      values[name] = read(given);
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      faults.push(`${name}${secret ? '' : `=${given}`}: ${error.message}`);
    }
  }
  for (const name of Object.keys(environment)) {
    const meant = name.startsWith('POSTHORN_') && !(name in settings) && suggest(name, names);
    if (meant) faults.push(`${name} is not a setting. Did you mean ${meant}?`);
  }
  return { values: values as Values, faults };
}

function count(faults: string[]): string {
  return faults.length === 1 ? 'a mistake' : `${faults.length} mistakes`;
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host);
}

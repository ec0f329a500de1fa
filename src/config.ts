/**
 * The only reader of the environment. Every setting is declared once, in `settings`: parser, default, and the text in
 * docs/config.md. A wrong value stops the start, and the error lists all wrong values at once.
 */
import path from 'node:path';
import { type LogFormat, type LogLevel, logFormats, logLevels } from './lib/log.ts';
import { OperatorError } from './lib/operator-error.ts';
import type { Relay } from './lib/relay-url.ts';
import {
  addressRange,
  basePath,
  bool,
  dnsServer,
  hostName,
  keyAdvice,
  list,
  nodeEnv,
  oneOf,
  origin,
  port,
  postgresUrl,
  publicUrl,
  relayUrl,
  SettingError,
  secretKey,
  setting,
  text,
  token,
  wholeNumber,
} from './lib/setting-readers.ts';
import { readSmtpLimits, smtpLimitSettings } from './lib/smtp-limit-settings.ts';
import { suggest } from './lib/suggest.ts';
import { readTraceConfig, traceSettings, wantsTraces } from './lib/trace-settings.ts';

const roles = ['api', 'smtp', 'deliver', 'send', 'verify', 'sync'] as const;
const waysOut = ['direct', 'relay', 'capture'] as const;
type Role = (typeof roles)[number];

export type Config = ReturnType<typeof readConfig>;

// A `null` default depends on other settings; `readConfig` computes the value.
export const settings = {
  PORT: setting(port, 3000, 'Port of the API. `0`: any free port.'),
  HOST: setting(text, '127.0.0.1', 'Address on which the API listens.'),
  NODE_ENV: setting<string>(nodeEnv, 'development', '`production` turns on the strict defaults below.'),
  DATABASE_URL: setting<string | null>(
    postgresUrl,
    null,
    'A PostgreSQL 15 or newer: `postgres://user:password@host/database`. Posthorn supports `sslmode`, `sslrootcert`, `sslcert`, `sslkey` and `connect_timeout`, ignores parameters of libpq that do not matter, and refuses the others. With several hosts (`@one:5432,two:5432/database`) Posthorn uses the primary, also after a failover.',
    { shown: 'the embedded PostgreSQL', secret: true },
  ),
  POSTHORN_DATA_DIR: setting<string>(
    text,
    './data',
    'Folder of the embedded PostgreSQL (`postgres/`) and of `secret.key`.',
  ),
  POSTHORN_AUTO_MIGRATE: setting(
    bool,
    true,
    'Update the database schema at start. `false`: run `posthorn migrate` yourself.',
  ),
  POSTHORN_BASE_PATH: setting(basePath, '', 'Prefix of every route, for example `/api/v2`.'),
  POSTHORN_PUBLIC_URL: setting<string | null>(
    publicUrl,
    null,
    'Public URL of this service, without the base path. `Link` and `Location` headers begin with this URL.',
    { shown: 'none; required in production' },
  ),
  POSTHORN_ROLES: setting<readonly Role[]>(
    list(oneOf(roles)),
    roles,
    'What this process does. To scale out, run more processes with fewer roles each.',
  ),
  POSTHORN_SECRET_KEY: setting<readonly Buffer[] | null>(
    list(secretKey),
    null,
    'Encrypts the stored secrets: 32 bytes in base64 or hex (`openssl rand -base64 32`). Separate several keys with commas: the first encrypts, the others only decrypt.',
    {
      shown: 'created in the data folder with the embedded PostgreSQL; otherwise required',
      secret: true,
    },
  ),
  POSTHORN_ADMIN_TOKEN: setting<string | null>(
    token,
    null,
    'Bearer token of the `/admin` routes, at least 32 characters.',
    { shown: 'none: the routes do not exist', secret: true },
  ),
  POSTHORN_RATE_LIMIT: setting(
    wholeNumber(0, 1e9),
    6000,
    'Requests per minute for each user and process, with all API keys together. Signed links count apart, for the owner of the message. `0`: no limit.',
  ),
  POSTHORN_MAX_WEBHOOKS: setting(wholeNumber(1, 1e9), 1000, 'Most webhooks of one user.'),
  POSTHORN_MAX_ACCOUNTS: setting(
    wholeNumber(1, 1e9),
    100,
    'Most SMTP accounts of one user. Their IMAP servers are read in threads beside the API and SMTP, one fewer than the machine has cores and at least 2, each with a heap of at most 512 MB and about 30 MB as it starts; all mailboxes of a user are on one of them. A server may send 256 KiB at the login, about a folder and while it waits, 2 MiB for the list of folders, 128 KiB for a search, lines of 64 KiB, 10,000 responses at once (1000 at the login), and an eighth more than a message has, plus 1 MiB; beyond that the connection ends.',
  ),
  POSTHORN_CORS_ORIGINS: setting<readonly string[]>(
    list(origin),
    [],
    'Origins whose pages may call the API, separated by commas, or `*`.',
    { shown: 'none: CORS is off' },
  ),
  POSTHORN_TRUSTED_PROXIES: setting<readonly string[]>(
    list(addressRange),
    [],
    'Address ranges (CIDR) of the proxies whose `X-Forwarded-For` names the client. Failures to sign in are limited for each client.',
    { shown: 'none: the client is who connects' },
  ),
  POSTHORN_DASHBOARD: setting(bool, true, 'Whether `/` and `/app` serve the dashboard.'),
  POSTHORN_METRICS_TOKEN: setting<string | null>(
    token,
    null,
    'Bearer token for `/metrics`, at least 32 characters. In production `/metrics` exists only with this token or with `POSTHORN_METRICS_PORT`.',
    { secret: true },
  ),
  POSTHORN_METRICS_PORT: setting<number | null>(
    port,
    null,
    'Serves `/metrics` without a token on this port of `HOST`, and no longer on `PORT`. Also serves `/health/live` and `/health/ready`, in every role.',
  ),
  POSTHORN_LOG_LEVEL: setting<LogLevel>(
    oneOf(logLevels),
    'info',
    `One of ${logLevels.map((level) => `\`${level}\``).join(', ')}.`,
  ),
  POSTHORN_LOG_FORMAT: setting<LogFormat | null>(
    oneOf(logFormats),
    null,
    '`pretty`: short lines for people. `json`: one JSON object a line.',
    { shown: '`pretty` on a terminal, else `json`' },
  ),
  POSTHORN_LOG_ADDRESSES: setting(
    bool,
    true,
    'Whether the log contains mail addresses. IP addresses and domains are always logged.',
  ),
  POSTHORN_ALLOW_HTTP: setting<boolean | null>(bool, null, 'Whether webhooks may have `http` URLs.', {
    shown: 'false in production, else true',
  }),
  POSTHORN_INSECURE_DEV: setting(bool, false, 'Allows development mode to listen beyond loopback.'),
  POSTHORN_SMTP_HOST: setting(text, '127.0.0.1', 'Address on which the SMTP listener accepts mail.'),
  POSTHORN_SMTP_PORT: setting(port, 2525, 'Port of the SMTP listener.'),
  POSTHORN_MAIL_HOST: setting<string | null>(
    hostName,
    null,
    'Host name of the SMTP listener, and the name in the MX record that users publish.',
    { shown: 'localhost; required in production' },
  ),
  POSTHORN_TLS_CERT: setting<string | null>(text, null, 'Certificate file (PEM) of the SMTP listener.', {
    shown: 'a self-signed certificate',
  }),
  POSTHORN_TLS_KEY: setting<string | null>(text, null, 'Private key file (PEM) of `POSTHORN_TLS_CERT`.', {
    shown: 'the key of the self-signed certificate',
  }),
  ...smtpLimitSettings,
  POSTHORN_INLINE_RAW_BYTES: setting(
    wholeNumber(0, 1 << 20),
    1_048_576,
    'An event contains the raw message up to this size, and a link to a larger message.',
  ),
  POSTHORN_ACCEPT_UNVERIFIED: setting<boolean | null>(
    bool,
    null,
    'Whether unverified identities receive mail.',
    { shown: 'false in production, else true' },
  ),
  POSTHORN_DNS_SERVERS: setting<readonly string[] | null>(
    list(dnsServer),
    null,
    'DNS resolvers for all queries of the service: `ip:port`, separated by commas.',
    { shown: 'the resolvers of the machine' },
  ),
  POSTHORN_RETRY_SCHEDULE: setting<readonly number[]>(
    list(wholeNumber(0, 31_536_000)),
    [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400],
    'Seconds to wait after each failed attempt.',
  ),
  POSTHORN_ALLOW_TARGETS: setting<readonly string[] | null>(
    list(addressRange),
    null,
    'Address ranges (CIDR) that webhooks may reach although the addresses are not public.',
    { shown: 'none in production, else loopback' },
  ),
  POSTHORN_OUTBOUND: setting<(typeof waysOut)[number] | null>(
    oneOf(waysOut),
    null,
    'The transport (the way out) of mail. `direct`: to the mail server of each recipient. `relay`: all of it through `POSTHORN_RELAY_URL`. `capture`: mail is captured and does not leave the machine; it counts as delivered, except to `bounce.test`, `defer.test` and `slow.test` (docs/sending.md).',
    { shown: '`relay` with `POSTHORN_RELAY_URL`; else `direct` in production and `capture` in development' },
  ),
  POSTHORN_RELAY_URL: setting<Relay | null>(
    relayUrl,
    null,
    'A mail server that sends for this service: `smtp://` or `smtps://user:password@host:port`. With a password, `smtp://` requires STARTTLS with a valid certificate, except to this machine. Each process has up to 20 connections to it; one user has at most as many as stay free, so a lone user has 10.',
    { secret: true },
  ),
  POSTHORN_BOUNCE_DOMAIN: setting<string | null>(
    hostName,
    null,
    'Domain of the envelope senders, to which mail servers send their reports. Its MX must lead to the SMTP listener.',
    { shown: 'POSTHORN_MAIL_HOST' },
  ),
  POSTHORN_SEND_RATE: setting(
    wholeNumber(0, 1e9),
    600,
    'Recipients per minute for each user, over all processes. `0`: no limit.',
  ),
  POSTHORN_SEND_SCHEDULE: setting<readonly number[] | null>(
    list(wholeNumber(0, 31_536_000)),
    null,
    'Seconds to wait after each try that a mail server put off; after the last one the recipient is given up.',
    { shown: '1, 5, 15 and 30 minutes, 1, 2, 4 and 8 hours, then every 12 hours until 4 days' },
  ),
  POSTHORN_CONFIRMATION_LIMIT: setting(
    wholeNumber(0, 1e9),
    50,
    'Addresses to which one user can have confirmation mails sent in a day. `0`: no limit.',
  ),
  POSTHORN_MX_PORT: setting(port, 25, 'Port of the mail servers of recipients, for tests.'),
  POSTHORN_SUBMISSION_PORT: setting<number | null>(
    port,
    null,
    'Port on which programs submit mail by SMTP, with an API key as the password. Usually 587.',
    { shown: '2587 in development; in production none' },
  ),
  POSTHORN_SUBMISSIONS_PORT: setting<number | null>(
    port,
    null,
    'The same with TLS from the start. Usually 465.',
    { shown: 'none' },
  ),
  POSTHORN_RETENTION_DAYS: setting(
    wholeNumber(1, 36_500),
    30,
    'How many days messages, events and deliveries are kept.',
  ),
  ...traceSettings,
};

type SettingName = keyof typeof settings;
type Values = { [Name in SettingName]: (typeof settings)[Name]['fallback'] };
const names = Object.keys(settings) as SettingName[];
type Environment = Record<string, string | undefined>;

export function readConfig(environment: Environment) {
  const { values, mistakes } = readValues(environment);
  const production = values.NODE_ENV === 'production';

  for (const name of ['POSTHORN_SECRET_KEY', 'POSTHORN_MAIL_HOST', 'POSTHORN_PUBLIC_URL'] as const) {
    // A value that was set and is wrong is in the list already.
    if (!production || values[name] !== null || environment[name]) continue;
    const advice = name === 'POSTHORN_SECRET_KEY' ? ` ${keyAdvice}` : '';
    mistakes.push(`${name} is required with NODE_ENV=production.${advice}`);
  }
  if (!production && values.DATABASE_URL !== null && values.POSTHORN_SECRET_KEY === null) {
    mistakes.push(`POSTHORN_SECRET_KEY is required with DATABASE_URL. ${keyAdvice}`);
  }
  for (const name of ['HOST', 'POSTHORN_SMTP_HOST'] as const) {
    if (production || values.POSTHORN_INSECURE_DEV || isLoopback(values[name])) continue;
    mistakes.push(
      `${name}=${values[name]} would make a development server reachable from other machines. ` +
        'Set NODE_ENV=production, or POSTHORN_INSECURE_DEV=true to allow it.',
    );
  }
  if ((values.POSTHORN_TLS_CERT === null) !== (values.POSTHORN_TLS_KEY === null)) {
    mistakes.push('Set both POSTHORN_TLS_CERT and POSTHORN_TLS_KEY, or neither.');
  }
  if (
    values.POSTHORN_OUTBOUND === 'relay' &&
    values.POSTHORN_RELAY_URL === null &&
    !environment.POSTHORN_RELAY_URL
  ) {
    mistakes.push('POSTHORN_RELAY_URL is required with POSTHORN_OUTBOUND=relay.');
  }
  if (mistakes.length > 0) {
    const count = mistakes.length === 1 ? 'a mistake' : `${mistakes.length} mistakes`;
    throw new OperatorError(`The configuration has ${count}:\n  - ${mistakes.join('\n  - ')}`);
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
    maxWebhooks: values.POSTHORN_MAX_WEBHOOKS,
    maxAccounts: values.POSTHORN_MAX_ACCOUNTS,
    corsOrigins: values.POSTHORN_CORS_ORIGINS,
    trustedProxies: values.POSTHORN_TRUSTED_PROXIES,
    dashboard: values.POSTHORN_DASHBOARD,
    metricsToken: values.POSTHORN_METRICS_TOKEN,
    metricsPort: values.POSTHORN_METRICS_PORT,
    logLevel: values.POSTHORN_LOG_LEVEL,
    /** Null: by the terminal. */
    logFormat: values.POSTHORN_LOG_FORMAT,
    logAddresses: values.POSTHORN_LOG_ADDRESSES,
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
    smtpLimits: readSmtpLimits(values),
    outbound:
      values.POSTHORN_OUTBOUND ?? (values.POSTHORN_RELAY_URL ? 'relay' : production ? 'direct' : 'capture'),
    relay: values.POSTHORN_RELAY_URL,
    bounceDomain: values.POSTHORN_BOUNCE_DOMAIN ?? values.POSTHORN_MAIL_HOST ?? 'localhost',
    sendRatePerMinute: values.POSTHORN_SEND_RATE,
    /** Null: the usual one. */
    sendSchedule: values.POSTHORN_SEND_SCHEDULE,
    confirmationLimit: values.POSTHORN_CONFIRMATION_LIMIT,
    mxPort: values.POSTHORN_MX_PORT,
    /** Null: no listener. */
    submissionPort: values.POSTHORN_SUBMISSION_PORT ?? (production ? null : 2587),
    submissionsPort: values.POSTHORN_SUBMISSIONS_PORT,
    inlineRawBytes: values.POSTHORN_INLINE_RAW_BYTES,
    acceptUnverified: values.POSTHORN_ACCEPT_UNVERIFIED ?? !production,
    /** Null: tracing is off. */
    traces: readTraceConfig(values),
    /** Logged, not refused: Kubernetes sets `POSTHORN_SERVICE_HOST` beside a service named posthorn. */
    unknown: listUnknown(environment),
  };
}

function readValues(environment: Environment) {
  const values: Record<string, unknown> = {};
  const mistakes: string[] = [];
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
      if (!(error instanceof SettingError)) throw error;
      mistakes.push(`${name}${secret ? '' : `=${given}`}: ${error.message}`);
    }
  }
  for (const name of listUnknown(environment)) {
    const meant = suggest(name, names);
    if (meant) mistakes.push(`${name} is not a setting. Did you mean ${meant}?`);
  }
  return { values: values as Values, mistakes };
}

function listUnknown(environment: Environment): string[] {
  return Object.keys(environment).filter((name) => name.startsWith('POSTHORN_') && !(name in settings));
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host);
}

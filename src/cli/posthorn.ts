/**
 * The command line: `posthorn serve | migrate | backup | reseal | users | keys | identities | doctor`. What prints data takes --json.
 * Exit codes: 0 done, 1 it failed and the message says what to do, 2 the command was not understood.
 */
import path from 'node:path';
import { Command, CommanderError, InvalidArgumentError } from 'commander';
import { type Config, readConfig } from '../config.ts';
import { isUnavailable, type Pool } from '../db/client.ts';
import { backUpEmbedded } from '../db/embedded/backup.ts';
import { migrate, prepareSchema, readSchemaState } from '../db/migrate.ts';
import { openDatabase } from '../db/open.ts';
import { type IdentityValue, readIdentityValue } from '../identities/value.ts';
import { isUuid } from '../lib/ids.ts';
import { type Log, makeLog } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { loadSecretKeys, makeSealer } from '../lib/secrets.ts';
import { table } from '../lib/table.ts';
import { readVersion } from '../lib/version.ts';
import { startService } from '../main.ts';
import { createApiKey, findKeyOwner, listAllApiKeys, revokeApiKey } from '../store/api-keys.ts';
import { ensureUser, findUser, findUserByEmail, listUsers, type User } from '../store/users.ts';
import { diagnose, printFindings } from './doctor.ts';
import {
  addIdentity,
  findOwnIdentity,
  findProof,
  listAllIdentities,
  readRecordsOf,
  tellStanding,
  verifyIdentity,
} from './identities.ts';
import { resealSecrets } from './reseal.ts';

const program = new Command('posthorn')
  .description('Email identities and signed webhooks, on your own machine.')
  .version(readVersion())
  .showHelpAfterError('(posthorn --help lists the commands)')
  .exitOverride();

program.command('serve').description('run the service').action(serve);

program
  .command('migrate')
  .description('bring the database schema up to date')
  .option('--json', 'print JSON')
  .action((options) =>
    withDatabase(async (sql, log) => {
      const { newer, version } = await readSchemaState(sql);
      if (newer)
        throw new OperatorError(
          `The schema has version ${version}, which is newer than this Posthorn knows.`,
        );
      const applied = await migrate(sql, log);
      print(
        options,
        { applied },
        applied.length > 0 ? `Applied ${applied.join(', ')}.` : 'The schema is up to date.',
      );
    }),
  );

program
  .command('backup')
  .description('copy the embedded database, beside a running service, into a new folder')
  .argument('<folder>', 'a folder that is not there yet')
  .option('--json', 'print JSON')
  .action(backUp);

program
  .command('reseal')
  .description('encrypt every stored secret anew, under the first key of POSTHORN_SECRET_KEY')
  .option('--json', 'print JSON')
  .action((options) =>
    withSchema(async (sql, _log, config) => {
      const resealed = await resealSecrets(sql, makeSealer(loadSecretKeys(config)));
      print(options, { resealed }, `${resealed} secrets were under another key; none is now.`);
    }),
  );

const users = program.command('users').description('make and list users');

users
  .command('create')
  .description('make a user and an API key')
  .requiredOption('--email <address>', 'the address that names the user', readAddress)
  .option('--json', 'print JSON')
  .action((options) =>
    withSchema(async (sql) => {
      const made = await sql.begin(async (sql) => {
        const { user, created } = await ensureUser(sql, options.email);
        if (!created) {
          throw new OperatorError(
            `There is a user ${user.email} already. Make a key: posthorn keys create --user ${user.email}`,
          );
        }
        const { apiKey } = await createApiKey(sql, user.userId);
        return { userId: user.userId, email: user.email, apiKey };
      });
      print(
        options,
        made,
        `User    ${made.email}\nId      ${made.userId}\nAPI key ${made.apiKey}   (shown this once)`,
      );
    }),
  );

users
  .command('list')
  .description('list the users')
  .option('--json', 'print JSON')
  .action((options) =>
    withSchema(async (sql) => {
      const found = await listUsers(sql);
      print(options, found, table(found.map((user) => [user.userId, user.createdAt, user.email])));
    }),
  );

const keys = program.command('keys').description('make, list and revoke API keys');

keys
  .command('create')
  .description('make an API key for a user')
  .requiredOption('--user <address or id>', 'whose key it is')
  .option('--name <name>', 'what it is for')
  .option('--expires-at <time>', 'when it ends, such as 2027-01-31T00:00:00Z', readFuture)
  .option('--json', 'print JSON')
  .action((options) =>
    withSchema(async (sql) => {
      const user = await readUser(sql, options.user);
      const { id, apiKey } = await createApiKey(sql, user.userId, options);
      print(options, { id, apiKey }, `Id      ${id}\nAPI key ${apiKey}   (shown this once)`);
    }),
  );

keys
  .command('list')
  .description('list the API keys of a user, revoked ones too')
  .requiredOption('--user <address or id>', 'whose keys')
  .option('--json', 'print JSON')
  .action((options) =>
    withSchema(async (sql) => {
      const user = await readUser(sql, options.user);
      const found = await listAllApiKeys(sql, user.userId);
      const rows = found.map((key) => [
        key.id,
        `${key.prefix}…${key.suffix}`,
        key.revokedAt ? 'revoked' : 'active',
        `last used ${key.lastUsedAt ?? 'never'}`,
        key.name ?? '',
      ]);
      print(options, found, table(rows));
    }),
  );

keys
  .command('revoke')
  .description('end an API key; it stops working within 5 seconds everywhere')
  .argument('<id>', 'the id of the key (posthorn keys list)')
  .option('--json', 'print JSON')
  .action((id, options) =>
    withSchema(async (sql) => {
      const ownerId = isUuid(id) ? await findKeyOwner(sql, id) : undefined;
      if (!ownerId || !(await revokeApiKey(sql, ownerId, id))) {
        throw new OperatorError(
          `There is no active key ${id}. List them: posthorn keys list --user <address>`,
        );
      }
      print(options, { id, revoked: true }, `Key ${id} is revoked.`);
    }),
  );

const identities = program.command('identities').description('add, list and verify identities');

identities
  .command('list')
  .description('list the identities of a user, and how they stand')
  .requiredOption('--user <address or id>', 'whose identities')
  .option('--json', 'print JSON')
  .action((options) =>
    withSchema(async (sql) => {
      const found = await listAllIdentities(sql, await readUser(sql, options.user));
      print(options, found, table(found.map(({ id, kind, status, value }) => [id, kind, status, value])));
    }),
  );

identities
  .command('add')
  .description('connect an address or a domain, and show what must stand in DNS')
  .requiredOption('--user <address or id>', 'whose it is to be')
  .requiredOption('--value <value>', 'such as sales@example.com or example.com', readValue)
  .option('--incoming', 'take the mail of all addresses of the domain', false)
  .option('--json', 'print JSON')
  .action((options) =>
    withSchema(async (sql, _log, config) => {
      const made = await addIdentity(sql, config, await readUser(sql, options.user), options);
      const told = made.kind === 'domain' ? tellStanding(made, made) : `${made.value} is ${made.status}`;
      print(options, made, told);
    }),
  );

identities
  .command('verify')
  .description('look at its DNS records now')
  .argument('<identity>', 'its value or its id')
  .requiredOption('--user <address or id>', 'whose it is')
  .option('--json', 'print JSON')
  .action((given, options) =>
    withSchema(async (sql, log, config) => {
      const found = await findOwnIdentity(sql, await readUser(sql, options.user), given);
      const { identity, domain } = await verifyIdentity(sql, log, config, found);
      print(options, identity, tellStanding(identity, domain));
    }),
  );

identities
  .command('dns')
  .description('show what must stand in DNS, what was found at the last look, and what to change')
  .argument('<identity>', 'its value or its id')
  .requiredOption('--user <address or id>', 'whose it is')
  .option('--json', 'print JSON')
  .action((given, options) =>
    withSchema(async (sql) => {
      const identity = await findOwnIdentity(sql, await readUser(sql, options.user), given);
      const domain = await findProof(sql, identity);
      print(options, readRecordsOf(domain), tellStanding(identity, domain));
    }),
  );

program
  .command('doctor')
  .description('check the database, schema, secret key, ports, DNS and clock')
  .option('--json', 'print JSON')
  .action(async (options) => {
    const findings = await diagnose(process.env);
    print(options, findings, printFindings(findings));
    if (findings.some((finding) => finding.level === 'fail')) process.exitCode = 1;
  });

try {
  await program.parseAsync();
} catch (error) {
  process.exitCode = report(error);
}

async function backUp(folder: string, options: { json?: boolean }): Promise<void> {
  const { databaseUrl, dataDir, secretKeys } = readConfig(process.env);
  if (databaseUrl !== null) {
    throw new OperatorError(
      'The database is yours (DATABASE_URL), and so are its backups: pg_dump or pg_basebackup. See docs/operations.md.',
    );
  }
  const log = makeLog({ level: 'warn', json: false, stream: process.stderr });
  const usesKeyFile = secretKeys === null;
  const made = await backUpEmbedded({ dataDir, to: path.resolve(folder), usesKeyFile, log });
  const key = made.hasKey
    ? 'secret.key is in it, so keep it as safe as the service.'
    : 'The secret key is not in it: keep POSTHORN_SECRET_KEY elsewhere, or its secrets cannot be read.';
  const size = `${made.files} files, ${Math.ceil(made.bytes / 2 ** 20)} MiB`;
  print(options, made, `Backed up to ${made.folder} (${size}).\n${key}`);
}

async function serve(): Promise<void> {
  const config = readConfig(process.env);
  const log = makeLog({ level: config.logLevel, json: config.production });
  for (const name of config.unknown) log.warn(`${name} is not a setting of Posthorn and has no effect`);
  // Whoever read our log may go (`npm start | head`); the service stays.
  process.stdout.on('error', () => {});
  const stopping = new AbortController();
  const stopped = new Promise<void>((resolve) => {
    const end = () => {
      stopping.abort();
      resolve();
    };
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, end);
    // The launcher was killed: what it started ends too.
    process.on('disconnect', end);
    process.channel?.unref();
  });

  const service = await startService(config, log, stopping.signal);
  const url = `${service.url}${config.basePath}`;
  if (service.firstUser) process.stdout.write(firstStartBlock(service.firstUser, url));
  if (!config.production) {
    log.info(
      'development mode: http and loopback targets are allowed, unverified identities receive mail; ' +
        'NODE_ENV=production is strict',
    );
  }
  log.info(
    service.url === null
      ? `Posthorn ${readVersion()} is ready: ${config.roles.join(', ')}`
      : `Posthorn ${readVersion()} is ready: ${url} (docs: ${url}/docs)`,
  );
  if (service.smtpPort !== null) log.info(`mail is taken on port ${service.smtpPort} of ${config.smtpHost}`);
  await stopped;
  log.info('stopping');
  await service.stop();
  log.info('stopped');
  // A collector that does not answer holds the last export for seconds more, and with it the process.
  if (config.traces) process.exit();
}

function firstStartBlock({ email, apiKey }: { email: string; apiKey: string }, url: string): string {
  const lines = [
    `First start: made the user ${email} with this API key.`,
    '',
    `    ${apiKey}`,
    '',
    'It is shown this once. Try it:',
    `    curl ${url}/me -H "Authorization: Bearer ${apiKey}"`,
  ];
  const width = Math.max(...lines.map((line) => line.length));
  const rule = '─'.repeat(width + 2);
  return [`┌${rule}┐`, ...lines.map((line) => `│ ${line.padEnd(width)} │`), `└${rule}┘`, ''].join('\n');
}

async function withDatabase(work: (sql: Pool, log: Log, config: Config) => Promise<void>): Promise<void> {
  const config = readConfig(process.env);
  // stdout is for what the command prints.
  const log = makeLog({ level: 'warn', json: false, stream: process.stderr });
  const database = await openDatabase(config, { purpose: 'tool', log, max: 2 });
  try {
    await work(database.sql, log, config);
  } finally {
    await database.close();
  }
}

function withSchema(work: (sql: Pool, log: Log, config: Config) => Promise<void>): Promise<void> {
  return withDatabase(async (sql, log, config) => {
    await prepareSchema(sql, log, { ...config, onlyEmpty: true });
    await work(sql, log, config);
  });
}

async function readUser(sql: Pool, given: string): Promise<User> {
  const user = isUuid(given) ? await findUser(sql, given) : await findUserByEmail(sql, given);
  if (user) return user;
  throw new OperatorError(`There is no user ${given}. List them: posthorn users list`);
}

function readValue(given: string): IdentityValue {
  const read = readIdentityValue(given);
  if ('fault' in read) throw new InvalidArgumentError(read.fault);
  return read;
}

function readAddress(given: string): string {
  if (!given.includes('@')) throw new InvalidArgumentError('Write an address such as ada@example.com.');
  return readValue(given).value;
}

function readFuture(given: string): string {
  if (Date.parse(given) > Date.now()) return new Date(given).toISOString();
  throw new InvalidArgumentError('Write a time in the future such as 2027-01-31T00:00:00Z.');
}

function print(options: { json?: boolean }, data: unknown, text: string): void {
  process.stdout.write(`${options.json ? JSON.stringify(data) : text}\n`);
}

/** Tells a failure in words and returns the exit code for it. */
function report(error: unknown): number {
  // commander has printed its own message.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  if (error instanceof OperatorError) {
    process.stderr.write(`${error.message}\n`);
    return error.exitCode;
  }
  if (isUnavailable(error)) {
    process.stderr.write(`The database went away: ${(error as Error).message}\nRun the command again.\n`);
    return 1;
  }
  process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
  return 1;
}

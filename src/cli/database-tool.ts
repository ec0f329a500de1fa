/** What the commands share that work on the database, also beside a running service: opening it, finding a user, printing. */
import { InvalidArgumentError } from 'commander';
import { type Config, readConfig } from '../config.ts';
import type { Pool } from '../db/client.ts';
import { prepareSchema } from '../db/migrate.ts';
import { openDatabase } from '../db/open.ts';
import { isUuid } from '../lib/ids.ts';
import { type Log, makeLog } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { type AddressOrDomain, readAddressOrDomain } from '../net/address-or-domain.ts';
import { findUser, findUserByEmail, type User } from '../store/users.ts';

type Work = (sql: Pool, log: Log, config: Config) => Promise<void>;

/** Runs the work with an open database, whatever its schema. */
export async function withDatabase(work: Work): Promise<void> {
  const config = readConfig(process.env);
  const log = makeToolLog();
  const database = await openDatabase(config, { purpose: 'tool', log, max: 2 });
  try {
    await work(database.sql, log, config);
  } finally {
    await database.close();
  }
}

/** The same with the schema of this version: an empty database gets it, an older one is refused. */
export function withSchema(work: Work): Promise<void> {
  return withDatabase(async (sql, log, config) => {
    await prepareSchema(sql, log, { ...config, onlyEmpty: true });
    await work(sql, log, config);
  });
}

/** Warnings only, on stderr: stdout is for what the command prints. */
export function makeToolLog(): Log {
  return makeLog({ level: 'warn', json: false, stream: process.stderr });
}

/** The user with this address or id. */
export async function requireUser(sql: Pool, given: string): Promise<User> {
  const user = isUuid(given) ? await findUser(sql, given) : await findUserByEmail(sql, given);
  if (user) return user;
  throw new OperatorError(`There is no user ${given}. List them: posthorn users list`);
}

/** Reads an argument that is an address or a domain. */
export function readValue(given: string): AddressOrDomain {
  const read = readAddressOrDomain(given);
  if ('fault' in read) throw new InvalidArgumentError(read.fault);
  return read;
}

export function print(options: { json?: boolean }, data: unknown, text: string): void {
  process.stdout.write(`${options.json ? JSON.stringify(data) : text}\n`);
}

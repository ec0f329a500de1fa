/** Shared by the commands that print data or use the database, also while the service runs. */
import { type Command, InvalidArgumentError } from 'commander';
import { type Config, readConfig } from '../config.ts';
import type { Pool } from '../db/client.ts';
import { prepareSchema } from '../db/migrate.ts';
import { openDatabase } from '../db/open.ts';
import { posthorn } from '../lib/command-line.ts';
import { isUuid } from '../lib/ids.ts';
import { type Log, makeLog } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { type AddressOrDomain, readAddressOrDomain } from '../net/address-or-domain.ts';
import { findUser, findUserByEmail, type User } from '../store/users.ts';

type Work = (sql: Pool, log: Log, config: Config) => Promise<void>;

/** Opens the database without checking its schema. */
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

/** Also checks the schema: an empty database is migrated, an out-of-date schema is refused. */
export function withSchema(work: Work): Promise<void> {
  return withDatabase(async (sql, log, config) => {
    await prepareSchema(sql, log, { ...config, onlyEmpty: true });
    await work(sql, log, config);
  });
}

/** Warnings only, on stderr: stdout is for the output of the command. */
export function makeToolLog(): Log {
  return makeLog({ level: 'warn', json: false, stream: process.stderr });
}

export async function requireUser(sql: Pool, given: string): Promise<User> {
  const user = isUuid(given) ? await findUser(sql, given) : await findUserByEmail(sql, given);
  if (user) return user;
  throw new OperatorError(
    `No user with the address or id "${given}". List the users: ${posthorn} users list`,
  );
}

export function readValue(given: string): AddressOrDomain {
  const read = readAddressOrDomain(given);
  if ('fault' in read) throw new InvalidArgumentError(read.fault);
  return read;
}

/** A command that prints text, or JSON with --json. */
export function addCommand(parent: Command, name: string, description: string): Command {
  return parent.command(name).description(description).option('--json', 'print JSON');
}

export function print(options: { json?: boolean }, data: unknown, text: string): void {
  process.stdout.write(`${options.json ? JSON.stringify(data) : text}\n`);
}

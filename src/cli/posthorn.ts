/**
 * The command line, one file per command. Commands that print data accept --json.
 * Exit codes: 0 success, 1 failure, 2 wrong usage.
 */
import { Command, CommanderError } from 'commander';
import { isUnavailable } from '../db/client.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { readVersion } from '../lib/version.ts';
import { addBackup } from './backup.ts';
import { addDoctor } from './doctor.ts';
import { addIdentities } from './identities.ts';
import { addKeys } from './keys.ts';
import { addMigrate } from './migrate.ts';
import { addReseal } from './reseal.ts';
import { addServe } from './serve.ts';
import { addUsers } from './users.ts';

const program = new Command('posthorn')
  .description('Email identities and signed webhooks, on your own machine.')
  .version(readVersion())
  .showHelpAfterError('(posthorn --help lists the commands)')
  .exitOverride();

addServe(program);
addMigrate(program);
addBackup(program);
addReseal(program);
addUsers(program);
addKeys(program);
addIdentities(program);
addDoctor(program);

try {
  await program.parseAsync();
} catch (error) {
  process.exitCode = report(error);
}

/** Returns the exit code. */
function report(error: unknown): number {
  // commander has printed its own message.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  if (error instanceof OperatorError) {
    process.stderr.write(`${error.message}\n`);
    return 1;
  }
  if (isUnavailable(error)) {
    process.stderr.write(
      `The database is unavailable: ${(error as Error).message}\nRun the command again.\n`,
    );
    return 1;
  }
  process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
  return 1;
}

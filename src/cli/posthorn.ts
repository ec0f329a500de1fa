/**
 * The command line, one file per command. Commands that print data accept --json.
 * Exit codes: 0 success, 1 failure, 2 wrong usage.
 */
import { Command, CommanderError } from 'commander';
import { isUnavailable } from '../db/client.ts';
import { posthorn } from '../lib/command-line.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { readVersion } from '../lib/version.ts';
import { addBackup } from './backup.ts';
import { addDoctor } from './doctor.ts';
import { addIdentities } from './identities.ts';
import { addKeys } from './keys.ts';
import { addMigrate } from './migrate.ts';
import { addReseal } from './reseal.ts';
import { addServe } from './serve.ts';
import { addSignInLink } from './sign-in-link.ts';
import { addUsers } from './users.ts';

const program = new Command(posthorn)
  .description('Email identities and signed webhooks, on your own machine.')
  .version(readVersion())
  .showHelpAfterError(`(${posthorn} --help lists the commands)`)
  .exitOverride();

const commands = [
  ...[addServe, addMigrate, addBackup, addReseal],
  ...[addUsers, addKeys, addSignInLink, addIdentities, addDoctor],
];
for (const add of commands) add(program);

try {
  await program.parseAsync();
} catch (error) {
  if (error instanceof CommanderError) {
    // commander has printed its own message.
    process.exitCode = error.exitCode === 0 ? 0 : 2;
  } else {
    process.stderr.write(`${describeFailure(error)}\n`);
    process.exitCode = 1;
  }
}

function describeFailure(error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  if (error instanceof OperatorError) return error.message;
  if (isUnavailable(error)) return `The database is unavailable: ${error.message}\nRun the command again.`;
  return error.stack;
}

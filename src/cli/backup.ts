/** `posthorn backup`: copies the embedded database, beside a running service, into a new folder. */
import path from 'node:path';
import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { backUpEmbedded } from '../db/embedded/backup.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { makeToolLog, print } from './database-tool.ts';

export function addBackup(program: Command): void {
  program
    .command('backup')
    .description('copy the embedded database, beside a running service, into a new folder')
    .argument('<folder>', 'a folder that is not there yet')
    .option('--json', 'print JSON')
    .action(backUp);
}

async function backUp(folder: string, options: { json?: boolean }): Promise<void> {
  const { databaseUrl, dataDir, secretKeys } = readConfig(process.env);
  if (databaseUrl !== null) {
    throw new OperatorError(
      'The database is yours (DATABASE_URL), and so are its backups: pg_dump or pg_basebackup. See docs/operations.md.',
    );
  }
  const usesKeyFile = secretKeys === null;
  const made = await backUpEmbedded({ dataDir, to: path.resolve(folder), usesKeyFile, log: makeToolLog() });
  const key = made.hasKey
    ? 'secret.key is in it, so keep it as safe as the service.'
    : 'The secret key is not in it: keep POSTHORN_SECRET_KEY elsewhere, or its secrets cannot be read.';
  const size = `${made.files} files, ${Math.ceil(made.bytes / 2 ** 20)} MiB`;
  print(options, made, `Backed up to ${made.folder} (${size}).\n${key}`);
}

/** `posthorn backup`: copies the embedded database to a new folder, also while the service runs. */
import path from 'node:path';
import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { backUpEmbedded } from '../db/embedded/backup.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { addCommand, makeToolLog, print } from './database-tool.ts';

export function addBackup(program: Command): void {
  addCommand(program, 'backup', 'copy the embedded database to a new folder, also while the service runs')
    .argument('<folder>', 'a folder that does not exist yet')
    .action(backUp);
}

async function backUp(folder: string, options: { json?: boolean }): Promise<void> {
  const { databaseUrl, dataDir, secretKeys } = readConfig(process.env);
  if (databaseUrl !== null) {
    throw new OperatorError(
      'DATABASE_URL is set, and this command copies only the embedded database. Use pg_dump or pg_basebackup: docs/operations.md.',
    );
  }
  const usesKeyFile = secretKeys === null;
  const made = await backUpEmbedded({ dataDir, to: path.resolve(folder), usesKeyFile, log: makeToolLog() });
  const key = made.hasKey
    ? 'The backup contains secret.key: protect it like the service itself.'
    : 'The backup does not contain the secret key. Store POSTHORN_SECRET_KEY elsewhere: without it the secrets are unreadable.';
  const size = `${made.files} files, ${Math.ceil(made.bytes / 2 ** 20)} MiB`;
  print(options, made, `Backed up to ${made.folder} (${size}).\n${key}`);
}

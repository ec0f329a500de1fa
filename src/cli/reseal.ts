/**
 * `posthorn reseal`: encrypts every stored secret again with the first key, also while the service runs, so that the other
 * keys can be removed. Refuses while a running process does not have the first key: its deliveries would stop. Stored idempotent responses and links are not changed: they expire after one day and after eight days.
 */
import type { Command } from 'commander';
import type { Pool, Sql } from '../db/client.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { loadSecretKeys, makeSealer, type Sealer } from '../lib/secrets.ts';
import { dkimContext } from '../store/dkim-keys.ts';
import { listProcessesWithoutKey } from '../store/processes.ts';
import { providerContext } from '../store/providers.ts';
import { listSealedByOtherKeys, replaceSealed, type SealedSecret } from '../store/sealed-secrets.ts';
import { serverContext } from '../store/smtp-accounts.ts';
import { secretContext } from '../webhooks/secret.ts';
import { addCommand, print, withSchema } from './database-tool.ts';

const batchSize = 500;

export function addReseal(program: Command): void {
  addCommand(
    program,
    'reseal',
    'encrypt every stored secret again, with the first key of POSTHORN_SECRET_KEY',
  ).action((options) =>
    withSchema(async (sql, _log, config) => {
      const resealed = await resealSecrets(sql, makeSealer(loadSecretKeys(config)));
      print(
        options,
        { resealed },
        `${resealed} secrets were encrypted again. All secrets now use the first key.`,
      );
    }),
  );
}

/** Returns how many secrets used another key. Safe to repeat after an interruption. */
async function resealSecrets(sql: Pool, sealer: Sealer): Promise<number> {
  const [keyId = ''] = sealer.keyIds;
  for (let resealed = 0; ; ) {
    // For each batch: a process may have started in the meantime.
    await requireKeyEverywhere(sql, keyId);
    const found = await listSealedByOtherKeys(sql, keyId, batchSize);
    if (found.length === 0) return resealed;
    for (const secret of found) {
      const context = contextOf(secret);
      await replaceSealed(sql, secret, sealer.seal(sealer.open(secret.sealed, context), context));
    }
    resealed += found.length;
  }
}

async function requireKeyEverywhere(sql: Sql, keyId: string): Promise<void> {
  const without = await listProcessesWithoutKey(sql, keyId);
  if (without.length === 0) return;
  const names = without.map(({ name, roles, version }) => `  ${name}: ${roles.join(', ')} (${version})`);
  throw new OperatorError(
    `Running processes do not have the first key of POSTHORN_SECRET_KEY (${keyId}):\n${names.join('\n')}\n` +
      'Add the key to POSTHORN_SECRET_KEY of these processes and restart them, then repeat the command. ' +
      'A process that was killed is forgotten after a minute.',
  );
}

function contextOf({ table, id, part }: SealedSecret): string {
  if (table === 'dkim_keys') return dkimContext(id, part ?? '');
  if (table === 'providers') return providerContext(id, part ?? '');
  return table === 'mail_servers' ? serverContext(id, part ?? '') : secretContext(id);
}

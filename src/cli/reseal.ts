/**
 * `posthorn reseal`: encrypts every stored secret again with the first key, also while the service runs, so that the other
 * keys can be removed. Stored idempotent responses and links are not changed: they expire after one day and after eight days.
 */
import type { Command } from 'commander';
import type { Pool } from '../db/client.ts';
import { dkimContext } from '../identities/dkim.ts';
import { loadSecretKeys, makeSealer, type Sealer } from '../lib/secrets.ts';
import { listSealedByOtherKeys, replaceSealed, type SealedSecret } from '../store/sealed-secrets.ts';
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
    const found = await listSealedByOtherKeys(sql, keyId, batchSize);
    if (found.length === 0) return resealed;
    for (const secret of found) {
      const context = contextOf(secret);
      await replaceSealed(sql, secret, sealer.seal(sealer.open(secret.sealed, context), context));
    }
    resealed += found.length;
  }
}

function contextOf({ table, id, selector }: SealedSecret): string {
  return table === 'dkim_keys' ? dkimContext(id, selector ?? '') : secretContext(id);
}

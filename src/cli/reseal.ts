/**
 * `posthorn reseal`: seals every stored secret anew under the first key, beside a running service, so that the keys after it
 * can go. Kept answers and links are not touched: they end by themselves, in a day and in eight.
 */
import type { Command } from 'commander';
import type { Pool } from '../db/client.ts';
import { dkimContext } from '../identities/dkim.ts';
import { loadSecretKeys, makeSealer, type Sealer } from '../lib/secrets.ts';
import { listSealedElsewhere, replaceSealed, type SealedSecret } from '../store/sealed-secrets.ts';
import { secretContext } from '../webhooks/secret.ts';
import { print, withSchema } from './database-tool.ts';

const batch = 500;

export function addReseal(program: Command): void {
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
}

/** Returns how many there were. Cut short, it is simply run again. */
async function resealSecrets(sql: Pool, sealer: Sealer): Promise<number> {
  const [keyId = ''] = sealer.keyIds;
  for (let resealed = 0; ; ) {
    const found = await listSealedElsewhere(sql, keyId, batch);
    if (found.length === 0) return resealed;
    for (const secret of found) {
      const context = contextOf(secret);
      await replaceSealed(sql, secret, sealer.seal(sealer.open(secret.sealed, context), context));
    }
    resealed += found.length;
  }
}

function contextOf({ place, id, selector }: SealedSecret): string {
  return place === 'dkim_keys' ? dkimContext(id, selector ?? '') : secretContext(id);
}

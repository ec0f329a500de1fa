/**
 * `posthorn reseal`: seals every stored secret anew under the first key, beside a running service, so that the keys after it
 * can go. Kept answers and links are not touched: they end by themselves, in a day and in eight.
 */
import type { Pool } from '../db/client.ts';
import { dkimContext } from '../identities/dkim.ts';
import type { Sealer } from '../lib/secrets.ts';
import { listSealedElsewhere, replaceSealed, type SealedSecret } from '../store/sealed-secrets.ts';
import { secretContext } from '../webhooks/secret.ts';

const batch = 500;

/** Returns how many there were. Cut short, it is simply run again. */
export async function resealSecrets(sql: Pool, sealer: Sealer): Promise<number> {
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

/** Encrypted secrets by the key that encrypted them, which their first 4 bytes identify. Not by owner: the key is the operator's. */
import { only, type Sql } from '../db/client.ts';
import { identifier } from '../db/sql.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { makeSealer, type Sealer } from '../lib/secrets.ts';

export interface SealedSecret {
  table: 'webhooks' | 'retired_webhook_secrets' | 'dkim_keys' | 'mail_servers' | 'providers';
  /** The webhook, the identity, the SMTP account or the provider. */
  id: string;
  /** The selector of a DKIM key, the side of a mail server, the column of a provider; otherwise null. */
  part: string | null;
  sealed: Buffer;
}

function allSecrets(sql: Sql) {
  return sql`
    (select 'webhooks' as "table", id, null as part, secret as sealed from webhooks
    union all
    select 'retired_webhook_secrets', webhook_id, null, secret from retired_webhook_secrets
    union all
    select 'dkim_keys', identity_id, selector, private_key from dkim_keys
    union all
    select 'mail_servers', account_id, side, secret from mail_servers
    union all
    select 'providers', id, 'credentials', credentials from providers
    union all
    select 'providers', id, 'hook_secret', hook_secret from providers) secrets`;
}

export interface SealedCount {
  /** In hex. */
  keyId: string;
  count: number;
}

const columns = [
  ['webhooks', 'secret'],
  ['retired_webhook_secrets', 'secret'],
  ['dkim_keys', 'private_key'],
  ['mail_servers', 'secret'],
  ['providers', 'credentials'],
  ['providers', 'hook_secret'],
] as const;

/** The keys are checked before a migration, so an older schema may lack some of the columns. */
export async function countSealedByKey(sql: Sql): Promise<SealedCount[]> {
  const counts = new Map<string, number>();
  for (const [table, column] of columns) {
    const { exists } = only(
      await sql<{ exists: boolean }[]>`
        select exists (
          select from pg_attribute where attrelid = to_regclass(${table}) and attname = ${column} and not attisdropped
        ) as exists`,
    );
    if (!exists) continue;
    const found = await sql<SealedCount[]>`
      select encode(substring(${identifier(column)} from 1 for 4), 'hex') as "keyId", count(*)::int as count
      from ${identifier(table)} where ${identifier(column)} is not null group by 1`;
    for (const { keyId, count } of found) counts.set(keyId, (counts.get(keyId) ?? 0) + count);
  }
  return [...counts].map(([keyId, count]) => ({ keyId, count })).sort((a, b) => (a.keyId < b.keyId ? -1 : 1));
}

/** Throws if a stored secret needs a key that is not set: otherwise the first sign would be a failed delivery. */
export async function openSealer(sql: Sql, secretKeys: readonly Buffer[]): Promise<Sealer> {
  const sealer = makeSealer(secretKeys);
  const problem = describeMissingKeys(sealer, await countSealedByKey(sql));
  if (problem === null) return sealer;
  throw new OperatorError(`${problem}. Add the key that was used before, after a comma.`);
}

/** Null if the sealer can decrypt every stored secret. */
export function describeMissingKeys({ keyIds }: Sealer, stored: readonly SealedCount[]): string | null {
  const missing = stored.filter(({ keyId }) => !keyIds.includes(keyId));
  if (missing.length === 0) return null;
  const counts = missing.map(({ keyId, count }) => `${count} encrypted under key ${keyId}`);
  return `POSTHORN_SECRET_KEY does not contain the key of some stored secrets: ${counts.join(', ')}`;
}

export async function listSealedByOtherKeys(sql: Sql, keyId: string, limit: number): Promise<SealedSecret[]> {
  return sql<SealedSecret[]>`
    select "table", id, part, sealed from ${allSecrets(sql)}
    where substring(sealed from 1 for 4) <> decode(${keyId}, 'hex') limit ${limit}`;
}

/** Does nothing if the secret was replaced since it was read. */
export async function replaceSealed(sql: Sql, old: SealedSecret, sealed: Buffer): Promise<void> {
  const { table, id, part } = old;
  if (table === 'dkim_keys') {
    await sql`
      update dkim_keys set private_key = ${sealed}
      where identity_id = ${id} and selector = ${part} and private_key = ${old.sealed}`;
    return;
  }
  if (table === 'mail_servers') {
    await sql`
      update mail_servers set secret = ${sealed}
      where account_id = ${id} and side = ${part} and secret = ${old.sealed}`;
    return;
  }
  if (table === 'providers') {
    const column = identifier(part ?? '');
    await sql`update providers set ${column} = ${sealed} where id = ${id} and ${column} = ${old.sealed}`;
    return;
  }
  const key = table === 'webhooks' ? 'id' : 'webhook_id';
  await sql`
    update ${identifier(table)} set secret = ${sealed} where ${identifier(key)} = ${id} and secret = ${old.sealed}`;
}

/**
 * Every secret that is kept for longer than a day, by the key it is sealed under, which its first bytes name. Not by owner:
 * the key is the operator's.
 */
import { only, type Sql } from '../db/client.ts';
import { identifier } from '../db/sql.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { makeSealer, type Sealer } from '../lib/secrets.ts';

export interface SealedSecret {
  place: 'webhooks' | 'retired_webhook_secrets' | 'dkim_keys';
  /** Of the webhook, or of the identity. */
  id: string;
  /** Of a DKIM key. */
  selector: string | null;
  sealed: Buffer;
}

function everywhere(sql: Sql) {
  return sql`
    (select 'webhooks' as place, id, null as selector, secret as sealed from webhooks
    union all
    select 'retired_webhook_secrets', webhook_id, null, secret from retired_webhook_secrets
    union all
    select 'dkim_keys', identity_id, selector, private_key from dkim_keys) everywhere`;
}

export interface SealedCount {
  /** In hex. */
  keyId: string;
  count: number;
}

/** Where they lie. A schema that is older than this program may lack some of it. */
const columns = { webhooks: 'secret', retired_webhook_secrets: 'secret', dkim_keys: 'private_key' } as const;

/** Also of an older schema: keys are looked at before it is changed for good. */
export async function countSealedByKey(sql: Sql): Promise<SealedCount[]> {
  const counts = new Map<string, number>();
  for (const [table, column] of Object.entries(columns)) {
    const { isThere } = only(
      await sql<{ isThere: boolean }[]>`select to_regclass(${table}) is not null as "isThere"`,
    );
    if (!isThere) continue;
    const found = await sql<SealedCount[]>`
      select encode(substring(${identifier(column)} from 1 for 4), 'hex') as "keyId", count(*)::int as count
      from ${identifier(table)} group by 1`;
    for (const { keyId, count } of found) counts.set(keyId, (counts.get(keyId) ?? 0) + count);
  }
  return [...counts].map(([keyId, count]) => ({ keyId, count })).sort((a, b) => (a.keyId < b.keyId ? -1 : 1));
}

/** Refuses keys that do not open every stored secret: a missing one would show only later, as mail that is not signed. */
export async function openSealer(sql: Sql, secretKeys: readonly Buffer[]): Promise<Sealer> {
  const sealer = makeSealer(secretKeys);
  const fault = describeMissingKeys(sealer, await countSealedByKey(sql));
  if (fault === null) return sealer;
  throw new OperatorError(`${fault}. Add the key that was used before, after a comma.`);
}

/** What is stored under keys that the sealer does not have; null when it opens everything. */
export function describeMissingKeys({ keyIds }: Sealer, stored: readonly SealedCount[]): string | null {
  const missing = stored.filter(({ keyId }) => !keyIds.includes(keyId));
  if (missing.length === 0) return null;
  const counts = missing.map(({ keyId, count }) => `${count} encrypted under key ${keyId}`);
  return `There are stored secrets, ${counts.join(', ')}, which POSTHORN_SECRET_KEY does not hold`;
}

/** Some that are sealed under another key than this. */
export async function listSealedByOtherKeys(sql: Sql, keyId: string, limit: number): Promise<SealedSecret[]> {
  return sql<SealedSecret[]>`
    select place, id, selector, sealed from ${everywhere(sql)}
    where substring(sealed from 1 for 4) <> decode(${keyId}, 'hex') limit ${limit}`;
}

/** Only where it still is what was read: one that was replaced meanwhile is under the key of whoever did. */
export async function replaceSealed(sql: Sql, was: SealedSecret, sealed: Buffer): Promise<void> {
  const { place, id, selector } = was;
  if (place === 'dkim_keys') {
    await sql`
      update dkim_keys set private_key = ${sealed}
      where identity_id = ${id} and selector = ${selector} and private_key = ${was.sealed}`;
    return;
  }
  const key = place === 'webhooks' ? 'id' : 'webhook_id';
  await sql`
    update ${identifier(place)} set secret = ${sealed} where ${identifier(key)} = ${id} and secret = ${was.sealed}`;
}

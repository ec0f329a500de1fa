/**
 * Signs outgoing mail with the DKIM key of its domain. Guarantee: signs only with a key that stands in DNS, as far as DNS answers:
 * a signature that nobody can verify is worse than none.
 */
import type { Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import type { Sealer } from '../lib/secrets.ts';
import { readKeyOnce, type Signed, type SigningKey } from '../mailauth/sign.ts';
import { readTags } from '../mailauth/tag-list.ts';
import { type DnsClient, withDeadline } from '../net/dns.ts';
import { dkimContext } from '../store/dkim-keys.ts';
import { findSigningKeys, type SealedSigningKey } from '../store/senders.ts';

interface SignerParts {
  sql: Sql;
  sealer: Sealer;
  dns: DnsClient;
  sign(raw: Buffer, key: SigningKey, now: Date, ownerId: string): Promise<Signed>;
  log: Log;
}

const keepMs = 30_000;
const maxKept = 10_000;
const dnsMs = 5000;

export class Signer {
  readonly #parts: SignerParts;
  /** By owner and domain. */
  readonly #chosen = new Map<string, { key: Promise<SigningKey | null>; until: number }>();

  constructor(parts: SignerParts) {
    this.#parts = parts;
  }

  /** The DKIM-Signature field with its CRLF; empty if the mail cannot be signed. */
  async sign(raw: Buffer, ownerId: string, domain: string): Promise<string> {
    const key = await this.findKey(ownerId, domain);
    if (!key) return '';
    const signed = await this.#parts.sign(raw, key, new Date(), ownerId);
    if (signed.ok) return signed.field;
    this.#parts.log.warn({ domain }, `A message is sent without a DKIM signature: ${signed.reason}`);
    return '';
  }

  /** Cached for `keepMs`. */
  findKey(ownerId: string, domain: string): Promise<SigningKey | null> {
    const name = `${ownerId} ${domain}`;
    const known = this.#chosen.get(name);
    if (known && known.until > performance.now()) return known.key;
    if (this.#chosen.size >= maxKept) this.#chosen.clear();
    const key = this.#chooseKey(ownerId, domain);
    this.#chosen.set(name, { key, until: performance.now() + keepMs });
    key.catch(() => this.#chosen.delete(name));
    return key;
  }

  async #chooseKey(ownerId: string, domain: string): Promise<SigningKey | null> {
    const { sql, sealer } = this.#parts;
    const keys = await findSigningKeys(sql, ownerId, domain);
    const published = await Promise.all(keys.map((key) => this.#isPublished(key)));
    // If DNS does not answer: what the last check found there.
    const chosen = keys.find(({ wasPublished }, n) => published[n] ?? wasPublished);
    if (!chosen) return null;
    const { identityId, selector, privateKey } = chosen;
    const opened = sealer.open(privateKey, dkimContext(identityId, selector));
    return readKeyOnce({ domain, selector, privateKey: opened });
  }

  /** Null: DNS does not answer. */
  async #isPublished({ domain, selector, publicKey }: SealedSigningKey): Promise<boolean | null> {
    const name = `${selector}._domainkey.${domain}`;
    const answer = await withDeadline(dnsMs, (signal) => this.#parts.dns.resolve(name, 'TXT', signal));
    if (answer.kind === 'unknown') return null;
    const values = answer.kind === 'records' ? answer.values : [];
    return values.some((value) => readTags(value)?.get('p')?.replace(/\s/g, '') === publicKey);
  }
}

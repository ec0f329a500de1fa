/** Reads DKIM keys from DNS records (RFC 6376 §3.6.1, RFC 8463 §4) and decides whether a key may verify a signature. */
import { createPublicKey, type KeyObject } from 'node:crypto';
import { readTags } from './tag-list.ts';

export type KeyType = 'rsa' | 'ed25519';

interface DkimKey {
  key: KeyObject;
  type: string | undefined;
  /** Null: any. */
  hashes: string[] | null;
  isForMail: boolean;
  /** `t=s`: `i=` may not name a subdomain. */
  isExact: boolean;
  /** False: too weak, or so large that a verification takes a hundred times as long. */
  isUsable: boolean;
}

/** RFC 8301 §3.2. */
const minRsaBits = 1024;
const maxRsaBits = 8192;
/** Real keys have 65537. An exponent as long as the modulus costs 30 ms of CPU for each signature. */
const maxExponent = 2n ** 32n;
const ed25519Prefix = Buffer.from('302a300506032b6570032100', 'hex');

export function readKey(
  records: readonly string[],
  wanted: { type: KeyType; hash: string },
): { key: KeyObject; isExact: boolean } | { result: 'permerror' | 'policy'; reason: string } {
  // The name may have other TXT records too.
  const found = records.map(readCached).find((key) => key?.type === wanted.type);
  const isFit = found?.isForMail && (found.hashes?.includes(wanted.hash) ?? true);
  if (!isFit) return { result: 'permerror', reason: 'The record in DNS has no key that fits the signature.' };
  return found.isUsable ? found : { result: 'policy', reason: 'The key is too short or too large.' };
}

/** By record. Reading a key takes ten times as long as a verification, and a sender uses one key for all its mail. */
const cachedKeys = new Map<string, DkimKey | null>();
const maxCached = 500;
/** Longer records are not cached; real ones are far shorter. */
const maxCachedChars = 4096;

function readCached(record: string): DkimKey | null {
  const cached = cachedKeys.get(record);
  if (cached !== undefined) return cached;
  const key = readRecord(record);
  if (record.length > maxCachedChars) return key;
  const [oldest] = cachedKeys.size >= maxCached ? cachedKeys.keys() : [];
  if (oldest !== undefined) cachedKeys.delete(oldest);
  cachedKeys.set(record, key);
  return key;
}

function readRecord(record: string): DkimKey | null {
  const tags = readTags(record.replace(/\s+/g, ''), 'leniently');
  const word = (name: string) => tags?.get(name)?.toLowerCase();
  if (!tags || (word('v') ?? 'dkim1') !== 'dkim1') return null;
  const key = importKey(tags.get('p') ?? '');
  if (!key || (word('k') || key.asymmetricKeyType) !== key.asymmetricKeyType) return null;
  const services = word('s')?.split(':') ?? ['*'];
  return {
    key,
    type: key.asymmetricKeyType,
    hashes: word('h')?.split(':') ?? null,
    isForMail: services.includes('*') || services.includes('email'),
    isExact: (word('t') ?? '').split(':').includes('s'),
    isUsable: isUsable(key),
  };
}

function isUsable({ asymmetricKeyDetails }: KeyObject): boolean {
  const { modulusLength = minRsaBits, publicExponent = 0n } = asymmetricKeyDetails ?? {};
  return modulusLength >= minRsaBits && modulusLength <= maxRsaBits && publicExponent <= maxExponent;
}

/** Null: not a key. An empty key was revoked. */
function importKey(base64: string): KeyObject | null {
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(base64)) return null;
  const bytes = Buffer.from(base64, 'base64');
  const key = bytes.length === 32 ? Buffer.concat([ed25519Prefix, bytes]) : bytes;
  // `spki` is what people publish; `pkcs1`, the RSAPublicKey inside it, is what the RFC says.
  for (const type of ['spki', 'pkcs1'] as const) {
    try {
      return createPublicKey({ key, format: 'der', type });
    } catch {}
  }
  return null;
}

/** What a key in DNS says (RFC 6376 §3.6.1, RFC 8463 §4), and whether a signature may be verified with it. */
import { createPublicKey, type KeyObject } from 'node:crypto';
import { readTags } from './tag-list.ts';

export type KeyType = 'rsa' | 'ed25519';

interface Key {
  key: KeyObject;
  type: string | undefined;
  /** null: any. */
  hashes: string[] | null;
  isForMail: boolean;
  /** `t=s`: i= may not name a subdomain. */
  isExact: boolean;
  /** Neither too weak nor so odd that to verify with it takes a hundred times as long. */
  isFit: boolean;
}

/** RFC 8301 §3.2. */
const leastRsaBits = 1024;
const mostRsaBits = 8192;
/** Honest keys have 65537. One as long as the modulus takes 30 ms of a processor, as often as a message says. */
const mostExponent = 2n ** 32n;
const ed25519Prefix = Buffer.from('302a300506032b6570032100', 'hex');

/** `policy`: too weak. `permerror`: none that could verify this. */
export function readKey(
  records: readonly string[],
  wanted: { type: KeyType; hash: string },
): { key: KeyObject; isExact: boolean } | 'permerror' | 'policy' {
  // There may be other records beside it, in any order.
  const found = records.map(recall).find((key) => key?.type === wanted.type);
  if (!found?.isForMail) return 'permerror';
  if (found.hashes && !found.hashes.includes(wanted.hash)) return 'permerror';
  return found.isFit ? found : 'policy';
}

/** To read a key takes ten times as long as to verify with it, and a sender has one for all its mail. */
const known = new Map<string, Key | null>();
const maxKnown = 500;
/** A longer one is read each time: honest ones are far shorter. */
const maxKnownChars = 4096;

function recall(record: string): Key | null {
  const kept = known.get(record);
  if (kept !== undefined) return kept;
  const read = readRecord(record);
  if (record.length > maxKnownChars) return read;
  const [oldest] = known.size >= maxKnown ? known.keys() : [];
  if (oldest !== undefined) known.delete(oldest);
  known.set(record, read);
  return read;
}

function readRecord(record: string): Key | null {
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
    isFit: isFit(key),
  };
}

function isFit({ asymmetricKeyDetails }: KeyObject): boolean {
  const { modulusLength = leastRsaBits, publicExponent = 0n } = asymmetricKeyDetails ?? {};
  return modulusLength >= leastRsaBits && modulusLength <= mostRsaBits && publicExponent <= mostExponent;
}

/** null: no key. An empty one has been revoked. */
function importKey(base64: string): KeyObject | null {
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(base64)) return null;
  const bytes = Buffer.from(base64, 'base64');
  try {
    if (bytes.length === 32) {
      const key = Buffer.concat([ed25519Prefix, bytes]);
      return createPublicKey({ key, format: 'der', type: 'spki' });
    }
    return importRsa(bytes);
  } catch {
    return null;
  }
}

/** People publish a SubjectPublicKeyInfo; the RFC's own form is the RSAPublicKey within it. */
function importRsa(key: Buffer): KeyObject {
  try {
    return createPublicKey({ key, format: 'der', type: 'spki' });
  } catch {
    return createPublicKey({ key, format: 'der', type: 'pkcs1' });
  }
}

/**
 * DKIM keys of an identity: makes a key, writes its DNS record (RFC 6376 §3.6.1) and checks the published record.
 * The caller encrypts the private key; this file does not keep it.
 */
import { createHash, generateKeyPair } from 'node:crypto';
import { promisify } from 'node:util';
import { readTags } from '../mailauth/tag-list.ts';
import type { RecordDecision } from './dns-record.ts';

export interface DkimKey {
  selector: string;
  /** DER (SubjectPublicKeyInfo) in base64, as the record has it. */
  publicKey: string;
}

export interface NewDkimKey extends DkimKey {
  /** PKCS #8 in PEM. */
  privateKey: string;
}

/** `publicKey`: DER (SubjectPublicKeyInfo). `privateKey`: PKCS #8 in PEM. */
export type MakeKeyPair = () => Promise<{ publicKey: Buffer; privateKey: string }>;

const generate = promisify(generateKeyPair);

/** Takes about 0.2 s in Node's thread pool. */
export const makeRsaKeyPair: MakeKeyPair = () =>
  generate('rsa', {
    // RFC 8301 §3.2 advises 2048 bits; a key of 4096 bits does not fit in a DNS packet.
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'der' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });

export async function makeDkimKey(now: Date, makeKeyPair = makeRsaKeyPair): Promise<NewDkimKey> {
  const { publicKey, privateKey } = await makeKeyPair();
  return { selector: selectorOf(publicKey, now), publicKey: publicKey.toString('base64'), privateKey };
}

/** The date shows which key is newer; the hash keeps the keys of several claimants of one domain apart. */
function selectorOf(publicKey: Buffer, now: Date): string {
  const date = now.toISOString().slice(0, 10).replaceAll('-', '');
  return `ph${date}-${createHash('sha256').update(publicKey).digest('hex').slice(0, 6)}`;
}

export function writeDkimRecord(publicKey: string): string {
  return `v=DKIM1; k=rsa; p=${publicKey}`;
}

export function decideDkim(values: readonly string[], key: DkimKey): RecordDecision {
  const [value] = values;
  if (value === undefined) {
    return {
      status: 'missing',
      note: `The DKIM key ${key.selector} is not published: publish this record, so that receivers can verify signed mail.`,
    };
  }
  const note = values.length > 1 ? describeSeveral(values, key) : describeMismatch(value, key);
  return note === null ? { status: 'valid' } : { status: 'mismatch', note };
}

/** RFC 6376 §3.6.2.2: with several records at one name the outcome is undefined. */
function describeSeveral(values: readonly string[], key: DkimKey): string {
  return values.some((value) => describeMismatch(value, key) === null)
    ? `There are ${values.length} TXT records at this name, and receivers may read the wrong one: delete all except the record shown.`
    : `There are ${values.length} TXT records at this name, and none is correct: replace them with the record shown.`;
}

function describeMismatch(value: string, key: DkimKey): string | null {
  const tags = readTags(value);
  const published = tags?.get('p')?.replace(/\s/g, '');
  if (!tags || published === undefined || (tags.get('v') ?? 'DKIM1') !== 'DKIM1') {
    return 'The TXT record at this name is not a DKIM record: enter the value exactly as shown, without quotation marks.';
  }
  if (published === '') return 'The record revokes the key ("p=" is empty): enter the whole value.';
  if (published !== key.publicKey) {
    return key.publicKey.startsWith(published)
      ? 'The end of the key is missing: enter the whole value. If the DNS panel limits the length, split the value into strings of up to 255 characters.'
      : 'The record contains another key: replace it with the record shown.';
  }
  if ((tags.get('k') ?? 'rsa').toLowerCase() !== 'rsa')
    return 'The record names another key type: write "k=rsa".';
  if (!lists(tags.get('h'), 'sha256'))
    return 'The record does not allow SHA-256 ("h="): remove the tag "h=".';
  if (!lists(tags.get('s'), 'email')) return 'The record is not for email ("s="): remove the tag "s=".';
  return null;
}

/** RFC 6376 §3.6.1: a missing list, or `*` in it, allows everything. */
function lists(list: string | undefined, word: string): boolean {
  const words = list?.split(':').map((item) => item.trim().toLowerCase()) ?? ['*'];
  return words.includes(word) || words.includes('*');
}

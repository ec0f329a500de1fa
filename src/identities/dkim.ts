/**
 * An identity's DKIM keys: how one is made, how it is published (RFC 6376 §3.6.1) and whether it is.
 * The private key is handed out as text for the caller to seal; nothing here keeps it.
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

const makeKeyPair = promisify(generateKeyPair);

/** Takes some 0.2 s of another thread. */
export async function makeDkimKey(now: Date): Promise<NewDkimKey> {
  const { publicKey, privateKey } = await makeKeyPair('rsa', {
    // RFC 8301 §3.2: at least 1024, 2048 advised; a key of 4096 does not fit in a DNS packet.
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'der' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });
  return { selector: selectorOf(publicKey, now), publicKey: publicKey.toString('base64'), privateKey };
}

/** What a private key is sealed for. */
export function dkimContext(identityId: string, selector: string): string {
  return `dkim ${identityId} ${selector}`;
}

/** With a date, to tell old from new, and a part of the key's hash: two owners who claim one domain do not collide. */
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
      note: `The DKIM key ${key.selector} is not published: publish this record, so that signed mail can be checked.`,
    };
  }
  const note = values.length > 1 ? describeSeveral(values, key) : findFault(value, key);
  return note === null ? { status: 'valid' } : { status: 'mismatch', note };
}

/** RFC 6376 §3.6.2.2: with several records at one name the outcome is undefined. */
function describeSeveral(values: readonly string[], key: DkimKey): string {
  return values.some((value) => findFault(value, key) === null)
    ? `${values.length} records stand here and receivers may read the wrong one: delete all but the one shown.`
    : `${values.length} records stand here and none of them is right: replace them with the one shown.`;
}

function findFault(value: string, key: DkimKey): string | null {
  const tags = readTags(value);
  const published = tags?.get('p')?.replace(/\s/g, '');
  if (!tags || published === undefined || (tags.get('v') ?? 'DKIM1') !== 'DKIM1') {
    return 'What stands here is no DKIM record: enter the value exactly as shown, without quotation marks.';
  }
  if (published === '')
    return 'The record says that the key is revoked ("p=" is empty): enter the whole value.';
  if (published !== key.publicKey) {
    return key.publicKey.startsWith(published)
      ? 'The key was cut short: enter the whole value, in pieces of up to 255 characters where the DNS panel asks for it.'
      : 'Another key stands here: replace the record with the one shown.';
  }
  if ((tags.get('k') ?? 'rsa').toLowerCase() !== 'rsa')
    return 'The record gives another kind of key: write "k=rsa".';
  if (!lists(tags.get('h'), 'sha256')) return 'The record does not allow sha256 ("h="): remove that tag.';
  if (!lists(tags.get('s'), 'email')) return 'The record is not for email ("s="): remove that tag.';
  return null;
}

/** A list that is left out, or a star in it, means all. */
function lists(list: string | undefined, word: string): boolean {
  const words = list?.split(':').map((item) => item.trim().toLowerCase()) ?? ['*'];
  return words.includes(word) || words.includes('*');
}

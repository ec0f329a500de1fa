/**
 * Writes the DKIM-Signature field of an outgoing message (RFC 6376, RFC 8301, RFC 8463). Guarantees: a key or a message that
 * cannot be used is a value, not an exception; linear time for any input.
 *
 * Not by mailauth's `dkimSign`: it cannot sign a field more often than the field occurs, and its time grows with the square of a
 * run of blanks (docs/decisions/0013-own-smtp-client.md).
 */
import { createHash, createPrivateKey, type KeyObject, sign } from 'node:crypto';
import { promisify } from 'node:util';
import { canonicalField, hashBody } from './canonical.ts';
import { readFieldName, splitMessage } from './dkim.ts';
import { toAscii } from './domain.ts';

export interface SigningKey {
  domain: string;
  selector: string;
  /** RSA or Ed25519; PKCS #8 in PEM, or already read. */
  privateKey: string | KeyObject;
}

/** For a key that signs many messages: to read an RSA key and prepare it for use takes three times as long as a signature. */
export function readKeyOnce(key: SigningKey & { privateKey: string }): SigningKey {
  const privateKey = readPrivateKey(key.privateKey);
  // A key that cannot be used is refused with its reason when it signs.
  return typeof privateKey === 'string' ? key : { ...key, privateKey };
}

/** `field` has its CRLF and stands in front of the message. `reason`: a sentence for the operator. */
export type Signed = { ok: true; field: string } | { ok: false; reason: string };

/**
 * Signed once more than they occur, so that nobody can add a second one that is shown instead (RFC 6376 §8.15). Not Sender:
 * mailing lists add it, and a signature should survive that.
 */
const closedFields = [
  ...['From', 'To', 'Cc', 'Subject', 'Date', 'Message-ID', 'Reply-To', 'In-Reply-To', 'References'],
  ...['MIME-Version', 'Content-Type', 'Content-Transfer-Encoding'],
];
/** Signed where they occur. RFC 8058 §4 requires the two fields of one-click unsubscription. */
const openFields = ['Sender', 'List-Id', 'List-Unsubscribe', 'List-Unsubscribe-Post'];

/** RFC 8301 §3.2. */
const minRsaBits = 1024;
const lineLength = 72;
/** In Node's thread pool: an RSA signature takes a millisecond. */
const signBytes = promisify(sign);

export async function signMessage(raw: Buffer, key: SigningKey, now: Date): Promise<Signed> {
  const [domain, selector] = [toAscii(key.domain), toAscii(key.selector)];
  if (!domain || !selector) return refuse(`"${key.selector}" at "${key.domain}" is not a name in DNS.`);
  const privateKey = readPrivateKey(key.privateKey);
  if (typeof privateKey === 'string') return refuse(`The DKIM key ${selector} of ${domain} ${privateKey}`);
  const message = splitMessage(raw);
  if (!message) return refuse('The header of the message is too long to be signed.');
  const fieldsByName = Map.groupBy(message.fields, readFieldName);
  if (!fieldsByName.has('from')) return refuse('The message has no From field, which DKIM must sign.');

  const names: string[] = [];
  let text = '';
  for (const name of [...closedFields, ...openFields]) {
    const fields = fieldsByName.get(name.toLowerCase()) ?? [];
    // RFC 6376 §5.4.2: of repeated fields the last is signed first.
    for (const field of fields.toReversed()) text += `${canonicalField(field, 'relaxed')}\r\n`;
    const times = fields.length + (closedFields.includes(name) ? 1 : 0);
    names.push(...Array<string>(times).fill(name));
  }
  const isRsa = privateKey.asymmetricKeyType === 'rsa';
  const unsigned = [
    `DKIM-Signature: v=1; a=${isRsa ? 'rsa' : 'ed25519'}-sha256; c=relaxed/relaxed;`,
    ` d=${domain}; s=${selector}; t=${Math.floor(now.getTime() / 1000)};`,
    ` h=${fold(names.map((name, n) => (n === 0 ? name : `:${name}`)))};`,
    ` bh=${hashBody(message.body, 'relaxed', 'sha256').hash.toString('base64')};`,
    ' b=',
  ].join('\r\n');
  const covered = Buffer.from(`${text}${canonicalField(unsigned, 'relaxed')}`, 'latin1');
  // RFC 8463 §3: Ed25519 signs the hash.
  const signature = isRsa
    ? await signBytes('sha256', covered, privateKey)
    : await signBytes(null, createHash('sha256').update(covered).digest(), privateKey);
  const value = signature.toString('base64').match(/.{1,72}/g) ?? [];
  return { ok: true, field: `${unsigned}${value.join('\r\n ')}\r\n` };
}

function refuse(reason: string): Signed {
  return { ok: false, reason };
}

/** A key, or the end of a sentence. */
function readPrivateKey(given: SigningKey['privateKey']): KeyObject | string {
  if (typeof given !== 'string') return given;
  try {
    const key = createPrivateKey(given);
    if (key.asymmetricKeyType === 'ed25519') return key;
    if (key.asymmetricKeyType !== 'rsa')
      return `is of the type ${key.asymmetricKeyType}; use RSA or Ed25519.`;
    const { modulusLength = 0 } = key.asymmetricKeyDetails ?? {};
    return modulusLength < minRsaBits ? `has ${modulusLength} bits; use at least ${minRsaBits}.` : key;
  } catch {
    return 'cannot be read.';
  }
}

/** Joins the words, with a line break before a word that would make the line too long. */
function fold(words: readonly string[]): string {
  let length = 0;
  return words
    .map((word) => {
      length += word.length;
      if (length <= lineLength) return word;
      length = word.length;
      return `\r\n  ${word}`;
    })
    .join('');
}

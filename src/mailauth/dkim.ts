/**
 * Verifies DKIM signatures (RFC 6376, RFC 8301, RFC 8463) and the ARC signatures of the same form (arc.ts). Pure: the keys are
 * given. Guarantees: never throws; linear time for any input. Our own because mailauth takes five times as long for 5 KB and a
 * minute for 25 MB of blanks (docs/decisions/0009-own-dkim.md).
 */
import { createHash, verify as verifyBytes } from 'node:crypto';
import { findHeaderEnd } from '../mime/headers.ts';
import { trimBlanks } from '../mime/lexical.ts';
import type { DnsAnswer } from '../net/dns.ts';
import { type BodyHash, type CanonicalForm, canonicalField, hashBody } from './canonical.ts';
import { type KeyType, readKey } from './dkim-key.ts';
import { toAscii } from './domain.ts';
import { readTags } from './tag-list.ts';

/** RFC 8601 §2.7.1. */
export type DkimResult = 'pass' | 'fail' | 'neutral' | 'policy' | 'temperror' | 'permerror';

export interface Verdict {
  result: DkimResult;
  /** A sentence for people. Null: the signature passes. */
  reason: string | null;
}

/** The DNS answers for the keys that a message names, by name in lower case. */
export type Keys = ReadonlyMap<string, DnsAnswer<string>>;

/** Fields as they were written, with CRLF, one character for each byte. */
export interface SignedMessage {
  fields: readonly string[];
  body: Uint8Array;
}

/** Nobody signs a longer header. */
const maxHeaderBytes = 256 * 1024;
/** Each different hash reads the whole body again. Real mail needs one or two. */
const maxBodyHashes = 4;
/** RFC 5322 §3.6 allows these fields once; RFC 2045 §4, §5 and §6 the last three. */
const singleFields = [
  ...['Date', 'From', 'Sender', 'Reply-To', 'To', 'Cc', 'Bcc', 'Message-ID', 'In-Reply-To', 'References'],
  ...['Subject', 'MIME-Version', 'Content-Type', 'Content-Transfer-Encoding'],
];

/** Null: the header is too long. */
export function splitMessage(raw: Buffer): SignedMessage | null {
  const header = findHeaderEnd(raw, maxHeaderBytes);
  if (!header && raw.length > maxHeaderBytes) return null;
  const head = raw.toString('latin1', 0, header?.end).replace(/(?<!\r)\n/g, '\r\n');
  const fields = head.replace(/\r\n$/, '').split(/\r\n(?![ \t])/);
  const body = raw.subarray(header?.bodyStart ?? raw.length);
  return { fields, body };
}

/** Without tags if the field cannot be read. */
export interface Signature {
  field: string;
  tags: ReadonlyMap<string, string>;
}

export function readSignature(field: string): Signature {
  const value = field.slice(field.indexOf(':') + 1);
  const text = /^[\0-\x7f]*$/.test(value) ? value : Buffer.from(value, 'latin1').toString();
  return { field, tags: readTags(text) ?? new Map() };
}

/** The DNS name of the signature's key. Null: not a valid name. */
export function readKeyName({ tags }: Signature): string | null {
  const [domain, selector] = [tags.get('d'), tags.get('s')].map(toAscii);
  return domain && selector ? `${selector}._domainkey.${domain}` : null;
}

export interface Verifier {
  /** `arc`: an ARC-Message-Signature (RFC 8617 §4.1.2). It has no version, and its `i=` is a number. */
  verify(signature: Signature, kind: 'dkim' | 'arc'): Verdict;
  /** Checks `text` against the signature's value. `isExact`: the signature is not for a subdomain of its domain. */
  verifyText(signature: Signature, text: string, isExact?: boolean): Verdict;
}

const passed: Verdict = { result: 'pass', reason: null };
const unreadable: Verdict = { result: 'neutral', reason: 'The signature cannot be read.' };

export function makeVerifier(message: SignedMessage, keys: Keys, now: Date): Verifier {
  const fieldsByName = Map.groupBy(message.fields, readFieldName);
  const bodyHashes = new Map<string, BodyHash>();

  /** Null: too many different hashes. */
  function hashOnce(form: CanonicalForm, hash: string, limit: number): BodyHash | null {
    const key = `${form} ${hash} ${limit}`;
    const known = bodyHashes.get(key);
    if (known || bodyHashes.size === maxBodyHashes) return known ?? null;
    const made = hashBody(message.body, form, hash, limit);
    bodyHashes.set(key, made);
    return made;
  }

  /** RFC 6376 §5.4.2: of repeated fields the last is signed first. A missing field counts as empty. */
  function selectFields(names: readonly string[], form: CanonicalForm): string {
    const taken = new Map<string, number>();
    let text = '';
    for (const name of names) {
      const count = (taken.get(name) ?? 0) + 1;
      taken.set(name, count);
      const field = fieldsByName.get(name)?.at(-count);
      if (field !== undefined) text += `${canonicalField(field, form)}\r\n`;
    }
    return text;
  }

  /**
   * RFC 6376 §8.15: anyone may add a second Subject above a signed message. The signature covers the lowest fields, and the highest
   * is shown. A field that occurs once and is not signed is no fault: signers choose what they sign.
   */
  function findUncovered(names: readonly string[]): string | null {
    for (const field of singleFields) {
      const key = field.toLowerCase();
      const count = fieldsByName.get(key)?.length ?? 0;
      const covered = count > 1 ? names.filter((name) => name === key).length : count;
      if (count > covered)
        return `The message has the field ${field} ${count} times and the signature covers ${covered} of them.`;
    }
    return null;
  }

  function verifyText(signature: Signature, text: string, isExact = true): Verdict {
    const algorithm = readAlgorithm(signature);
    const name = readKeyName(signature);
    if (!algorithm || !name) return unreadable;
    const answer = keys.get(name);
    // This key was not queried.
    if (answer === undefined) return { result: 'policy', reason: 'The signatures name too many keys.' };
    if (answer.kind === 'unknown')
      return { result: 'temperror', reason: `The key is not known: ${answer.reason}.` };
    if (answer.kind === 'none') return { result: 'permerror', reason: 'DNS has no key for the signature.' };
    const found = readKey(answer.values, algorithm);
    if ('result' in found) return found;
    if (found.isExact && !isExact) {
      return { result: 'permerror', reason: 'The key does not allow subdomains in "i=".' };
    }
    const bytes = Buffer.from(text, 'latin1');
    const signed = Buffer.from(signature.tags.get('b') ?? '', 'base64');
    const isValid =
      algorithm.type === 'rsa'
        ? verifyBytes(algorithm.hash, bytes, found.key, signed)
        : verifyBytes(null, createHash(algorithm.hash).update(bytes).digest(), found.key, signed);
    return isValid ? passed : { result: 'fail', reason: 'The header is not the one that was signed.' };
  }

  function verify(signature: Signature, kind: 'dkim' | 'arc'): Verdict {
    const { field, tags } = signature;
    const algorithm = readAlgorithm(signature);
    const forms = readForms(tags.get('c') ?? 'simple/simple');
    const required = kind === 'dkim' ? ['v', 'd', 's', 'h', 'bh', 'b'] : ['d', 's', 'h', 'bh', 'b'];
    if (!algorithm || !forms || !required.every((tag) => tags.get(tag))) return unreadable;
    if (kind === 'dkim' && tags.get('v') !== '1') return unreadable;
    if (!['t', 'x', 'l'].every((tag) => /^\d{1,15}$/.test(tags.get(tag) || '0'))) return unreadable;
    const names = (tags.get('h') ?? '').split(':').map((name) => name.trim().toLowerCase());
    if (!names.includes('from')) {
      return { result: 'permerror', reason: 'The signature does not cover the field From.' };
    }
    const identity = kind === 'dkim' ? readIdentity(tags) : 'domain';
    if (identity === 'other') return { result: 'permerror', reason: '"i=" names another domain than "d=".' };

    const limit = Number(tags.get('l') || Infinity);
    const body = hashOnce(forms.body, algorithm.hash, limit);
    if (!body) return { result: 'policy', reason: 'The signatures need too many hashes of the body.' };
    const isSame = body.hash.equals(Buffer.from(tags.get('bh') ?? '', 'base64'));
    if (!isSame || (limit !== Infinity && limit > body.length)) {
      return { result: 'fail', reason: 'The body is not the one that was signed.' };
    }
    // RFC 8301 §3.1
    if (algorithm.hash === 'sha1') return { result: 'policy', reason: 'SHA-1 is not secure.' };
    const text = `${selectFields(names, forms.header)}${canonicalField(withoutValue(field), forms.header)}`;
    const verdict = verifyText(signature, text, identity === 'domain');
    if (verdict.result !== 'pass') return verdict;
    if (isExpired(tags, now)) return { result: 'fail', reason: 'The signature has expired.' };
    // Anyone may have added text after the signed length.
    if (body.length > limit)
      return { result: 'policy', reason: 'The body is longer than the signed length ("l=").' };
    const uncovered = findUncovered(names);
    return uncovered === null ? passed : { result: 'policy', reason: uncovered };
  }

  return { verify, verifyText };
}

export function readFieldName(field: string): string {
  return trimBlanks(field.slice(0, Math.max(0, field.indexOf(':')))).toLowerCase();
}

function readAlgorithm({ tags }: Signature): { type: KeyType; hash: string } | null {
  const [, type, hash] = /^(rsa|ed25519)-(sha1|sha256)$/i.exec(tags.get('a') ?? '') ?? [];
  if (!type || !hash || (type.toLowerCase() === 'ed25519' && hash.toLowerCase() === 'sha1')) return null;
  return { type: type.toLowerCase() as KeyType, hash: hash.toLowerCase() };
}

/** RFC 6376 §3.5: one word is for the header, and the body is simple. */
function readForms(text: string): { header: CanonicalForm; body: CanonicalForm } | null {
  const [, header, body = 'simple'] = /^(simple|relaxed)(?:\/(simple|relaxed))?$/i.exec(text) ?? [];
  return header
    ? { header: header.toLowerCase() as CanonicalForm, body: body.toLowerCase() as CanonicalForm }
    : null;
}

/** RFC 6376 §2.11. */
function decodeQuotedPrintable(text: string): string {
  return text
    .replace(/\s+/g, '')
    .replace(/(?:=[0-9a-f]{2})+/gi, (run) => Buffer.from(run.replaceAll('=', ''), 'hex').toString());
}

/** RFC 6376 §6.1.1: `i=` must name the signing domain or a subdomain of it. */
function readIdentity(tags: ReadonlyMap<string, string>): 'domain' | 'subdomain' | 'other' {
  const domain = toAscii(tags.get('d'));
  const identity = decodeQuotedPrintable(tags.get('i') || `@${tags.get('d')}`);
  const named = toAscii(identity.slice(identity.lastIndexOf('@') + 1));
  if (!identity.includes('@') || named === null) return 'other';
  if (named === domain) return 'domain';
  return named.endsWith(`.${domain}`) ? 'subdomain' : 'other';
}

function isExpired(tags: ReadonlyMap<string, string>, now: Date): boolean {
  const [signedAt, expiresAt] = [tags.get('t'), tags.get('x')].map((text) =>
    text ? Number(text) * 1000 : null,
  );
  if (expiresAt == null) return false;
  return expiresAt < now.getTime() || (signedAt != null && expiresAt < signedAt);
}

/** RFC 6376 §3.7: a signature covers its own field too, with an empty `b=`. */
export function withoutValue(field: string): string {
  const colon = field.indexOf(':') + 1;
  const value = field.slice(colon).replace(/(^|;)([ \t\r\n]*b[ \t\r\n]*=)[^;]*/, '$1$2');
  return field.slice(0, colon) + value;
}

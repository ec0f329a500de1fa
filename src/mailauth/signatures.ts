/**
 * Verifies all signatures of a message with the keys from DNS, and reads its authors. Pure, so that a worker can do it.
 *
 * DKIM results (RFC 8601). `fail`: wrong or expired. `permerror`: no key, a revoked or unusable key, or From is not signed.
 * `policy`: RSA below 1024 bits, SHA-1 (RFC 8301), body text after the signed length (`l=`; anyone may have added it), a repeated
 * field of which the signature does not cover all, more different body hashes than real mail has, or more signatures: one entry
 * without a domain stands for those after the tenth. `neutral`: the signature cannot be read.
 */
import { cutHeader } from '../mime/headers.ts';
import { type ArcResult, arcField, validateArc } from './arc.ts';
import { type Authors, hasPlainAuthors, readAuthors } from './authors.ts';
import {
  type Keys,
  makeVerifier,
  readSignature,
  type Signature,
  type SignedMessage,
  splitMessage,
  type Verdict,
} from './dkim.ts';
import { readName } from './domain.ts';

export interface SignatureResults {
  /** In the order of the header fields; at most 10 are checked. */
  dkim: (Verdict & { domain: string | null; selector: string | null })[];
  arc: ArcResult;
  authors: Authors;
}

const maxSignatures = 10;
/** How much of the header is read if the message could not be verified. */
const unverifiedBytes = 64 * 1024;

const notExamined: Verdict = { result: 'policy', reason: 'The message was too difficult to examine.' };

export function verifySignatures(raw: Buffer, keys: Keys, message = splitMessage(raw)): SignatureResults {
  const { dkim, leftOut, arc } = listSignatures(message?.fields ?? []);
  const authors = readAuthors(raw, message);
  if (!message || dkim.length + arc.length === 0) return { dkim: [], arc: 'none', authors };
  const verifier = makeVerifier(message, keys, new Date());
  return {
    dkim: [
      ...dkim.map((signature) => describeSignature(signature, verifier.verify(signature, 'dkim'))),
      ...describeLeftOut(leftOut),
    ],
    arc: validateArc(arc, verifier),
    authors,
  };
}

/** The results of a message without signatures. Null: there is something to verify, or the authors take more than the header. */
export function readUnsigned(raw: Buffer, message: SignedMessage | null): SignatureResults | null {
  const { dkim, arc } = listSignatures(message?.fields ?? []);
  if (!message || dkim.length + arc.length > 0 || !hasPlainAuthors(message)) return null;
  return { dkim: [], arc: 'none', authors: readAuthors(raw, message) };
}

/** The results of a message that broke the worker: DMARC can only use SPF. */
export function describeUnverified(raw: Buffer): SignatureResults {
  const head = cutHeader(raw, unverifiedBytes);
  const message = splitMessage(head);
  const { dkim, leftOut } = listSignatures(message?.fields ?? []);
  return {
    dkim: [
      ...dkim.map((signature) => describeSignature(signature, notExamined)),
      ...describeLeftOut(leftOut),
    ],
    arc: 'none',
    authors: readAuthors(head, message),
  };
}

interface Signatures {
  dkim: Signature[];
  /** How many DKIM signatures are left out. */
  leftOut: number;
  arc: Signature[];
}

export function listSignatures(fields: readonly string[]): Signatures {
  const dkim = fields.filter((field) => /^dkim-signature[ \t]*:/i.test(field));
  return {
    dkim: dkim.slice(0, maxSignatures).map(readSignature),
    leftOut: Math.max(0, dkim.length - maxSignatures),
    arc: fields.filter((field) => arcField.test(field)).map(readSignature),
  };
}

/** One entry stands for all signatures that are not checked. */
function describeLeftOut(count: number): SignatureResults['dkim'] {
  if (count === 0) return [];
  const reason = `Only the first ${maxSignatures} signatures are checked; the message has ${count} more.`;
  return [{ result: 'policy', reason, domain: null, selector: null }];
}

function describeSignature({ tags }: Signature, verdict: Verdict): SignatureResults['dkim'][number] {
  return { ...verdict, domain: readName(tags.get('d')), selector: readName(tags.get('s')) };
}

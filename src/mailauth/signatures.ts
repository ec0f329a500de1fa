/**
 * Verifies all signatures of a message with the keys from DNS, and reads its authors. Pure, so that a worker can do it.
 *
 * DKIM results (RFC 8601). `fail`: wrong or expired. `permerror`: no key, a revoked or unusable key, or From is not signed.
 * `policy`: RSA below 1024 bits, SHA-1 (RFC 8301), body text after the signed length (`l=`; anyone may have added it), a repeated
 * field of which the signature does not cover all, or more different body hashes than real mail has. `neutral`: the signature
 * cannot be read.
 */
import { readAddresses } from '../mime/address-list.ts';
import { cutHeader, readFields } from '../mime/headers.ts';
import { type ArcResult, arcField, validateArc } from './arc.ts';
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
  /** In the order of the header fields. */
  dkim: (Verdict & { domain: string | null; selector: string | null })[];
  arc: ArcResult;
  authors: Authors;
}

/** The input of mailauth's `evaluateDmarc`. */
interface Authors {
  headerFrom: string[];
  fromFields: number;
}

const maxSignatures = 10;
/** The same limits as in mime/structure.ts: the checked From must be the From that is shown. */
const maxReadBytes = 512 * 1024;
const maxFields = 20_000;
const maxAuthors = 100;
/** How much of the header is read if the message could not be verified. */
const unverifiedBytes = 64 * 1024;

const notExamined: Verdict = { result: 'policy', reason: 'The message was too difficult to examine.' };

export function verifySignatures(raw: Buffer, keys: Keys, message = splitMessage(raw)): SignatureResults {
  const { dkim, arc } = listSignatures(message?.fields ?? []);
  const authors = readAuthors(raw, message);
  if (!message || dkim.length + arc.length === 0) return { dkim: [], arc: 'none', authors };
  const verifier = makeVerifier(message, keys, new Date());
  return {
    dkim: dkim.map((signature) => describeSignature(signature, verifier.verify(signature, 'dkim'))),
    arc: validateArc(arc, verifier),
    authors,
  };
}

/** The results of a message without signatures. Null: there is something to verify. */
export function readUnsigned(raw: Buffer, message: SignedMessage | null): SignatureResults | null {
  const { dkim, arc } = listSignatures(message?.fields ?? []);
  if (dkim.length + arc.length > 0) return null;
  return { dkim: [], arc: 'none', authors: readAuthors(raw, message) };
}

/** The results of a message that broke the worker: DMARC can only use SPF. */
export function describeUnverified(raw: Buffer): SignatureResults {
  const head = cutHeader(raw, unverifiedBytes);
  const message = splitMessage(head);
  const { dkim } = listSignatures(message?.fields ?? []);
  return {
    dkim: dkim.map((signature) => describeSignature(signature, notExamined)),
    arc: 'none',
    authors: readAuthors(head, message),
  };
}

export function listSignatures(fields: readonly string[]): { dkim: Signature[]; arc: Signature[] } {
  return {
    dkim: fields
      .filter((field) => /^dkim-signature[ \t]*:/i.test(field))
      .slice(0, maxSignatures)
      .map(readSignature),
    arc: fields.filter((field) => arcField.test(field)).map(readSignature),
  };
}

function describeSignature({ tags }: Signature, verdict: Verdict): SignatureResults['dkim'][number] {
  return { ...verdict, domain: readName(tags.get('d')), selector: readName(tags.get('s')) };
}

/**
 * Uses the parser that also reads the shown From, so that both are the same: of `<eve@one.example> <ada@other.example>` some
 * parsers take the first address and others the second.
 */
function readAuthors(raw: Buffer, message: SignedMessage | null): Authors {
  const from = message?.fields.filter((field) => /^from[ \t]*:/i.test(field)).join('\r\n');
  const block = from === undefined ? cutHeader(raw, maxReadBytes) : Buffer.from(from, 'latin1');
  const values = readFields(block, maxFields).flatMap(({ name, value }) =>
    /^from$/i.test(name) ? [value] : [],
  );
  const addresses = values.flatMap((value) => readAddresses(value, maxAuthors).addresses);
  return { headerFrom: addresses.map(({ address }) => address), fromFields: values.length };
}

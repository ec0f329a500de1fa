/**
 * All that a message says of who signed and who wrote it, with the keys that DNS has. Pure, so that a thread can do it.
 *
 * DKIM in the words of RFC 8601. `permerror`: no key, a revoked or unusable key, From not signed. `fail`: an expired signature
 * too. `policy`: RSA under 1024 bits, SHA-1 (RFC 8301), a body that goes on after what was signed (`l=`), since anyone may have
 * added that, or more ways to hash the body than honest mail has. `neutral`: one that cannot be read.
 */
import { readAddresses } from '../mime/address-list.ts';
import { cutHeader, gatherValues, readFields } from '../mime/headers.ts';
import { type ArcResult, validateArc } from './arc.ts';
import {
  type DkimResult,
  type Keys,
  makeVerifier,
  readName,
  readSignature,
  type Signature,
  type SignedMessage,
  splitMessage,
} from './dkim.ts';

export interface SignatureResults {
  /** In the order of the message. */
  dkim: { result: DkimResult; domain: string | null; selector: string | null }[];
  arc: ArcResult;
  authors: Authors;
}

/** As DMARC wants them. */
interface Authors {
  headerFrom: string[];
  fromFields: number;
}

const maxSignatures = 10;
/** As much of a header as the message is shown by; see structure.ts. */
const maxReadBytes = 512 * 1024;
const maxFields = 20_000;
const maxAuthors = 100;
/** So much is read of the header of a message that could not be verified. */
const unverifiedBytes = 64 * 1024;

export function verifySignatures(raw: Buffer, keys: Keys, message = splitMessage(raw)): SignatureResults {
  const { dkim, arc } = listSignatures(message?.fields ?? []);
  const authors = readAuthors(raw, message);
  if (!message || dkim.length + arc.length === 0) return { dkim: [], arc: 'none', authors };
  const verifier = makeVerifier(message, keys, new Date());
  return {
    dkim: dkim.map((signature) => show(signature, verifier.verify(signature, 'dkim'))),
    arc: validateArc(message.fields, verifier),
    authors,
  };
}

/** Of a message that nobody signed, which is told by its header; null where there is something to verify. */
export function readUnsigned(raw: Buffer, message: SignedMessage | null): SignatureResults | null {
  const { dkim, arc } = listSignatures(message?.fields ?? []);
  if (dkim.length + arc.length > 0) return null;
  return { dkim: [], arc: 'none', authors: readAuthors(raw, message) };
}

/** Of a message that broke what should have verified it: DMARC goes by SPF alone. */
export function describeUnverified(raw: Buffer): SignatureResults {
  const head = cutHeader(raw, unverifiedBytes);
  const message = splitMessage(head);
  const { dkim } = listSignatures(message?.fields ?? []);
  return {
    dkim: dkim.map((signature) => show(signature, 'policy')),
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
    arc: fields
      .filter((field) => /^arc-(?:authentication-results|message-signature|seal)[ \t]*:/i.test(field))
      .map(readSignature),
  };
}

function show({ tags }: Signature, result: DkimResult): SignatureResults['dkim'][number] {
  return { result, domain: readName(tags.get('d')), selector: readName(tags.get('s')) };
}

/**
 * By the reader that shows the message, so that whom it shows is who is judged: of `<eve@one.example> <ada@other.example>` some
 * take the first and others the second.
 */
function readAuthors(raw: Buffer, message: SignedMessage | null): Authors {
  const from = message?.fields.filter((field) => /^from[ \t]*:/i.test(field)).join('\r\n');
  const block = from === undefined ? cutHeader(raw, maxReadBytes) : Buffer.from(from, 'latin1');
  const values = gatherValues(readFields(block, maxFields), ['from']).get('from') ?? [];
  const addresses = values.flatMap((value) => readAddresses(value, maxAuthors).addresses);
  return { headerFrom: addresses.map(({ address }) => address), fromFields: values.length };
}

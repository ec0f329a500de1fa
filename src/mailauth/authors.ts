/**
 * Reads whose policy applies to a message: the domains of its authors. Pure. Uses the parser that also reads the shown From: of
 * `<eve@one.example> <ada@other.example>` some parsers take the first address and others the second.
 * Guarantee: a message that may show a domain to its reader names that domain here, or has `tooMany`.
 */
import { isUtf8 } from 'node:buffer';
import { isIP } from 'node:net';
import { toCompatibilityForm } from '../lib/compatibility-form.ts';
import { readAddresses } from '../mime/address-list.ts';
import { decodeLine } from '../mime/encoded-words.ts';
import { cutHeader, readFields } from '../mime/headers.ts';
import { readStructure } from '../mime/structure.ts';
import type { SignedMessage } from './dkim.ts';
import { readDomain } from './domain.ts';

export interface Authors {
  /** In A-labels, each once, in the order of the message. Without a fault: exactly one. */
  domains: string[];
  /** Why no single policy applies, as a sentence. */
  fault: string | null;
}

/** The same limits as in mime/structure.ts: the checked From must be the From that is shown. */
const maxReadBytes = 512 * 1024;
const maxFields = 20_000;
const maxAuthors = 100;
/** Each needs DNS queries. Real mail has one, rarely two. */
const maxDomains = 10;
/** Reading takes a second for each 250 KB. */
const maxFromChars = 16 * 1024;
export const tooMany = 'The From field is too long or has too many authors.';

export function readAuthors(raw: Buffer, message: SignedMessage | null): Authors {
  const block = message ? writeFrom(message) : cutHeader(raw, maxReadBytes);
  // Other bytes are in the charset of the body.
  const read = isUtf8(block) ? readFields(block, maxFields) : readStructure(raw).root.fields;
  const written = read.filter(({ name }) => /^from$/i.test(name));
  const fields = written.slice(0, maxAuthors).map(({ value }) => readField(value));
  const domains = [...new Set(fields.flatMap((field) => field.domains))];
  const isTooMany =
    domains.length > maxDomains || fields.length < written.length || fields.some(({ isCut }) => isCut);
  return {
    domains: domains.slice(0, maxDomains),
    fault: isTooMany ? tooMany : findFault(fields, domains.length),
  };
}

function writeFrom({ fields }: SignedMessage): Buffer {
  return Buffer.from(fields.filter((field) => /^from[ \t]*:/i.test(field)).join('\r\n'), 'latin1');
}

/** `readAuthors` reads the fields alone, not the structure of the whole message. */
export function hasPlainAuthors(message: SignedMessage): boolean {
  return isUtf8(writeFrom(message));
}

function findFault(fields: readonly FromField[], domains: number): string | null {
  if (fields.length === 0) return 'The message has no From field.';
  // A signature may not cover all of them, and programs show different ones.
  if (fields.length > 1) return `The message has ${fields.length} From fields.`;
  if (!fields[0]?.isReadable) return 'The From field cannot be read.';
  return domains > 1 ? `The From field has authors of ${domains} domains.` : null;
}

interface FromField {
  domains: string[];
  isReadable: boolean;
  isCut: boolean;
}

function readField(value: string): FromField {
  if (value.length > maxFromChars) return { domains: [], isReadable: false, isCut: true };
  const { addresses, isCut } = readAddresses(value, maxAuthors);
  const found = addresses.map(({ address }) => readAddressDomain(address));
  const domains = found.filter((domain) => domain !== null);
  const isReadable = found.length > 0 && domains.length === found.length;
  return { domains: isReadable ? domains : [...domains, ...findDomains(value)], isReadable, isCut };
}

function readAddressDomain(address: string): string | null {
  const text = address.slice(address.lastIndexOf('@') + 1);
  // An address literal has no policy. A name in brackets is not one.
  const literal = /^\[(?:ipv6:)?([^[\]]*)\]$/i.exec(text)?.[1];
  if (literal !== undefined) return isIP(literal) ? text.toLowerCase() : null;
  return text.includes('..') ? null : readDomain(text);
}

/** Every name with a dot: the text is shown to people, who read the domain out of it. */
function findDomains(value: string): string[] {
  const words = new Set(readAsShown(decodeLine(value)).split(/[^\p{L}\p{M}\p{N}._-]+/u));
  return [...words]
    .filter((text) => text.includes('.'))
    .map((text) => readDomain(text.replace(/^\.+/, '').replace(/\.{2,}/g, '.')))
    .filter((domain) => domain?.includes('.'))
    .filter((domain) => domain != null);
}

/** `ba\u00adnk.example` looks like `bank.example`, and so do `bank\u3002example` and `\u24d1ank.example` (UTS 46 §2.3). */
function readAsShown(text: string): string {
  const visible = text.replace(/\p{Default_Ignorable_Code_Point}+/gu, '');
  return toCompatibilityForm(visible).replaceAll('\u3002', '.');
}

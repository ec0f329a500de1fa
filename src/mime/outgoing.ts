/**
 * Prepares a finished message (`message/rfc822`) for sending: every line ends in CRLF, Bcc and Return-Path are removed, Date and Message-ID
 * are added where they are missing, and all other bytes stay. The header is read strictly, unlike that of received mail: what is
 * checked here must be what every receiver reads, so a header that readers read in different ways is refused.
 * Guarantees: linear time; the memory of one copy, and of none if nothing changes; no bare CR or LF is left, because a relay that
 * takes one for the end of a line could be made to see a second message.
 */
import { isAscii } from 'node:buffer';
import { domainToASCII, domainToUnicode } from 'node:url';
import type { FieldError } from '../problems.ts';
import type { Address } from './address-list.ts';
import { mergeAddresses, readAddressList } from './given-addresses.ts';
import { readFields } from './headers.ts';
import { findBlankTail, findCommentEnd, findQuoteEnd, isBlank } from './lexical.ts';
import { copyLines, countBareEnds, findLongLine, isLineEnd, maxLine } from './line-ends.ts';
import { makeMessageId } from './reply.ts';

export interface PreparedMessage {
  bytes: Buffer;
  /** Every mailbox of From; at least one. */
  from: Address[];
  sender: Address | null;
  /** No address is twice in the three lists together. */
  to: Address[];
  cc: Address[];
  bcc: Address[];
}

export interface PrepareOptions {
  date: Date;
  /** For the Message-ID: different for each message; letters, digits and hyphens. */
  unique: string;
  /** To, Cc and Bcc are not read: they may hold what is no address. */
  hasOwnRecipients: boolean;
}

const lineFeed = 0x0a;
const carriageReturn = 0x0d;
const crlf = Buffer.from('\r\n');

/** The parser of received mail reads as much, and shows as many fields. */
const maxHeaderBytes = 512 * 1024;
const maxFields = 1000;
/** RFC 5322 §3.6 and RFC 2045 §3. Of several, servers and readers take different ones. */
const onceFields = [
  ...['from', 'sender', 'reply-to', 'subject', 'date', 'message-id', 'in-reply-to', 'references'],
  ...['mime-version', 'content-type', 'content-transfer-encoding'],
];
/** The last server writes Return-Path (RFC 5321 §4.4). */
const removedFields = ['bcc', 'resent-bcc', 'return-path'];

export function prepareMessage(
  raw: Buffer,
  options: PrepareOptions,
): PreparedMessage | { errors: FieldError[] } {
  const header = readHeader(raw);
  if ('fault' in header) return refuse([header.fault]);

  const faults: string[] = [];
  const read = (name: string): Address[] => {
    const lists = header.fields
      .filter((field) => field.name === name)
      .map((field) => readList(field, faults));
    return lists.flat();
  };
  for (const name of onceFields) {
    const count = header.fields.filter((field) => field.name === name).length;
    if (count > 1) faults.push(`The message has ${count} fields "${name}". Write one.`);
  }
  const hasRepeats = faults.length > 0;
  const from = read('from');
  const sender = read('sender');
  if (from.length === 0 && faults.length === 0)
    faults.push('The message has no address in "from". Write one.');
  if (sender.length > 1 && !hasRepeats) faults.push('"sender" has more than one address. Write one.');
  const [to = [], cc = [], bcc = []] = mergeAddresses(
    options.hasOwnRecipients ? [] : [read('to'), read('cc'), read('bcc')],
  );
  for (const field of header.fields.filter(({ name }) => name === 'from' || name === 'sender')) {
    const fault = faults.length > 0 ? null : findAuthorFault(readValue(field));
    if (fault) faults.push(`"${field.name}" ${fault}`);
  }
  // A relay would break the line, and with it our signature.
  const longLine = findLongLine(raw.subarray(header.bodyStart));
  if (longLine !== null) {
    const advice = 'Encode the part as quoted-printable or base64, or break the line.';
    faults.push(`Line ${longLine} of the body has more than ${maxLine} octets. ${advice}`);
  }
  const [author] = from;
  if (faults.length > 0 || !author) return refuse(faults);
  const bytes = write(raw, header, author.address, options);
  return { bytes, from, sender: sender[0] ?? null, to, cc, bcc };
}

/** An 8-bit byte anywhere: the server must offer 8BITMIME (RFC 6152). */
export function needsEightBit(message: Buffer): boolean {
  return !isAscii(message);
}

/** An 8-bit byte in the header or in an address of the envelope (RFC 6531 §3.1). `message` was prepared or composed. */
export function needsSmtpUtf8(message: Buffer, addresses: readonly string[]): boolean {
  const end = message.indexOf('\r\n\r\n');
  const header = end === -1 ? message : message.subarray(0, end);
  return !isAscii(header) || addresses.some((address) => !isAscii(Buffer.from(address)));
}

function refuse(faults: readonly string[]): { errors: FieldError[] } {
  return { errors: faults.map((message) => ({ pointer: '', code: 'invalid_value', message })) };
}

interface HeaderField {
  /** In lower case. */
  name: string;
  /** Nothing stands in its first line. */
  isEmpty: boolean;
  /** Without the line ends. */
  lines: Buffer[];
}

interface Header {
  fields: HeaderField[];
  /** After the empty line; the length of the message if there is none. */
  bodyStart: number;
  /** Nothing has to change in the bytes before `bodyStart`, as far as line ends go. */
  hasCrlf: boolean;
  hasEmptyLine: boolean;
}

function readHeader(raw: Buffer): Header | { fault: string } {
  const fields: HeaderField[] = [];
  let hasCrlf = true;
  for (let at = 0, number = 1; at < raw.length; number++) {
    const { end, next } = findLineEnd(raw, at);
    if (next > maxHeaderBytes) return { fault: `The header has more than ${maxHeaderBytes} bytes.` };
    hasCrlf &&= next - end === 2;
    if (end === at) return { fields, bodyStart: next, hasCrlf, hasEmptyLine: true };
    const line = raw.subarray(at, end);
    const fault = addLine(fields, line);
    if (fault) return { fault: `Line ${number} of the header ${fault}` };
    if (fields.length > maxFields) return { fault: `The header has more than ${maxFields} fields.` };
    at = next;
  }
  return { fields, bodyStart: raw.length, hasCrlf, hasEmptyLine: false };
}

function findLineEnd(raw: Buffer, start: number): { end: number; next: number } {
  let end = start;
  while (end < raw.length && end - start <= maxHeaderBytes) {
    if (raw[end] === lineFeed) return { end, next: end + 1 };
    if (raw[end] === carriageReturn) return { end, next: end + (raw[end + 1] === lineFeed ? 2 : 1) };
    end++;
  }
  return { end, next: end };
}

/** Returns the rest of the sentence that begins with the number of the line. */
function addLine(fields: HeaderField[], line: Buffer): string | undefined {
  if (line.includes(0)) return 'has a NUL. Remove the NUL.';
  if (line.length > maxLine) return `has more than ${maxLine} octets. Fold the line.`;
  if (isBlank(line[0])) {
    // RFC 5322 §4.2 has such lines in its old syntax, but some readers take one for the end of the header.
    if (findBlankTail(line, 0, line.length) === 0) return 'has only blanks. Remove the line.';
    const field = fields.at(-1);
    if (!field) return 'begins with a blank, but there is no field that it could continue.';
    field.lines.push(line);
    return undefined;
  }
  const [field] = readFields(line, 1);
  if (!field) return 'is not a header field. Write "Name: value", and an empty line after the header.';
  fields.push({ name: field.name.toLowerCase(), isEmpty: field.value === '', lines: [line] });
  return undefined;
}

/** Bytes that are not UTF-8 (RFC 6532) are allowed in names. Which address they would stand for, nobody can know. */
function readList({ name, lines }: HeaderField, faults: string[]): Address[] {
  const addresses = readAddressList(readValue({ lines }));
  if (!('fault' in addresses)) return addresses;
  faults.push(`"${name}" ${addresses.fault}`);
  return [];
}

function write(raw: Buffer, header: Header, author: string, options: PrepareOptions): Buffer {
  // An empty Date or Message-ID is as good as none. RFC 5322 §3.6 allows only one.
  const isKept = ({ name, isEmpty, lines }: HeaderField) =>
    !removedFields.includes(name) &&
    !((name === 'date' || name === 'message-id') && isEmpty && lines.length === 1);
  const kept = header.fields.filter(isKept);
  const has = (name: string) => kept.some((field) => field.name === name);
  const added = [
    ...(has('date') ? [] : [`Date: ${options.date.toUTCString().replace('GMT', '+0000')}`]),
    ...(has('message-id') ? [] : [`Message-ID: ${makeMessageId(options.unique, author)}`]),
  ].map((line) => Buffer.from(line));
  const isHeaderSame = header.hasCrlf && added.length === 0 && kept.length === header.fields.length;
  const body = raw.subarray(header.bodyStart);
  const bareCount = countBareEnds(body);
  const isEnded = body.length === 0 || isLineEnd(body.at(-1));
  if (isHeaderSame && bareCount === 0 && isEnded) return raw;

  const lines = [...kept.flatMap((field) => field.lines), ...added];
  if (header.hasEmptyLine) lines.push(Buffer.alloc(0));
  const headerSize = lines.reduce((size, line) => size + line.length + crlf.length, 0);
  const bytes = Buffer.allocUnsafe(headerSize + body.length + bareCount + (isEnded ? 0 : crlf.length));
  let at = 0;
  const append = (piece: Buffer) => {
    at += piece.copy(bytes, at);
  };
  for (const line of lines) {
    append(line);
    append(crlf);
  }
  at = copyLines(body, bytes, at);
  if (!isEnded) append(crlf);
  return bytes;
}

function readValue({ lines }: Pick<HeaderField, 'lines'>): string {
  const field = Buffer.concat(lines).toString();
  return field.slice(field.indexOf(':') + 1);
}

/** With "q" for each quoted string and without comments: a mailbox, with nothing in its name that could be read as an address. */
const plainMailbox =
  /^\s*(?:[^@:;<>[\]]*<([^@:;<>[\]\s]+@[^@:;<>[\]\s]+)>|([^@:;<>[\]\s]+@[^@:;<>[\]\s]+))\s*$/;

/** Who the author is must be clear to every reader: no route, no second address outside quotes, no look-alike domain. */
function findAuthorFault(value: string): string | null {
  // RFC 6854 allows groups.
  const ungrouped = shapeOf(value).replace(/^[^@:;<>[\],]*:([^:;]*);\s*$/, '$1');
  for (const item of ungrouped.split(',')) {
    if (item.trim() === '') continue;
    const [, inAngle, alone] = plainMailbox.exec(item) ?? [];
    const address = inAngle ?? alone;
    if (address === undefined)
      return 'can be read in several ways. Write "Name" <address>, with the name in quotes.';
    const domain = address.slice(address.lastIndexOf('@') + 1).toLowerCase();
    const isOwnForm = isAscii(Buffer.from(domain)) || domainToUnicode(domainToASCII(domain)) === domain;
    if (!isOwnForm)
      return `has a domain in a form that others read differently. Write ${domainToASCII(domain)}.`;
  }
  return null;
}

function shapeOf(value: string): string {
  let shape = '';
  for (let i = 0; i < value.length; i++) {
    const character = value[i] ?? '';
    const end = character === '"' ? findQuoteEnd(value, i) : character === '(' ? findCommentEnd(value, i) : 0;
    // A quote or comment without an end: `readAddressList` refuses it.
    if (end === -1) return '';
    if (end > 0) {
      shape += character === '"' ? 'q' : ' ';
      i = end - 1;
    } else shape += character;
  }
  return shape;
}

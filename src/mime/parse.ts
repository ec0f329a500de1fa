/**
 * Parses a message to the fields of `message.received`. The MIME structure is read by our own code (structure.ts), because
 * postal-mime changes the bytes of attachments, loses parts and has no limits.
 * Guarantee: any bytes give a result, in linear time and within the limits below; `truncated` names what was left out; every
 * string is well-formed and has no NUL.
 */
import { type Mailbox, readAuthor, readMailboxes } from './address-list.ts';
import { decodeBody, describeAttachment, type ParsedAttachment, sortParts, useBody } from './bodies.ts';
import { decodeCharset } from './charset.ts';
import { readDate } from './date.ts';
import { decodeLine } from './encoded-words.ts';
import { joinFlowed } from './flowed.ts';
import type { Field } from './headers.ts';
import { stripComments } from './lexical.ts';
import { readFirstId, readMessageIds } from './message-ids.ts';
import { makePreview } from './preview.ts';
import { type FoundReport, type Report, readReport, readReturnedIds } from './reports.ts';
import { type Part, readStructure, type Structure } from './structure.ts';

export type { ParsedAttachment } from './bodies.ts';

export interface ParsedMessage {
  /** All ids keep their angle brackets. */
  messageId: string | null;
  inReplyTo: string | null;
  references: string[];
  /** ISO 8601 in UTC with milliseconds; null if absent or unreadable. */
  date: string | null;
  from: Mailbox | null;
  sender: Mailbox | null;
  replyTo: Mailbox[];
  to: Mailbox[];
  cc: Mailbox[];
  bcc: Mailbox[];
  subject: string | null;
  text: string | null;
  html: string | null;
  preview: string | null;
  /** In order, with repeats, unfolded, not decoded. */
  headers: Field[];
  /** The keyword of RFC 3834 §5, in lower case. */
  autoSubmitted: string | null;
  /** Null: the message is not a report about mail that was sent. */
  report: Report | null;
  /** Of a message at the top level of this one, as bounces return it: see `readReturnedIds`. For the thread; users do not see it. */
  returnedIds: string[];
  attachments: ParsedAttachment[];
  /**
   * What was left out, wholly or in part: keys of this object, or "body". If the end of the header was not read, only "headers" is
   * named: which fields are in that end is not known.
   */
  truncated: string[];
}

const maxHeaders = 1000;
const maxHeaderValue = 64 * 1024;
const maxSubject = 16 * 1024;
const maxAddresses = 1000;
const maxReferences = 1000;
/** For each list of addresses or ids: the list of messages in the API repeats them. */
const maxListBytes = 64 * 1024;
const maxTextBytes = 512 * 1024;
/** Decoded for `maxTextBytes`: UTF-16 takes two bytes where UTF-8 takes one, ISO-2022-JP up to three. */
const maxSourceBytes = 4 * maxTextBytes;

export async function parseMessage(raw: Uint8Array): Promise<ParsedMessage> {
  const bytes = asBuffer(raw);
  const structure = readStructure(bytes);
  const header = attempt(
    () => readHeader(structure.root.fields, structure.hasWholeHeader),
    () => readHeader([], false),
  );
  const body = attempt(
    () => readBody(bytes, structure),
    () => ({ text: null, html: null, preview: null, attachments: [], truncated: ['body'] }),
  );
  const reported = attempt(
    () => readReported(bytes, structure),
    () => ({ report: null, returnedIds: [], truncated: ['report'] }),
  );
  const truncated = [...header.truncated, ...body.truncated, ...reported.truncated];
  return { ...header, ...reported, ...body, truncated };
}

/** No input is known to throw. If one does, the mail must still arrive and say what is missing. */
function attempt<T>(read: () => T, fallback: () => T): T {
  try {
    return read();
  } catch {
    return fallback();
  }
}

/** The decoded attachment `n`, counted as in `parseMessage`. */
export async function extractAttachment(
  raw: Uint8Array,
  n: number,
): Promise<{ meta: ParsedAttachment; content: Uint8Array } | null> {
  const bytes = asBuffer(raw);
  const attachment = sortParts(readStructure(bytes).root).attachments[n];
  if (!attachment) return null;
  const { content } = decodeBody(bytes, attachment.part);
  return { meta: describeAttachment(attachment, content, n), content };
}

/** With what finds the sent message, which `parseMessage` leaves out. Null: not a report. */
export function extractReport(raw: Uint8Array): FoundReport | null {
  const bytes = asBuffer(raw);
  return attempt(
    () => readReport(bytes, readStructure(bytes).root),
    () => null,
  );
}

function asBuffer(raw: Uint8Array): Buffer {
  return Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength);
}

type Body = Pick<ParsedMessage, 'text' | 'html' | 'preview' | 'attachments' | 'truncated'>;
type Reported = Pick<ParsedMessage, 'report' | 'returnedIds' | 'truncated'>;
type Header = Omit<ParsedMessage, Exclude<keyof (Body & Reported), 'truncated'>>;

function readHeader(fields: readonly Field[], isWhole: boolean): Header {
  const truncated = new Set<string>();
  const noteCut = (key: keyof ParsedMessage) => () => void truncated.add(key);
  const byName = Map.groupBy(fields, ({ name }) => name.toLowerCase());
  const all = (name: string) => byName.get(name)?.map(({ value }) => value) ?? [];
  // RFC 5322 §3.6 allows one. Of several the first counts, as in most programs.
  const first = (name: string) => all(name)[0] ?? '';
  const one = (key: 'from' | 'sender') => {
    const { author, isCut } = readAuthor(first(key));
    if (isCut) truncated.add(key);
    return author;
  };
  const many = (key: keyof ParsedMessage, name: string) => {
    const { mailboxes, isCut } = readMailboxes(all(name).join(','), maxAddresses);
    const kept = cutList(mailboxes, (one) => `${one.name ?? ''}${one.address ?? ''}`);
    if (isCut || kept.length < mailboxes.length) truncated.add(key);
    return kept;
  };

  const named = readMessageIds(first('references'), noteCut('references'));
  const references = cutList(named.slice(0, maxReferences), (id) => id);
  const subject = all('subject')[0];
  const headers = fields.slice(0, maxHeaders).map(({ name, value }) => ({ name, value: cutValue(value) }));
  const isListed = headers.every(({ value }, i) => value.length === fields[i]?.value.length);
  if (!isWhole || !isListed || fields.length > maxHeaders) truncated.add('headers');
  if (references.length < named.length) truncated.add('references');
  if (subject !== undefined && subject.length > maxSubject) truncated.add('subject');
  return {
    messageId: readFirstId(first('message-id'), { isAlone: true, onCut: noteCut('messageId') }) ?? null,
    inReplyTo: readFirstId(first('in-reply-to'), { onCut: noteCut('inReplyTo') }) ?? null,
    references,
    date: readDate(first('date'), noteCut('date')),
    from: one('from'),
    sender: one('sender'),
    replyTo: many('replyTo', 'reply-to'),
    to: many('to', 'to'),
    cc: many('cc', 'cc'),
    bcc: many('bcc', 'bcc'),
    subject: subject === undefined ? null : decodeLine(subject.slice(0, maxSubject)),
    headers,
    autoSubmitted: readKeyword(first('auto-submitted')),
    truncated: [...truncated],
  };
}

function cutList<T>(list: readonly T[], textOf: (one: T) => string): T[] {
  let left = maxListBytes;
  const end = list.findIndex((one) => {
    left -= Buffer.byteLength(textOf(one));
    return left < 0;
  });
  return list.slice(0, end === -1 ? undefined : end);
}

function cutValue(value: string): string {
  return value.length <= maxHeaderValue ? value : value.slice(0, maxHeaderValue).toWellFormed();
}

function readKeyword(value: string): string | null {
  return /^\s*([a-z0-9-]+)\s*(?:;|$)/i.exec(stripComments(value))?.[1]?.toLowerCase() ?? null;
}

function readBody(raw: Buffer, { root, isComplete }: Structure): Body {
  const parts = sortParts(root);
  const text = joinTexts(raw, parts.text);
  const html = joinTexts(raw, parts.html);
  const truncated: string[] = [];
  if (text.isCut) truncated.push('text');
  if (html.isCut) truncated.push('html');
  let hasAll = isComplete;
  const attachments = parts.attachments.map((attachment, n) =>
    useBody(raw, attachment.part, ({ content, rest }) => {
      hasAll &&= rest.length === 0;
      return describeAttachment(attachment, content, n);
    }),
  );
  if (parts.attachments.some(({ isCut }) => isCut)) truncated.push('attachments');
  if (!hasAll) truncated.push('body');
  return {
    text: text.joined,
    html: html.joined,
    preview: makePreview(text.joined, html.joined),
    attachments,
    truncated,
  };
}

function readReported(raw: Buffer, { root }: Structure): Reported {
  const found = readReport(raw, root);
  const report = found?.report ?? null;
  return {
    report,
    returnedIds: readReturnedIds(raw, root, report),
    truncated: found?.isCut ? ['report'] : [],
  };
}

/** Each part begins on a new line. Null: no part has a body. */
function joinTexts(raw: Buffer, parts: readonly Part[]): { joined: string | null; isCut: boolean } {
  const texts: string[] = [];
  let size = 0;
  let sourceSize = 0;
  let isCut = false;
  const add = (content: Buffer, read: (source: Buffer) => string): void => {
    const source = cutUtf8(content, maxSourceBytes - sourceSize);
    const text = read(source);
    const before = texts.at(-1);
    if (before && text && !before.endsWith('\n')) texts.push('\n');
    texts.push(text);
    size += text.length;
    sourceSize += source.length;
    isCut ||= source.length < content.length;
  };
  for (const part of parts) {
    if (!part.hasBody) continue;
    if (size > maxTextBytes) break;
    useBody(raw, part, ({ content, rest }) => {
      add(content, (source) => readText(source, part));
      // Whoever added words to an encoded text did not know its charset.
      if (rest.length > 0) add(rest, (source) => endLines(decodeCharset(source, undefined)));
    });
  }
  if (texts.length === 0) return { joined: null, isCut };
  const bytes = Buffer.from(texts.join(''));
  if (bytes.length <= maxTextBytes) return { joined: bytes.toString(), isCut };
  return { joined: cutUtf8(bytes, maxTextBytes).toString(), isCut: true };
}

function readText(source: Buffer, part: Part): string {
  const { value, parameters } = part.contentType;
  const text = endLines(decodeCharset(source, parameters.get('charset')));
  const isFlowed = value === 'text/plain' && parameters.get('format')?.toLowerCase() === 'flowed';
  return isFlowed ? joinFlowed(text, parameters.get('delsp')?.toLowerCase() === 'yes') : text;
}

/** Every line ends in LF. */
function endLines(text: string): string {
  return text.replace(/\r\n?/g, '\n');
}

/** At most `max` bytes, without a partial character at the end. */
function cutUtf8(bytes: Buffer, max: number): Buffer {
  if (bytes.length <= max) return bytes;
  let end = max;
  while (end > 0 && end > max - 4 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return bytes.subarray(0, end);
}

/**
 * Reads reports about mail that was sent: delivery status notifications (RFC 3464, RFC 6533), feedback reports (ARF, RFC 5965) and
 * disposition notifications (RFC 8098). A message is a report only if its own top level has the structured part: nothing is guessed
 * from text, and embedded messages are not searched.
 * Guarantee: linear time for any bytes; every string has a limit, is well-formed and has no NUL.
 */
import { decodeBody } from './bodies.ts';
import { readDate } from './date.ts';
import { cutHeader, type Field, readFields } from './headers.ts';
import { type OnCut, stripComments, watchCuts } from './lexical.ts';
import { readFirstId, readMessageIds } from './message-ids.ts';
import {
  readAddress,
  readDisposition,
  readKeyword,
  readLine,
  readReply,
  readStatus,
  readTyped,
} from './report-fields.ts';
import type { Part } from './structure.ts';

/** As users see it. */
export interface Report {
  type: 'delivery-status' | 'feedback' | 'disposition';
  /** The message that the report is about. */
  original: { messageId: string | null; subject: string | null } | null;
  recipients: ReportedRecipient[];
}

interface ReportedRecipient {
  /** Null: not an email address. */
  address: string | null;
  /** In lower case. Of a feedback report its type ("abuse"); of a disposition notification the disposition ("displayed"). */
  action: string | null;
  /** RFC 3463. */
  status: string | null;
  diagnostic: string | null;
  remoteMta: string | null;
}

/** What finds the sent message and its recipient. Users do not see it. */
interface Evidence {
  /** ENVID of RFC 3461 §4.4. */
  envelopeId: string | null;
  /** When the reporting server got the message; ISO 8601. */
  arrivalDate: string | null;
  /** In the order of the report's recipients. */
  recipients: ReportedReply[];
  /** Of a feedback report, in lower case. "not-spam" and "auth-failure" are no complaints (RFC 6430, RFC 6591). */
  feedbackType: string | null;
  /** Original-Mail-From of a feedback report. */
  mailFrom: string | null;
  /** Words of the report and of the returned header that may have a bounce address in them, the likely ones first. */
  returnAddresses: string[];
}

interface ReportedReply {
  /** Original-Recipient: the address that the message was sent to, before aliases. */
  originalAddress: string | null;
  /** Of the SMTP reply in the diagnostic. */
  code: number | null;
  /** The status, or the more exact one of the SMTP reply: Exim's status is always 5.0.0. */
  enhanced: string | null;
}

const reportTypes = new Map<string, Report['type']>([
  ['message/delivery-status', 'delivery-status'],
  ['message/global-delivery-status', 'delivery-status'],
  ['message/feedback-report', 'feedback'],
  ['message/disposition-notification', 'disposition'],
  ['message/global-disposition-notification', 'disposition'],
]);
/** Some servers write multipart/mixed for multipart/report. */
const notificationTypes = new Set(['multipart/report', 'multipart/mixed']);
const returnedTypes = new Set([
  'message/rfc822',
  'message/rfc822-headers',
  'message/global',
  'message/global-headers',
  'text/rfc822-headers',
]);

const maxRecipients = 50;
/** Of the structured part, and of the returned header. */
const maxBytes = 128 * 1024;
const maxFields = 2000;

export interface FoundReport {
  report: Report;
  evidence: Evidence;
  /** The report has more recipients or fields than are read, or longer values. */
  isCut: boolean;
}

/** `root` is the structure of `raw`. */
export function readReport(raw: Buffer, root: Part): FoundReport | null {
  const part = findReportPart(root);
  const type = reportTypes.get(part?.contentType.value ?? '');
  if (!part || !type) return null;
  const cuts = watchCuts();
  const blocks = readBlocks(raw, part, cuts.onCut);
  const header = readReturnedHeader(raw, root, cuts.onCut);
  const fields = blocks.flat();
  const found = readers[type](blocks, cuts.onCut);
  const read = found.slice(0, maxRecipients);
  const feedbackType = type === 'feedback' ? readKeyword(findFirst(fields, 'feedback-type')) : null;
  return {
    report: {
      type,
      original: readOriginal(header, findFirst(fields, 'original-message-id'), cuts.onCut),
      recipients: read.map(({ shown }) => shown),
    },
    evidence: {
      envelopeId: readLine(findFirst(fields, 'original-envelope-id')),
      arrivalDate: readDate(findFirst(fields, 'arrival-date') ?? findFirst(fields, 'received-date') ?? ''),
      recipients: read.map(({ reply }) => reply),
      feedbackType,
      mailFrom: readAddress(findFirst(fields, 'original-mail-from')),
      returnAddresses: findReturnAddresses([...fields, ...header]),
    },
    isCut: cuts.isCut || read.length < found.length || part.bodyEnd - part.bodyStart > maxBytes,
  };
}

/**
 * The ids that lead to the thread of the returned message, the root first: those of the messages that it answers, then its own.
 * Without a report too: a third of real bounces have no structured part (199 of 599), but some of these return the message.
 */
export function readReturnedIds(raw: Buffer, root: Part, report: Report | null): string[] {
  const header = readReturnedHeader(raw, root);
  const find = (name: string) => findFirst(header, name) ?? '';
  const original = report ? report.original : readOriginal(header, undefined);
  const ids = [...readMessageIds(find('references')), readFirstId(find('in-reply-to')), original?.messageId];
  return ids.filter((id) => typeof id === 'string');
}

/** A person who forwards a bounce makes a multipart/mixed too, but there the structured part is an attachment. */
function findReportPart({ contentType, children }: Part): Part | undefined {
  const parts = children.filter((child) => reportTypes.has(child.contentType.value));
  if (contentType.value === 'multipart/report') return parts[0];
  return contentType.value === 'multipart/mixed' ? parts.find((part) => !isAttached(part)) : undefined;
}

function isAttached({ disposition }: Part): boolean {
  return disposition !== null && (disposition.value !== 'inline' || disposition.parameters.has('filename'));
}

/** Whole lines, of one character for each byte. Every line ends in LF; CR CR LF comes from a gateway that added a CR. */
function readLines(raw: Buffer, part: Part): string {
  const bodyEnd = Math.min(part.bodyEnd, part.bodyStart + maxBytes);
  const { content } = decodeBody(raw, { ...part, bodyEnd });
  const text = content.toString('latin1').replace(/\r\r?\n|\r/g, '\n');
  return bodyEnd < part.bodyEnd ? text.slice(0, text.lastIndexOf('\n') + 1) : text;
}

/** The fields between two blank lines, several times. */
function readBlocks(raw: Buffer, part: Part, onCut: OnCut): Field[][] {
  let left = maxFields;
  const blocks: Field[][] = [];
  for (const block of readLines(raw, part).split(/\n(?:[ \t]*\n)+/)) {
    const cuts = watchCuts();
    const fields = readFirstFields(Buffer.from(block, 'latin1'), left, cuts.onCut);
    left -= fields.length;
    if (fields.length > 0) blocks.push(fields);
    if (!cuts.isCut) continue;
    onCut();
    break;
  }
  return blocks;
}

/** Reads one field more than `max`, to know whether a field is left out. */
function readFirstFields(block: Buffer, max: number, onCut?: OnCut): Field[] {
  const fields = readFields(block, max + 1);
  if (fields.length > max) onCut?.();
  return fields.slice(0, max);
}

/** The header of the message that a notification returns; empty if it returns none. */
function readReturnedHeader(raw: Buffer, { contentType, children }: Part, onCut?: OnCut): Field[] {
  if (!notificationTypes.has(contentType.value)) return [];
  const part = children.find((child) => returnedTypes.has(child.contentType.value));
  if (!part) return [];
  const text = readLines(raw, part).replace(/^(?:[ \t]*\n)+/, '');
  const header = cutHeader(Buffer.from(text, 'latin1'), maxBytes);
  const isWhole = header.length < text.length || part.bodyEnd - part.bodyStart <= maxBytes;
  if (!isWhole) onCut?.();
  return readFirstFields(header, maxFields, onCut);
}

/** Of repeated fields the first counts, as in the message that is shown. */
function findFirst(fields: readonly Field[], name: string): string | undefined {
  return fields.find((field) => field.name.toLowerCase() === name)?.value;
}

function readOriginal(
  header: readonly Field[],
  namedId: string | undefined,
  onCut?: OnCut,
): Report['original'] {
  const readId = (value = '') => readFirstId(value, { isAlone: true, onCut });
  const messageId = readId(findFirst(header, 'message-id')) ?? readId(namedId) ?? null;
  const subject = readLine(findFirst(header, 'subject'), onCut);
  return messageId === null && subject === null ? null : { messageId, subject };
}

interface ReadRecipient {
  shown: ReportedRecipient;
  reply: ReportedReply;
}

const readers: Record<Report['type'], (blocks: readonly Field[][], onCut: OnCut) => ReadRecipient[]> = {
  'delivery-status': (blocks, onCut) =>
    groupByRecipient(blocks).map((fields) => readDeliveryStatus(fields, onCut)),
  feedback: readFeedback,
  disposition: readDispositions,
};

const isAddressField = ({ name }: Field) => /^(?:original|final)-recipient$/i.test(name);

/**
 * RFC 3464 §2.1: each block after the first is about one recipient. Programs also write a blank line too many, inside the fields of
 * a recipient, and none where a recipient begins.
 */
function groupByRecipient(blocks: readonly Field[][]): Field[][] {
  const groups: Field[][] = [];
  const hasField = (name: string) => findFirst(groups.at(-1) ?? [], name) !== undefined;
  for (const block of blocks) {
    const hasAction = findFirst(block, 'action') !== undefined;
    const isNew = block.some(isAddressField) || (hasAction && (groups.length === 0 || hasField('action')));
    if (isNew) groups.push([]);
    for (const field of block) {
      if (isAddressField(field) && hasField(field.name.toLowerCase())) groups.push([]);
      groups.at(-1)?.push(field);
    }
    if (groups.length > maxRecipients) break;
  }
  return groups.slice(0, maxRecipients + 1);
}

function readDeliveryStatus(fields: readonly Field[], onCut: OnCut): ReadRecipient {
  const status = readStatus(findFirst(fields, 'status'));
  const diagnostic = readTyped(findFirst(fields, 'diagnostic-code'));
  const reply = readReply(diagnostic);
  const isVague = status === null || status.endsWith('.0.0');
  return {
    shown: {
      address: readRecipient(fields, onCut),
      action: readKeyword(findFirst(fields, 'action'), onCut),
      status,
      diagnostic: readLine(diagnostic?.value, onCut),
      remoteMta: readLine(stripComments(readTyped(findFirst(fields, 'remote-mta'))?.value ?? ''), onCut),
    },
    reply: {
      originalAddress: readAddress(findFirst(fields, 'original-recipient')),
      code: reply?.code ?? null,
      enhanced: (isVague ? reply?.enhanced : null) ?? status,
    },
  };
}

/** Final-Recipient; if it has no address, Original-Recipient. */
function readRecipient(fields: readonly Field[], onCut: OnCut): string | null {
  const read = (name: string) => readAddress(findFirst(fields, name), onCut);
  return read('final-recipient') ?? read('original-recipient');
}

/** RFC 5965 §3.2: Original-Rcpt-To may be repeated, or left out. */
function readFeedback(blocks: readonly Field[][], onCut: OnCut): ReadRecipient[] {
  const fields = blocks.flat();
  const action = readKeyword(findFirst(fields, 'feedback-type'), onCut);
  return fields
    .filter(({ name }) => name.toLowerCase() === 'original-rcpt-to')
    .slice(0, maxRecipients + 1)
    .map(({ value }) => {
      const address = readAddress(value, onCut);
      return describe({ address, action }, address);
    });
}

/** RFC 8098 §3.1: one recipient for each notification. */
function readDispositions(blocks: readonly Field[][], onCut: OnCut): ReadRecipient[] {
  const fields = blocks.flat();
  if (!fields.some(isAddressField)) return [];
  const address = readRecipient(fields, onCut);
  const action = readDisposition(findFirst(fields, 'disposition'), onCut);
  const diagnostic = readLine(findFirst(fields, 'failure') ?? findFirst(fields, 'error'), onCut);
  return [describe({ address, action, diagnostic }, readAddress(findFirst(fields, 'original-recipient')))];
}

function describe(known: Partial<ReportedRecipient>, originalAddress: string | null): ReadRecipient {
  return {
    shown: { address: null, action: null, status: null, diagnostic: null, remoteMta: null, ...known },
    reply: { originalAddress, code: null, enhanced: null },
  };
}

const likelyFields = ['original-mail-from', 'return-path'];
const maxReturnAddresses = 100;

/**
 * Receivers write the envelope sender into Return-Path, Received, Received-SPF and Authentication-Results ("smtp.mailfrom=…").
 * Split at "=" too: forwarders that rewrite senders (SRS) write the address after the last "=".
 */
function findReturnAddresses(fields: readonly Field[]): string[] {
  const isLikely = ({ name }: Field) => likelyFields.includes(name.toLowerCase());
  const ordered = [...fields.filter(isLikely), ...fields.filter((field) => !isLikely(field))];
  const found = new Set<string>();
  for (const { value } of ordered)
    for (const word of value.includes('@') ? value.split(/[\s<>()[\]"',;:=]+/) : []) {
      if (found.size === maxReturnAddresses) return [...found];
      if (word.length <= 320 && /.@./.test(word)) found.add(word);
    }
  return [...found];
}

/**
 * Reads the fields of a message that a user wants to send, and finds every fault at once. Values of a wrong type are skipped: the
 * schema of the request reports them.
 * Guarantees: if there is no fault, no header field can be injected, every header line can be folded to at most 998 octets
 * (RFC 5322 §2.1.1), and no line of the header consists of blanks, which some readers take for its end.
 */
import { cutGiven } from '../lib/cut-given.ts';
import type { FieldError, Pointer } from '../problems.ts';
import type { Address } from './address-list.ts';
import { mergeAddresses, readAddress, readAddressList } from './given-addresses.ts';
import type { Field } from './headers.ts';
import { trimBlanks } from './lexical.ts';
import { findLongLine, maxLine } from './line-ends.ts';
import { maxSubject } from './reply.ts';

export interface DraftAttachment {
  filename: string;
  /** In base64. */
  content: string;
  contentType: string | null;
  /** Without angle brackets. An attachment that has one is inline. */
  contentId: string | null;
}

export interface Draft {
  from: Address | null;
  /** No address is twice in the three lists together. */
  to: Address[];
  cc: Address[];
  bcc: Address[];
  replyTo: Address[];
  subject: string | null;
  text: string | null;
  html: string | null;
  attachments: DraftAttachment[];
  headers: Field[];
}

const maxRecipients = 50;
/** Far above `maxRecipients`, so that repeats fit, and below what would take long to check. */
const maxListItems = 1000;
const maxAttachments = 100;
/** Of all fields together, before any is read: reading takes a tenth of a millisecond for an address. */
const maxAddressesLength = 32 * 1024;
const maxHeaders = 100;
const maxHeadersLength = 64 * 1024;
/** The parser cuts a longer name, too. */
const maxName = 255;
const maxFilename = 255;
/** Fits into a line unfolded, with the name of the field. */
const maxWord = 900;
const maxEncoded = 2000;

/** Use the draft only if there are no errors. */
export function readDraft(given: Readonly<Record<string, unknown>>): { draft: Draft; errors: FieldError[] } {
  const errors: FieldError[] = [];
  const report = makeReport(errors);
  const size = countCharacters([given.from, given.to, given.cc, given.bcc, given.replyTo]);
  if (size > maxAddressesLength) {
    const message = `The addresses have ${size} characters in all. The limit is ${maxAddressesLength}.`;
    return { draft: readDraft({}).draft, errors: [{ pointer: '', code: 'too_long', message }] };
  }
  const listed = (['to', 'cc', 'bcc'] as const).map((key) => readAddresses(given[key], `/${key}`, report));
  const hasAddressErrors = errors.length > 0;
  const [to = [], cc = [], bcc = []] = mergeAddresses(listed);
  const count = to.length + cc.length + bcc.length;
  const isReply = given.inReplyTo !== undefined;
  if (count > maxRecipients) {
    const message = `The message has ${count} recipients. A message can have at most ${maxRecipients}.`;
    errors.push({ pointer: '', code: 'too_long', message });
  }
  if (count === 0 && !hasAddressErrors && !isReply) {
    const message = 'The message has no recipient. Write an address in "to", "cc" or "bcc".';
    errors.push({ pointer: '/to', code: 'required', message });
  }
  if (given.text === undefined && given.html === undefined) {
    errors.push({ pointer: '/text', code: 'required', message: '"text" or "html" is required.' });
  }
  if (given.subject === undefined && !isReply) {
    errors.push({ pointer: '/subject', code: 'required', message: '"subject" is required.' });
  }
  const before = errors.length;
  const authors = Array.isArray(given.from) ? [] : readAddresses(given.from, '/from', report);
  if (typeof given.from === 'string' && authors.length !== 1 && errors.length === before) {
    report('/from', 'invalid_value', 'must be one address, such as "Ada Lovelace" <ada@example.com>.');
  }
  const draft = {
    from: authors[0] ?? null,
    to,
    cc,
    bcc,
    replyTo: mergeAddresses([readAddresses(given.replyTo, '/replyTo', report)]).flat(),
    subject: readSubject(given.subject, report),
    text: readBody(given.text, '/text', report),
    html: readBody(given.html, '/html', report),
    attachments: readAttachments(given.attachments, report),
    headers: readHeaders(given.headers, report),
  };
  return { draft, errors };
}

/** Of texts at any depth. */
function countCharacters(value: unknown): number {
  if (typeof value === 'string') return value.length + 1;
  if (typeof value !== 'object' || value === null) return 1;
  return Object.values(value).reduce<number>((sum, one) => sum + countCharacters(one), 0);
}

type Report = (pointer: Pointer, code: string, rest: string) => void;

function makeReport(errors: FieldError[]): Report {
  return (pointer, code, rest) => {
    errors.push({ pointer, code, message: `"${pointer.slice(1)}" ${rest}` });
  };
}

function readAddresses(given: unknown, pointer: Pointer, report: Report): Address[] {
  if (!Array.isArray(given)) return readAddressItem(given, pointer, report);
  if (given.length > maxListItems) {
    report(pointer, 'too_long', `must have at most ${maxListItems} items.`);
    return [];
  }
  return given.flatMap((item, i) => readAddressItem(item, `${pointer}/${i}` as Pointer, report));
}

function readAddressItem(given: unknown, pointer: Pointer, report: Report): Address[] {
  if (typeof given === 'string') {
    const control = findControl(given);
    const read = control ? { fault: control } : readAddressList(given);
    if ('fault' in read) report(pointer, 'invalid_value', read.fault);
    else for (const { name } of read) checkName(name, pointer, report);
    return 'fault' in read ? [] : read;
  }
  if (typeof given !== 'object' || given === null) return [];
  const { name, address } = given as { name?: unknown; address?: unknown };
  const collapsed = typeof name === 'string' ? trimBlanks(name.replace(/[ \t]+/g, ' ')) : '';
  checkName(collapsed, `${pointer}/name` as Pointer, report);
  const read = typeof address === 'string' ? readAddress(address) : undefined;
  if (read === undefined) return [];
  if (typeof read === 'string') return [{ name: collapsed || null, address: read }];
  report(`${pointer}/address` as Pointer, 'invalid_value', read.fault);
  return [];
}

function checkName(name: string | null, pointer: Pointer, report: Report): void {
  if (name === null) return;
  const control = findControl(name);
  if (control) report(pointer, 'invalid_value', control);
  if (name.length > maxName) report(pointer, 'too_long', `must have names of at most ${maxName} characters.`);
  // Readers decode encoded words also in quotes, and would show another name.
  if (name.includes('=?')) report(pointer, 'invalid_value', 'must have names as plain text, without "=?".');
}

function readSubject(given: unknown, report: Report): string | null {
  if (typeof given !== 'string') return null;
  const control = findControl(given);
  if (control) report('/subject', 'invalid_value', control);
  if (given.length > maxSubject)
    report('/subject', 'too_long', `must have at most ${maxSubject} characters.`);
  return given;
}

function readBody(given: unknown, pointer: Pointer, report: Report): string | null {
  if (typeof given !== 'string') return null;
  if (given.includes('\0')) report(pointer, 'invalid_value', 'must not contain NUL characters (U+0000).');
  return given;
}

function readAttachments(given: unknown, report: Report): DraftAttachment[] {
  if (!Array.isArray(given)) return [];
  if (given.length > maxAttachments) {
    report('/attachments', 'too_long', `must have at most ${maxAttachments} items.`);
    return [];
  }
  const contentIds = new Set<string>();
  return given.map((item: Record<string, unknown> | null, i) => {
    const at = (key: string) => `/attachments/${i}/${key}` as Pointer;
    const filename = readText(item?.filename);
    const content = readText(item?.content);
    const contentType = readText(item?.contentType);
    const contentId = readText(item?.contentId)?.replace(/^<(.*)>$/, '$1') ?? null;
    const filenameFault = filename === null ? undefined : findFilenameFault(filename);
    if (filenameFault) report(at('filename'), 'invalid_value', filenameFault);
    if (content !== null && !isBase64(content)) {
      report(
        at('content'),
        'invalid_value',
        'must be base64 (RFC 4648 §4), with padding and without line breaks.',
      );
    } else if (content !== null && contentType !== null && isMessageType(contentType)) {
      const fault = findMessageFault(Buffer.from(content, 'base64'));
      if (fault)
        report(at('content'), 'invalid_value', `${fault} Give the contentType application/octet-stream.`);
    }
    const typeFault = contentType === null ? undefined : findContentTypeFault(contentType);
    if (typeFault) report(at('contentType'), 'invalid_value', typeFault);
    if (contentId !== null && !isContentId(contentId)) {
      const rest = "must have 1 to 200 letters, digits or characters of .!#$%&'*+/=?^_`{|}~@-";
      report(at('contentId'), 'invalid_value', `${rest}, such as logo@example.com.`);
    } else if (contentId !== null && contentIds.has(contentId)) {
      report(at('contentId'), 'repeated', 'is also the contentId of another attachment.');
    }
    if (contentId !== null) contentIds.add(contentId);
    return { filename: filename ?? '', content: content ?? '', contentType, contentId };
  });
}

function readText(given: unknown): string | null {
  return typeof given === 'string' ? given : null;
}

function findFilenameFault(filename: string): string | undefined {
  if (filename.trim() === '') return 'must not be empty.';
  if (filename.length > maxFilename) return `must have at most ${maxFilename} characters.`;
  return findControl(filename) ?? findBlankRun(filename);
}

const contentTypeForm =
  /^[\w!#$%&'*+.^`{|}~-]+\/[\w!#$%&'*+.^`{|}~-]+(?:[ \t]*;[ \t]*[\w!#$%&'*+.^`{|}~-]+=(?:[\w!#$%&'*+.^`{|}~-]+|"(?:[ !#-[\]-~]|\\[ -~])*"))*$/;

/** RFC 2045 §5.1. */
function findContentTypeFault(contentType: string): string | undefined {
  if (contentType.length > 255) return 'must have at most 255 characters.';
  if (!contentTypeForm.test(contentType)) return 'must be a media type, such as application/pdf.';
  if (/^multipart\//i.test(contentType)) return 'must not be a multipart type.';
  return findBlankRun(contentType);
}

export function isMessageType(contentType: string): boolean {
  return /^message\/rfc822(?=[ \t;]|$)/i.test(contentType);
}

/** Why the bytes cannot be a part `message/rfc822`, which must not be encoded (RFC 2046 §5.2.1). */
export function findMessageFault(bytes: Buffer): string | undefined {
  if (bytes.includes(0)) return 'has a NUL, which an attached message cannot have.';
  const line = findLongLine(bytes);
  return line === null
    ? undefined
    : `has more than ${maxLine} octets in line ${line}, which an attached message cannot have.`;
}

/** A dot-atom with "@", so that it is the same in the Content-ID field and in a `cid:` link. */
function isContentId(contentId: string): boolean {
  return /^[\w.!#$%&'*+/=?^`{|}~@-]{1,200}$/.test(contentId);
}

function isBase64(content: string): boolean {
  return content.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(content);
}

/** Fields that the service writes itself, and fields that only a mail server may write. */
const ownHeader =
  /^(?:from|to|cc|bcc|reply-to|subject|sender|date|message-id|references|in-reply-to|received|return-path|dkim-signature|mime-version|(?:resent|arc|content)-.*)$/i;

function readHeaders(given: unknown, report: Report): Field[] {
  if (typeof given !== 'object' || given === null || Array.isArray(given)) return [];
  const fields = Object.entries(given).flatMap(([name, value]) =>
    typeof value === 'string' ? [{ name, value }] : [],
  );
  const length = fields.reduce((sum, { name, value }) => sum + name.length + value.length, 0);
  if (fields.length > maxHeaders) report('/headers', 'too_long', `must have at most ${maxHeaders} fields.`);
  else if (length > maxHeadersLength)
    report('/headers', 'too_long', `must have at most ${maxHeadersLength} characters.`);
  else {
    for (const { name, value } of fields) {
      const pointer: Pointer = `/headers/${cutGiven(name).replaceAll('~', '~0').replaceAll('/', '~1')}`;
      const fault = findHeaderNameFault(name) ?? findHeaderValueFault(value);
      if (fault) report(pointer, 'invalid_value', fault);
    }
  }
  return fields;
}

/** RFC 5322 §2.2. */
function findHeaderNameFault(name: string): string | undefined {
  if (!/^[!-9;-~]{1,76}$/.test(name)) {
    return 'is not the name of a header field: write 1 to 76 letters, digits or hyphens.';
  }
  return ownHeader.test(name) ? 'cannot be set here: the service writes this header field.' : undefined;
}

function findHeaderValueFault(value: string): string | undefined {
  if (value.trim() === '') return 'must not be empty.';
  const isLong = /^[\t -~]*$/.test(value) && value.split(/[\t ]/).some((word) => word.length > maxWord);
  if (isLong) return `must have a space after at most ${maxWord} characters.`;
  // nodemailer's time to encode it grows with the square of its length.
  if (value.length > maxEncoded && !/^[\t -~]*$/.test(value))
    return `must have at most ${maxEncoded} characters, because it is not ASCII.`;
  return findControl(value) ?? findBlankRun(value);
}

/** The tab is allowed: it is a blank. */
function findControl(text: string): string | undefined {
  return /(?!\t)\p{Cc}/u.test(text) ? 'must not contain line breaks or other control characters.' : undefined;
}

/** A line is folded at 76 characters: with more blanks in a row than this, a line would have nothing else. */
function findBlankRun(text: string): string | undefined {
  return /[ \t]{50}/.test(text) ? 'must not contain 50 blanks in a row.' : undefined;
}

/**
 * Writes the bytes of a message that was given as fields. The fields are those that `readDraft` found no fault in.
 * Guarantees: CRLF ends every line; no line of the header has more than 998 octets; there is no Bcc field; every byte is ASCII,
 * so the message needs neither 8BITMIME nor a downgrade. The two exceptions: an address whose local part is not ASCII is written in
 * UTF-8 and needs SMTPUTF8 (RFC 6532); an attached message (`message/rfc822`) keeps its 8-bit bytes and needs 8BITMIME.
 */
import { isAscii } from 'node:buffer';
import MailComposer from 'nodemailer/lib/mail-composer';
import { detectMimeType, encodeWord } from 'nodemailer/lib/mime-funcs';
import type { Address } from './address-list.ts';
import { type Draft, type DraftAttachment, findMessageFault, isMessageType } from './draft.ts';
import { htmlToText } from './html-text.ts';
import { countBareEnds, endLinesWithCrlf } from './line-ends.ts';
import type { ReplyFields } from './reply.ts';

export interface ComposedMail extends Omit<Draft, 'from' | 'bcc'>, ReplyFields {
  from: Address;
  messageId: string;
  date: Date;
}

/** The message would have more bytes than are allowed: at least this many. */
export interface TooLarge {
  leastBytes: number;
}

/** What cannot fit is refused before it is composed, because composing takes several times its memory. */
export async function composeWithin(
  maxBytes: number,
  mail: ComposedMail,
): Promise<{ bytes: Buffer } | TooLarge> {
  const given = countLeast(mail);
  if (given > maxBytes) return { leastBytes: given };
  const text = deriveText(mail);
  const leastBytes = mail.text === null ? given + Buffer.byteLength(text) : given;
  if (leastBytes > maxBytes) return { leastBytes };
  const bytes = await build(mail, text);
  return bytes.length > maxBytes ? { leastBytes: bytes.length } : { bytes };
}

export function composeMail(mail: ComposedMail): Promise<Buffer> {
  return build(mail, deriveText(mail));
}

function deriveText({ text, html }: ComposedMail): string {
  return text ?? htmlToText(html ?? '');
}

/** No encoding makes a text shorter. An attachment takes 78 bytes for each 76 characters of base64; a message is not encoded. */
function countLeast({ text, html, attachments }: ComposedMail): number {
  const bytesOf = ({ content, contentType, filename }: DraftAttachment) =>
    /^message\//i.test(contentType ?? detectMimeType(filename))
      ? Math.max(0, (content.length / 4) * 3 - 2)
      : Math.floor((content.length * 78) / 76);
  const attached = attachments.reduce((sum, one) => sum + bytesOf(one), 0);
  return Buffer.byteLength(text ?? '') + Buffer.byteLength(html ?? '') + attached;
}

async function build(mail: ComposedMail, text: string): Promise<Buffer> {
  const hasText = mail.text !== null || mail.html === null || text !== '';
  const composer = new MailComposer({
    newline: 'windows',
    disableFileAccess: true,
    disableUrlAccess: true,
    from: nameAddress(mail.from),
    to: mail.to.map(nameAddress),
    cc: mail.cc.map(nameAddress),
    replyTo: mail.replyTo.map(nameAddress),
    messageId: mail.messageId,
    date: mail.date,
    ...(mail.inReplyTo === null ? {} : { inReplyTo: mail.inReplyTo }),
    references: mail.references,
    headers: [
      { key: 'Subject', value: write(encodeText(mail.subject ?? '')) },
      ...mail.headers.map(({ name, value }) => ({ key: name, value: write(encodeField(value)) })),
    ],
    // Not `text` and `html`: with these an empty body would have no part.
    alternatives: [
      ...(hasText ? [makeBody('text/plain', text)] : []),
      ...(mail.html === null ? [] : [makeBody('text/html', mail.html)]),
    ],
    attachments: mail.attachments.map(makeAttachment),
  });
  const root = composer.compile();
  labelEightBit(root);
  return await root.build();
}

type MimeNode = ReturnType<MailComposer['compile']>;

/** RFC 2045 §6.4: a multipart that has 8-bit text in it says so. Returns whether the node has. */
function labelEightBit(node: MimeNode): boolean {
  const hasEightBit =
    node.childNodes.map(labelEightBit).includes(true) ||
    String(node.getHeader('Content-Transfer-Encoding')) === '8bit';
  if (hasEightBit) node.setHeader('Content-Transfer-Encoding', '8bit');
  return hasEightBit;
}

function nameAddress({ name, address }: Address) {
  return { name: name ?? '', address };
}

/** Folded and otherwise written as it is. Without this, nodemailer encodes every field that has a quote in it. */
function write(value: string) {
  return { prepared: true, foldLines: true, value };
}

/** A value that must not be folded or would be read as something else becomes encoded words. */
function encodeText(text: string): string {
  const isPlain = /^[!-~]+(?: [!-~]+)*$/.test(text) && !text.includes('=?') && !/\S{900}/.test(text);
  return isPlain || text === '' ? text : encodeWords(text);
}

/** A value of ASCII may have a syntax of its own, and encoded words that the user wrote. */
function encodeField(value: string): string {
  return isAscii(Buffer.from(value)) ? value.trim() : encodeWords(value);
}

function encodeWords(text: string): string {
  const beyondAscii = text.replace(/[ -~]/g, '').length;
  return encodeWord(text, beyondAscii > text.length / 2 ? 'B' : 'Q', 52);
}

function makeBody(contentType: 'text/plain' | 'text/html', content: string) {
  return {
    contentType: `${contentType}; charset=utf-8`,
    content: content.toWellFormed().replace(/\r\n?|\n/g, '\r\n'),
  };
}

function makeAttachment({ filename, content, contentType, contentId }: DraftAttachment) {
  const isMessage = contentType !== null && isMessageType(contentType);
  const decoded = Buffer.from(content, 'base64');
  const bytes = isMessage ? endLinesWithCrlf(decoded) : decoded;
  const type = contentType ?? detectMimeType(filename);
  // nodemailer takes "gzip" for a multipart.
  const isOpaque =
    /^multipart\//i.test(type) || (/^message\//i.test(type) && !canStandUnencoded(bytes, isMessage));
  return {
    filename,
    content: bytes,
    contentType: isOpaque ? 'application/octet-stream' : type,
    ...(contentId === null ? {} : { cid: contentId }),
    contentDisposition: contentId === null ? 'attachment' : 'inline',
  };
}

/** RFC 2046 §5.2.1 forbids to encode a message in a message. True: its bytes survive without an encoding. */
function canStandUnencoded(bytes: Buffer, mayHaveEightBit: boolean): boolean {
  const fits = mayHaveEightBit || (isAscii(bytes) && countBareEnds(bytes) === 0);
  return fits && findMessageFault(bytes) === undefined;
}

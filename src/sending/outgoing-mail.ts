/** A message with its envelope, and whether a server can take it. Pure. */
import { domainToASCII } from 'node:url';
import { SendFault } from './try-reply.ts';
import type { Content } from './wire.ts';

export interface OutgoingMail {
  /** Of the message in the store. */
  messageId: string;
  /** Owners take turns at a host. */
  ownerId: string;
  mailFrom: string;
  rcptTo: string;
  /** Header fields to put in front, with CRLF; may be empty. */
  signature: string;
  /** Read once. */
  content: Content;
  /** Of `content`, in bytes. */
  size: number;
  /** The content has bytes above 127. */
  eightBit: boolean;
  /** The header has characters outside ASCII. */
  smtpUtf8: boolean;
  /** Asked right before the end of data, after which the server has the message. */
  mayEnd(): boolean;
}

/** What a server offers: by keyword in upper case, with the parameters. */
export type Extensions = ReadonlyMap<string, string>;

/** RFC 5321 §4.1.1.1: the first line is the greeting, each other line an extension. */
export function readExtensions(text: string): Extensions {
  const lines = text.split('\n').slice(1);
  return new Map(
    lines.map((line) => {
      const [keyword = '', ...parameters] = line.trim().split(/[ =]+/);
      return [keyword.toUpperCase(), parameters.join(' ')];
    }),
  );
}

/** Why this server cannot get this message. */
export function findMisfit(mail: OutgoingMail, host: string, extensions: Extensions): SendFault | null {
  if (![mail.mailFrom, mail.rcptTo].every(isSafeAddress)) {
    return new SendFault('invalid_address', 'The address has characters that SMTP does not allow');
  }
  const limit = Number(extensions.get('SIZE') ?? 0);
  const size = sizeOf(mail);
  if (limit > 0 && size > limit) {
    const detail = `The message has ${size} bytes, and ${host} takes at most ${limit}`;
    return new SendFault('message_too_large', detail);
  }
  if (mail.eightBit && !extensions.has('8BITMIME')) {
    const detail = `${host} does not take 8-bit text (8BITMIME). Encode the parts of the message as quoted-printable or base64, and send it again`;
    return new SendFault('needs_8bitmime', detail);
  }
  if (needsUtf8(mail) && !extensions.has('SMTPUTF8')) {
    const detail = `${host} does not take characters outside ASCII in addresses and header fields (SMTPUTF8). Encode the header fields (RFC 2047), and use an ASCII address`;
    return new SendFault('needs_smtputf8', detail);
  }
  return null;
}

/** The parameters of MAIL, each with a space in front. */
export function writeParameters(mail: OutgoingMail, extensions: Extensions): string {
  const words = [
    ...(extensions.has('SIZE') ? [`SIZE=${sizeOf(mail)}`] : []),
    ...(mail.eightBit ? ['BODY=8BITMIME'] : []),
    ...(needsUtf8(mail) ? ['SMTPUTF8'] : []),
  ];
  return words.map((word) => ` ${word}`).join('');
}

function sizeOf({ size, signature }: OutgoingMail): number {
  return size + signature.length;
}

/** Nothing that could end the path or the command line. */
function isSafeAddress(address: string): boolean {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression finds control characters.
  return !/[\u0000-\u001f\u007f<>]/.test(address) && !/^[^"]* /.test(address) && address.length <= 320;
}

/** RFC 6531 §3.2 allows U-labels, but only where SMTPUTF8 is offered; A-labels are right everywhere. */
export function toAsciiDomain(address: string): string {
  const at = address.lastIndexOf('@');
  const domain = address.slice(at + 1);
  return isAscii(domain) ? address : `${address.slice(0, at)}@${domainToASCII(domain)}`;
}

function needsUtf8({ mailFrom, rcptTo, smtpUtf8 }: OutgoingMail): boolean {
  return smtpUtf8 || ![mailFrom, rcptTo].map(toAsciiDomain).every(isAscii);
}

function isAscii(text: string): boolean {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the range begins with NUL.
  return /^[\u0000-\u007f]*$/.test(text);
}

/**
 * Reads the values of fields in reports. Guarantee: linear time; every string has at most 1,000 characters on one line, is
 * well-formed and has no NUL.
 */
import { readAuthor } from './address-list.ts';
import { tidy } from './charset.ts';
import { decodeLine } from './encoded-words.ts';
import { type OnCut, stripComments } from './lexical.ts';

const maxLine = 1000;
const maxKeyword = 100;

/** Null: missing or nothing but blanks. */
export function readLine(value = '', onCut?: OnCut): string | null {
  const line = decodeLine(value.slice(0, 4 * maxLine)).replace(/ {2,}/g, ' ');
  if (value.length > 4 * maxLine || line.length > maxLine) onCut?.();
  return line === '' ? null : line.slice(0, maxLine).toWellFormed();
}

interface Typed {
  /** In lower case; null if the value has none. */
  type: string | null;
  value: string;
}

/** RFC 3464 §2.1.2: `rfc822; ada@example.com`, `dns; mx.example.com`, `smtp; 550 5.1.1 No such user`. */
export function readTyped(value: string | undefined): Typed | null {
  if (value === undefined) return null;
  const type = /^\s*([a-z][a-z0-9-]*)\s*;/i.exec(value);
  return type
    ? { type: type[1]?.toLowerCase() ?? null, value: value.slice(type[0].length) }
    : { type: null, value };
}

export function readAddress(value: string | undefined, onCut?: OnCut): string | null {
  const typed = readTyped(value);
  const text = typed?.type === 'utf-8' ? unescapeUnicode(typed.value) : (typed?.value ?? '');
  const { author, isAddressCut } = readAuthor(text);
  if (isAddressCut) onCut?.();
  const address = author?.address ?? null;
  return address === null || /\p{Cc}/u.test(address) ? null : address;
}

/** RFC 6533 §3: `\x{E9}` is one character. */
function unescapeUnicode(text: string): string {
  const decoded = text.replace(/\\x\{([0-9a-f]{1,6})\}/gi, (written, digits: string) => {
    const code = Number.parseInt(digits, 16);
    return code <= 0x10ffff ? String.fromCodePoint(code) : written;
  });
  return tidy(decoded);
}

/** The first word in lower case. */
export function readKeyword(value = '', onCut?: OnCut): string | null {
  const keyword = /^\s*([a-z][a-z-]*)(?![\w-])/i.exec(stripComments(value))?.[1] ?? '';
  if (keyword.length > maxKeyword) onCut?.();
  return keyword === '' || keyword.length > maxKeyword ? null : keyword.toLowerCase();
}

/** RFC 8098 §3.2.6: `manual-action/MDN-sent-manually; displayed/error`. */
export function readDisposition(value: string | undefined, onCut: OnCut): string | null {
  return readKeyword(stripComments(value ?? '').split(';')[1], onCut);
}

const enhancedCode = /([245]\.\d{1,3}\.\d{1,3})(?!\.?\d)/;
const statusForm = new RegExp(`^\\s*${enhancedCode.source}`);
const replyForm = new RegExp(`^\\s*([2-5]\\d\\d)(?!\\d)(?:[ -]#?${enhancedCode.source})?`);

/** RFC 3463: `5.1.1 (bad destination mailbox)` is 5.1.1. */
export function readStatus(value: string | undefined): string | null {
  return statusForm.exec(stripComments(value ?? ''))?.[1] ?? null;
}

/** The SMTP reply that a diagnostic repeats. */
export function readReply(diagnostic: Typed | null): { code: number; enhanced: string | null } | null {
  if (!diagnostic || (diagnostic.type !== null && diagnostic.type !== 'smtp')) return null;
  const reply = replyForm.exec(diagnostic.value);
  return reply && { code: Number(reply[1]), enhanced: reply[2] ?? null };
}

/** Decodes the encoded words of header fields (RFC 2047). Guarantee: one pass, and all that `decodeCharset` guarantees. */
import { decodeCharset, tidy } from './charset.ts';
import { trimBlanks } from './lexical.ts';
import { decodeTransfer } from './transfer.ts';

/** The language after the charset (RFC 2231 §5) is ignored. */
const encodedWord = /=\?([^?\s*]+)(?:\*[^?\s]*)?\?([QB])\?([^?]*)\?=/gi;

/** Adjacent words of one charset. */
interface Run {
  charset: string;
  words: Buffer[];
}

/** Replaces decoded control characters: a decoded line break could split a header or a log line that is written later. */
export function decodeLine(text: string): string {
  const decoded = tidy(text.includes('=?') ? decodeWords(text) : text);
  return trimBlanks(decoded.replace(/\p{Cc}+/gu, ' '));
}

/**
 * Escapes the 8-bit bytes inside encoded words: they are in the charset of the word, not in that of the field. `text` has one
 * character for each byte.
 */
export function escapeRawBytes(text: string): string {
  return text.replace(/=\?[^?\s]+\?Q\?[^?]*\?=/gi, (word) =>
    word.replace(/[\x80-\xff]/g, (byte) => `=${byte.charCodeAt(0).toString(16).toUpperCase()}`),
  );
}

function decodeWords(text: string): string {
  let decoded = '';
  let end = 0;
  let run: Run = { charset: '', words: [] };
  for (const match of text.matchAll(encodedWord)) {
    const [word, label = '', encoding = '', content = ''] = match;
    const charset = label.toLowerCase();
    const between = text.slice(end, match.index);
    // §6.2: blanks between encoded words are dropped.
    const isNeighbour = run.words.length > 0 && /^[ \t\r\n]*$/.test(between);
    if (!isNeighbour || run.charset !== charset) {
      decoded += decodeRun(run) + (isNeighbour ? '' : between);
      run = { charset, words: [] };
    }
    run.words.push(decodeContent(encoding, content));
    end = match.index + word.length;
  }
  return decoded + decodeRun(run) + text.slice(end);
}

/** §5 forbids splitting a character between two words, but senders do it. Words are decoded together if that gives no U+FFFD. */
function decodeRun({ charset, words }: Run): string {
  const together = decodeCharset(Buffer.concat(words), charset);
  if (words.length < 2 || !together.includes('\ufffd')) return together;
  return words.map((word) => decodeCharset(word, charset)).join('');
}

function decodeContent(encoding: string, content: string): Buffer {
  if (/b/i.test(encoding)) return decodeTransfer(Buffer.from(content), 'base64').content;
  // §4.2. A blank after "=" comes from folding inside the word; "=" at the end is not a soft line break.
  const unfolded = content.replace(/=\s+(?=[0-9a-f])/gi, '=').replace(/=$/, '=3D');
  return decodeTransfer(Buffer.from(unfolded.replace(/[_\s]/g, '=20')), 'quoted-printable').content;
}

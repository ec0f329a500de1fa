/**
 * Reads a value with parameters, as in Content-Type and Content-Disposition (RFC 2045 §5.1, RFC 2231).
 * Guarantee: one pass; only parameters that are used here are read; the first of repeated parameters counts.
 */
import { decodeCharset } from './charset.ts';
import { findCommentEnd, findQuoteEnd, trimBlanks, unquote } from './lexical.ts';

export interface Parameterized {
  /** In lower case. */
  value: string;
  /** By name in lower case. */
  parameters: Map<string, string>;
  /** The value was too long, and another one is in its place. */
  isReplaced?: boolean;
}

interface Section {
  number: number;
  isEncoded: boolean;
  value: string;
}

/** A header may have thousands of others, each in a charset of its own. */
const usedName = /^(?:boundary|charset|delsp|filename|format|name|start)(?:\*|$)/;

export function readParameterized(text: string): Parameterized {
  const [first = '', ...rest] = splitAtSemicolons(text);
  const { value, more } = readMain(first);
  const plain = new Map<string, string>();
  const sectioned = new Map<string, Section[]>();
  for (const { name, value } of [more, ...rest].flatMap(readPairs)) {
    if (!usedName.test(name)) continue;
    const extended = /^([^*]+)\*(?:(\d{1,6})(\*)?)?$/.exec(name);
    if (!extended) {
      if (!plain.has(name)) plain.set(name, value);
      continue;
    }
    const [, base = '', number, star] = extended;
    const sections = sectioned.get(base) ?? [];
    sections.push({ number: Number(number ?? 0), isEncoded: number === undefined || star === '*', value });
    sectioned.set(base, sections);
  }
  // If a sender gives both forms, the extended one has more characters.
  for (const [name, sections] of sectioned) {
    const joined = joinSections(sections);
    if (joined !== undefined) plain.set(name, joined);
  }
  return { value, parameters: plain };
}

/** `message / rfc822` has blanks around its slash, `application/pdf name="x"` no semicolon, `filename=x` no value at all. */
function readMain(piece: string): { value: string; more: string } {
  const text = trimBlanks(piece);
  if (text.startsWith('"')) return { value: readValue(text).value.toLowerCase(), more: '' };
  if (/^[^\s,/=]+\s*=/.test(text)) return { value: '', more: text };
  const [value = ''] = /^[^\s,/]*(?:\s*\/\s*[^\s,]*)?/.exec(text) ?? [];
  return { value: value.replace(/\s+/g, '').toLowerCase(), more: text.slice(value.length) };
}

interface Pair {
  /** In lower case. */
  name: string;
  value: string;
}

/** Usually one parameter; several if the semicolons between them are missing. */
function readPairs(piece: string): Pair[] {
  const pairs: Pair[] = [];
  for (let text = piece; ; ) {
    const equals = text.indexOf('=');
    if (equals === -1) return pairs;
    const name = text
      .slice(0, equals)
      .replace(/^[\s,]+/, '')
      .trimEnd()
      .toLowerCase();
    const { value, more } = readValue(text.slice(equals + 1));
    pairs.push({ name, value });
    text = more;
  }
}

/** Drops comments. In an unquoted value "(" opens a comment only after a blank: `name=Invoice(1).pdf`. */
function splitAtSemicolons(text: string): string[] {
  const pieces: string[] = [];
  let piece = '';
  let from = 0;
  let isOpenEnded = false;
  let hasEquals = false;
  for (let i = 0; i < text.length; i++) {
    const character = text[i];
    if (character === ';') {
      pieces.push(piece + text.slice(from, i));
      piece = '';
      from = i + 1;
      hasEquals = false;
    } else if (character === '=') {
      hasEquals = true;
    } else if (character === '"' && !isOpenEnded) {
      const end = findQuoteEnd(text, i);
      if (end === -1) isOpenEnded = true;
      else i = end - 1;
    } else if (character === '(' && !isOpenEnded && (!hasEquals || /[ \t]/.test(text[i - 1] ?? ''))) {
      const end = findCommentEnd(text, i);
      if (end === -1) isOpenEnded = true;
      else {
        piece += text.slice(from, i);
        from = end;
        i = end - 1;
      }
    }
  }
  pieces.push(piece + text.slice(from));
  return pieces;
}

/** A parameter that is known well enough to begin after a blank. An unquoted file name may have blanks: `name=My file.pdf`. */
const nextParameter =
  /,?[ \t](?=(?:boundary|charset|delsp|filename|format|name|size|start|type)(?:\*[\d*]{0,9})?[ \t]{0,9}=)/i;

function readValue(text: string): { value: string; more: string } {
  const start = trimBlanks(text);
  const end = start.startsWith('"') ? findQuoteEnd(start, 0) : -1;
  if (end !== -1) return { value: unquote(start.slice(0, end)), more: start.slice(end) };
  const next = start.search(nextParameter);
  const value = next === -1 ? start : trimBlanks(start.slice(0, next));
  return {
    value: value.startsWith('"') ? value.slice(1) : value,
    more: next === -1 ? '' : start.slice(next),
  };
}

/** RFC 2231 §3 and §4: sections count from 0 without a gap; only sections with a star are percent-encoded. */
function joinSections(sections: Section[]): string | undefined {
  const ordered = sections.toSorted((a, b) => a.number - b.number);
  const [first] = ordered;
  if (first?.number !== 0) return undefined;
  const [, charset = '', start = first.value] =
    (first.isEncoded && /^([^']*)'[^']*'(.*)$/s.exec(first.value)) || [];
  let joined = '';
  // A character may begin in one section and end in the next, so adjacent sections are decoded together.
  let encoded = '';
  const flush = () => {
    joined += encoded && decodeCharset(decodePercent(encoded), charset);
    encoded = '';
  };
  let expected = 0;
  for (const section of ordered) {
    if (section.number !== expected) continue;
    const value = expected === 0 ? start : section.value;
    expected++;
    if (section.isEncoded) {
      encoded += value;
      continue;
    }
    flush();
    joined += value;
  }
  flush();
  return joined;
}

function decodePercent(text: string): Buffer {
  const bytes = Buffer.from(text);
  let length = 0;
  for (let i = 0; i < bytes.length; i++) {
    const hex = bytes[i] === 0x25 ? bytes.toString('latin1', i + 1, i + 3) : '';
    const isEscape = /^[0-9a-f]{2}$/i.test(hex);
    bytes[length++] = isEscape ? Number.parseInt(hex, 16) : (bytes[i] ?? 0);
    if (isEscape) i += 2;
  }
  return bytes.subarray(0, length);
}

/**
 * Reads a value with parameters, as in Content-Type and Content-Disposition (RFC 2045 §5.1, RFC 2231).
 * Guarantee: one pass; a parameter may have any name; the first of repeated parameters counts.
 */
import { decodeCharset } from './charset.ts';
import { findCommentEnd, findQuoteEnd, trimBlanks, unquote } from './lexical.ts';

export interface Parameterized {
  /** In lower case. */
  value: string;
  /** By name in lower case. */
  parameters: Map<string, string>;
}

interface Section {
  number: number;
  isEncoded: boolean;
  value: string;
}

export function readParameterized(text: string): Parameterized {
  const [first = '', ...rest] = splitAtSemicolons(text);
  const plain = new Map<string, string>();
  const sectioned = new Map<string, Section[]>();
  for (const piece of rest) {
    const equals = piece.indexOf('=');
    if (equals === -1) continue;
    const name = piece.slice(0, equals).trim().toLowerCase();
    const value = readValue(piece.slice(equals + 1));
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
  return { value: readValue(first).toLowerCase(), parameters: plain };
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

function readValue(text: string): string {
  const value = trimBlanks(text);
  if (!value.startsWith('"')) return value;
  const end = findQuoteEnd(value, 0);
  return end === -1 ? value.slice(1) : unquote(value.slice(0, end));
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

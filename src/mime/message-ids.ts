/**
 * Message ids out of Message-ID, In-Reply-To and References (RFC 5322 §3.6.4), angle brackets kept.
 * The old syntax (§4.5.4) lets phrases and comments stand between them: those are skipped. Blanks inside the
 * brackets come from folding and are dropped. Where a value has no brackets at all, its words that hold an "@"
 * are ids whose brackets were forgotten, and get them.
 * Guarantee: one pass; every id is `<…>` without blanks or further brackets in it.
 */
import { findCommentEnd, findQuoteEnd, stripComments } from './lexical.ts';

/** RFC 5322 §2.1.1: what fits on a line. */
const maxLength = 998;

/** `isAlone`: the field holds an id and nothing else, so that any single word is one. */
export function readMessageIds(value: string, { isAlone = false } = {}): string[] {
  const bracketed = findBracketed(value);
  if (bracketed.length > 0) return bracketed;
  const words = stripComments(value)
    .split(/[\s,<>"]+/)
    .filter((word) => word !== '');
  const ids = isAlone && words.length === 1 ? words : words.filter((word) => /.@./.test(word));
  return ids.filter(fits).map((id) => `<${id}>`);
}

function findBracketed(value: string): string[] {
  const ids: string[] = [];
  let isOpenEnded = false;
  for (let i = 0; i < value.length; i++) {
    const character = value[i];
    if (character === '<') {
      const end = value.indexOf('>', i);
      if (end === -1) break;
      // A bracket that was never closed is not the beginning of the id that follows it.
      const start = value.lastIndexOf('<', end);
      const id = value.slice(start + 1, end).replace(/\s+/g, '');
      if (id !== '' && fits(id)) ids.push(`<${id}>`);
      i = end;
    } else if ((character === '(' || character === '"') && !isOpenEnded) {
      const end = character === '(' ? findCommentEnd(value, i) : findQuoteEnd(value, i);
      if (end === -1) isOpenEnded = true;
      else i = end - 1;
    }
  }
  return ids;
}

function fits(id: string): boolean {
  return id.length <= maxLength;
}

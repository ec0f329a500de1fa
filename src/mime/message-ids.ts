/**
 * Reads the ids of Message-ID, In-Reply-To and References (RFC 5322 §3.6.4). Skips phrases and comments between ids (§4.5.4).
 * Blanks inside the brackets come from folding and are dropped. If a value has no brackets at all, its words with an "@" are ids.
 * Guarantee: one pass; every id is `<…>` without blanks or brackets inside.
 */
import { findCommentEnd, findQuoteEnd, type OnCut, stripComments } from './lexical.ts';

/** RFC 5322 §2.1.1: the longest line. */
const maxLength = 998;

export function readMessageIds(value: string, onCut?: OnCut): string[] {
  return findIds(value, false)
    .filter((id) => keepIfFits(id, onCut))
    .map(enclose);
}

interface FirstIdOptions {
  /** The field holds one id and nothing else, so a single word without "@" is an id too. */
  isAlone?: boolean;
  onCut?: OnCut | undefined;
}

/** The first that is not too long; `onCut` is called for those before it. */
export function readFirstId(
  value: string,
  { isAlone = false, onCut }: FirstIdOptions = {},
): string | undefined {
  const first = findIds(value, isAlone).find((id) => keepIfFits(id, onCut));
  return first === undefined ? undefined : enclose(first);
}

function keepIfFits(id: string, onCut?: OnCut): boolean {
  if (id.length > maxLength) onCut?.();
  return id.length <= maxLength;
}

/** Without their brackets. */
function findIds(value: string, isAlone: boolean): string[] {
  const bracketed = findBracketed(value);
  if (bracketed.length > 0) return bracketed;
  const words = stripComments(value)
    .split(/[\s,<>"]+/)
    .filter((word) => word !== '');
  // A word that is too long is an id, or a part of one. Then the words beside it are not the id.
  const long = words.filter((word) => word.length > maxLength);
  if (long.length > 0) return long;
  return isAlone && words.length === 1 ? words : words.filter((word) => /.@./.test(word));
}

function findBracketed(value: string): string[] {
  const ids: string[] = [];
  let isOpenEnded = false;
  for (let i = 0; i < value.length; i++) {
    const character = value[i];
    if (character === '<') {
      const end = value.indexOf('>', i);
      if (end === -1) break;
      // `<lost <a@b>`: the id begins at the last bracket.
      const start = value.lastIndexOf('<', end);
      const id = value.slice(start + 1, end).replace(/\s+/g, '');
      if (id !== '') ids.push(id);
      i = end;
    } else if ((character === '(' || character === '"') && !isOpenEnded) {
      const end = character === '(' ? findCommentEnd(value, i) : findQuoteEnd(value, i);
      if (end === -1) isOpenEnded = true;
      else i = end - 1;
    }
  }
  return ids;
}

function enclose(id: string): string {
  return `<${id}>`;
}

/**
 * The tokens that structured header fields share: comments and quoted strings (RFC 5322 §3.2).
 * Guarantee: one pass, whatever is left open.
 */

/** The place after the comment that opens at `start`, or -1 when it never closes. Comments nest. */
export function findCommentEnd(text: string, start: number): number {
  let depth = 0;
  for (let i = start; i < text.length; i++) {
    const character = text[i];
    if (character === '\\') i++;
    else if (character === '(') depth++;
    else if (character === ')' && --depth === 0) return i + 1;
  }
  return -1;
}

/** The place after the quoted string that opens at `start`, or -1 when it never closes. */
export function findQuoteEnd(text: string, start: number): number {
  for (let i = start + 1; i < text.length; i++) {
    if (text[i] === '\\') i++;
    else if (text[i] === '"') return i + 1;
  }
  return -1;
}

/** The content of a quoted string or comment: without its ends, without the backslashes of quoted pairs. */
export function unquote(quoted: string): string {
  return quoted.slice(1, -1).replace(/\\(.)/gs, '$1');
}

/** Each comment becomes a space. One that never closes is no comment: nothing from there on is taken away. */
export function stripComments(text: string): string {
  let kept = '';
  let from = 0;
  for (let i = text.indexOf('('); i !== -1 && i < text.length; ) {
    const isQuote = text[i] === '"';
    const end = isQuote ? findQuoteEnd(text, i) : findCommentEnd(text, i);
    if (end === -1) break;
    if (!isQuote) {
      kept += `${text.slice(from, i)} `;
      from = end;
    }
    i = end;
    while (i < text.length && text[i] !== '(' && text[i] !== '"') i++;
  }
  return kept + text.slice(from);
}

/** Without spaces and tabs at its ends; other Unicode spaces are content (RFC 5322 §2.2.2). */
export function trimBlanks(text: string): string {
  let start = 0;
  let end = text.length;
  while (start < end && isBlank(text.charCodeAt(start))) start++;
  while (end > start && isBlank(text.charCodeAt(end - 1))) end--;
  return text.slice(start, end);
}

function isBlank(code: number): boolean {
  return code === 0x20 || code === 0x09;
}

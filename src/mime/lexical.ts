/** What the readers of header fields share: comments, quoted strings (RFC 5322 §3.2), blanks. Guarantee: one pass. */

/** Called when something is cut or left out because it is too long. */
export type OnCut = () => void;

/** `isCut` says whether `onCut` was called. */
export function watchCuts(): { readonly isCut: boolean; readonly onCut: OnCut } {
  const watch = {
    isCut: false,
    onCut: () => {
      watch.isCut = true;
    },
  };
  return watch;
}

/** The offset after the comment that opens at `start`; -1 if it never closes. Comments nest. */
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

/** The offset after the quoted string that opens at `start`; -1 if it never closes. */
export function findQuoteEnd(text: string, start: number): number {
  for (let i = start + 1; i < text.length; i++) {
    if (text[i] === '\\') i++;
    else if (text[i] === '"') return i + 1;
  }
  return -1;
}

/** The content of a quoted string or comment, with quoted pairs resolved. */
export function unquote(quoted: string): string {
  return quoted.slice(1, -1).replace(/\\(.)/gs, '$1');
}

/** Each comment becomes a space. A comment that never closes stays. */
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

/** Other Unicode spaces are content (RFC 5322 §2.2.2). No regex: `/[ \t]+$/` takes quadratic time. */
export function trimBlanks(text: string): string {
  let start = 0;
  let end = text.length;
  while (start < end && isBlank(text.charCodeAt(start))) start++;
  while (end > start && isBlank(text.charCodeAt(end - 1))) end--;
  return text.slice(start, end);
}

/** The offset after the last byte between `start` and `end` that is neither space nor tab. */
export function findBlankTail(bytes: Buffer, start: number, end: number): number {
  let tail = end;
  while (tail > start && isBlank(bytes[tail - 1])) tail--;
  return tail;
}

export function isBlank(code: number | undefined): boolean {
  return code === 0x20 || code === 0x09;
}

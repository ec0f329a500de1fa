/** Joins the lines of `format=flowed` text to paragraphs (RFC 3676 §4). `isSpaceDropped`: the parameter `delsp=yes`. */
export function joinFlowed(text: string, isSpaceDropped: boolean): string {
  let joined = '';
  /** Of the paragraph that goes on in the next line; -1: none does. §4.5: a paragraph has one quote depth. */
  let openDepth = -1;
  for (let start = 0; start <= text.length; ) {
    const feed = text.indexOf('\n', start);
    const end = feed === -1 ? text.length : feed;
    const depth = countQuotes(text, start);
    const quoteEnd = start + depth;
    const content = text.slice(text[quoteEnd] === ' ' ? quoteEnd + 1 : quoteEnd, end);
    // §4.3: the signature separator belongs to no paragraph.
    const isSeparator = content === '-- ';
    if (depth !== openDepth || isSeparator) {
      if (start > 0) joined += '\n';
      if (depth > 0) joined += `${text.slice(start, quoteEnd)} `;
    }
    const isFlowed = content.endsWith(' ') && !isSeparator;
    joined += isFlowed && isSpaceDropped ? content.slice(0, -1) : content;
    openDepth = isFlowed ? depth : -1;
    start = end + 1;
  }
  return joined;
}

function countQuotes(text: string, start: number): number {
  let end = start;
  while (text[end] === '>') end++;
  return end - start;
}

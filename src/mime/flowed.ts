/**
 * `format=flowed` (RFC 3676 §4): paragraphs put together again, quote marks kept, the stuffed space taken away.
 * `isSpaceDropped` is `delsp=yes`: the space before a soft break is not part of the text.
 */
export function joinFlowed(text: string, isSpaceDropped: boolean): string {
  const lines: string[] = [];
  let paragraph: string[] = [];
  let depth = 0;
  const endParagraph = () => {
    if (paragraph.length === 0) return;
    lines.push(`${'>'.repeat(depth)}${depth > 0 ? ' ' : ''}${paragraph.join('')}`);
    paragraph = [];
  };
  for (const line of text.split('\n')) {
    const quotes = countQuotes(line);
    const content = line.slice(line[quotes] === ' ' ? quotes + 1 : quotes);
    // §4.3: the signature's separator is never part of a paragraph. §4.5: nor are lines of different depth of one.
    const isSeparator = content === '-- ';
    if (quotes !== depth || isSeparator) endParagraph();
    depth = quotes;
    const isFlowed = content.endsWith(' ') && !isSeparator;
    paragraph.push(isFlowed && isSpaceDropped ? content.slice(0, -1) : content);
    if (!isFlowed) endParagraph();
  }
  endParagraph();
  return lines.join('\n');
}

function countQuotes(line: string): number {
  let quotes = 0;
  while (line[quotes] === '>') quotes++;
  return quotes;
}

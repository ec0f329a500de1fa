/** Joins the lines of `format=flowed` text to paragraphs (RFC 3676 §4). `isSpaceDropped`: the parameter `delsp=yes`. */
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
    const quotes = /^>*/.exec(line)?.[0].length ?? 0;
    const content = line.slice(line[quotes] === ' ' ? quotes + 1 : quotes);
    // §4.3: the signature separator belongs to no paragraph. §4.5: a paragraph has one quote depth.
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

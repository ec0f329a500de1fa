/**
 * Reads HTML as text: tags away, entities decoded; for a message also lines, lists and links.
 * Guarantee: one pass over any input, because whoever writes the HTML chooses it; the text is at most three times as long as the
 * HTML. The result is not safe to use as HTML.
 */

/** A tag, comment or hidden element is `markup`, as written. */
interface HtmlPiece {
  kind: 'text' | 'markup';
  source: string;
  /** Of a tag that means something here, in lower case; else empty. */
  name: string;
}

/** Ends at markup that never ends. */
export function* readHtmlPieces(html: string): Generator<HtmlPiece> {
  let from = 0;
  for (;;) {
    const open = findMarkup(html, from);
    if (open === -1) break;
    if (open > from) yield { kind: 'text', source: html.slice(from, open), name: '' };
    const name = readTagName(html, open);
    const end = findMarkupEnd(html, open, name);
    if (end === -1) return;
    yield { kind: 'markup', source: html.slice(open, end), name };
    from = end;
  }
  yield { kind: 'text', source: html.slice(from), name: '' };
}

const lessThan = 0x3c;

/** The offset of the next tag, comment or hidden element; -1 if there is none. Any other "<" is text. */
function findMarkup(html: string, from: number): number {
  let open = html.indexOf('<', from);
  while (open !== -1) {
    const next = html.charCodeAt(open + 1);
    if (isLetter(next) || next === slash || next === 0x21 || next === 0x3f) return open;
    open = next === lessThan ? open + 1 : html.indexOf('<', open + 1);
  }
  return -1;
}

const slash = 0x2f;

function isLetter(code: number): boolean {
  return (code | 0x20) >= 0x61 && (code | 0x20) <= 0x7a;
}

/** The ends of elements that are not shown. */
const hidden = new Map(
  ['script', 'style', 'head', 'title', 'template'].map((name) => [name, new RegExp(`</${name}\\s*>`, 'gi')]),
);

/** The offset after the tag, comment or hidden element that begins at `open`; -1 if it never ends. */
function findMarkupEnd(html: string, open: number, name: string): number {
  if (html.startsWith('<!--', open)) return after(html, '-->', open + 4);
  const close = html.charCodeAt(open + 1) === slash ? undefined : hidden.get(name);
  if (!close) return after(html, '>', open);
  close.lastIndex = open;
  return close.test(html) ? close.lastIndex : -1;
}

/** The longest name in `names` has 10 letters. */
const maxName = 16;

function readTagName(html: string, open: number): string {
  const start = html.charCodeAt(open + 1) === slash ? open + 2 : open + 1;
  let end = start;
  while (end - start < maxName && isNamePart(html.charCodeAt(end))) end++;
  const written = html.slice(start, end);
  return names.get(written) ?? names.get(written.toLowerCase()) ?? '';
}

function isNamePart(code: number): boolean {
  return isLetter(code) || (code >= 0x30 && code <= 0x39);
}

function after(html: string, mark: string, from: number): number {
  const found = html.indexOf(mark, from);
  return found === -1 ? -1 : found + mark.length;
}

/** HTML's names for U+00A1 to U+00FF, in this order. */
const latinNames =
  'iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 sup3 acute micro para middot ' +
  'cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc ' +
  'Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute ' +
  'THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml eth ntilde ' +
  'ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml';

const entities = new Map([
  ...latinNames.split(' ').map((name, i): [string, string] => [name, String.fromCharCode(0xa1 + i)]),
  ['amp', '&'],
  ['lt', '<'],
  ['gt', '>'],
  ['quot', '"'],
  ['apos', "'"],
  ['nbsp', ' '],
  ['hellip', '…'],
  ['bull', '•'],
  ['ndash', '–'],
  ['mdash', '—'],
  ['lsquo', '‘'],
  ['rsquo', '’'],
  ['ldquo', '“'],
  ['rdquo', '”'],
  ['euro', '€'],
  ['trade', '™'],
  ['zwnj', ''],
  ['shy', ''],
]);

export function decodeEntities(text: string): string {
  if (!text.includes('&')) return text;
  return text.replace(
    /&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]{2,8}\d{0,2}));/gi,
    (written, decimal, hex, name) => {
      if (name) return entities.get(name) ?? entities.get(name.toLowerCase()) ?? written;
      const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
      return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code).toWellFormed() : '\ufffd';
    },
  );
}

/** How many line breaks stand before and after the element: with two there is an empty line. */
const breaks = new Map<string, number>([
  ...'address article aside center dd div dt fieldset footer form header li main nav section tr'
    .split(' ')
    .map((name): [string, number] => [name, 1]),
  ...'blockquote dl figure h1 h2 h3 h4 h5 h6 hr ol p pre table ul'
    .split(' ')
    .map((name): [string, number] => [name, 2]),
]);

/** The value is the name itself: V8 compares strings of the source text by their address. */
const names = new Map(
  [...hidden.keys(), ...breaks.keys(), 'a', 'br', 'img', 'td', 'th'].map((name) => [name, name]),
);

/** The text alternative of a message that has only HTML. Lines end in LF. Empty if there is nothing to read. */
export function htmlToText(html: string): string {
  const text = makeLines();
  /** The number of the last item of each open list; null in a list without numbers. */
  const lists: (number | null)[] = [];
  let preDepth = 0;
  /** Deep lists of short items would make a text of many times the size. */
  let bulletRoom = html.length;
  let link: Link | undefined;

  const add = (words: string) => {
    if (link) link.label += words;
    if (preDepth > 0) text.addExactly(words.replace(/\r\n?/g, '\n'));
    else text.addWords(words);
  };

  for (const { kind, source, name } of readHtmlPieces(html)) {
    if (kind === 'text') add(decodeEntities(source));
    if (name === '') continue;
    const isEnd = source.charCodeAt(1) === slash;
    const isList = name === 'ul' || name === 'ol';
    if (isList && isEnd) lists.pop();
    text.breakLine(isList && lists.length > 0 ? 1 : (breaks.get(name) ?? 0));
    if (isList && !isEnd) lists.push(name === 'ol' ? 0 : null);
    if (name === 'br') text.addBreak();
    if (name === 'pre') preDepth = Math.max(0, preDepth + (isEnd ? -1 : 1));
    if (name === 'td' || name === 'th') add(' ');
    if (name === 'img') add(readAttribute(source, 'alt'));
    if (name === 'hr') {
      text.addExactly('---');
      text.breakLine(2);
    }
    if (name === 'li' && !isEnd) {
      const last = lists.pop() ?? null;
      const number = last === null ? null : last + 1;
      lists.push(number);
      const indent = '  '.repeat(Math.min(lists.length, maxIndent) - 1);
      const bullet = `${indent}${number === null ? '-' : `${number}.`} `;
      bulletRoom -= bullet.length;
      if (bulletRoom >= 0) text.addBullet(bullet);
    }
    if (name === 'a') {
      if (link && isWorthWriting(link)) text.addWords(` (${link.href})`);
      const href = isEnd ? '' : readAttribute(source, 'href').trim();
      link = /^(?:https?|mailto|tel):/i.test(href) ? { href, label: '' } : undefined;
    }
  }
  return text.end();
}

const maxIndent = 8;

interface Link {
  href: string;
  label: string;
}

/** A link that is its own label is written once. */
function isWorthWriting({ href, label }: Link): boolean {
  const words = label.trim();
  return (
    words !== '' && href.replace(/^(?:mailto|tel):/i, '').replace(/\/$/, '') !== words.replace(/\/$/, '')
  );
}

/** Longer tags have no attributes here. */
const maxTag = 16 * 1024;

function readAttribute(tag: string, name: 'href' | 'alt'): string {
  if (tag.length > maxTag) return '';
  const pattern = name === 'href' ? /\shref\s*=\s*(["']?)/i : /\salt\s*=\s*(["']?)/i;
  const found = pattern.exec(tag);
  if (!found) return '';
  const start = found.index + found[0].length;
  const quote = found[1];
  const end = quote ? tag.indexOf(quote, start) : start + tag.slice(start).search(/[\s>]/);
  return end < start ? '' : decodeEntities(tag.slice(start, end)).replace(/\s+/g, ' ');
}

/** Lays words out as a browser does: blanks collapse, and only one empty line stands between two paragraphs. */
function makeLines() {
  const pieces: string[] = [];
  let breakCount = 0;
  let hasBlank = false;
  let isAtBullet = false;

  const addExactly = (words: string) => {
    if (words === '') return;
    let before = hasBlank ? ' ' : '';
    if (breakCount > 0) before = breakCount === 1 ? '\n' : '\n\n';
    pieces.push(isAtBullet || pieces.length === 0 ? words : before + words);
    breakCount = 0;
    hasBlank = false;
    isAtBullet = false;
  };

  return {
    addExactly,
    addWords(words: string): void {
      // Single spaces stay: to replace each of them takes most of the time.
      const collapsed = words.replace(/(?:[\t\r\n\f]| (?=[ \t\r\n\f]))[ \t\r\n\f]*/g, ' ');
      if (collapsed.startsWith(' ')) hasBlank = true;
      addExactly(
        collapsed.slice(collapsed.startsWith(' ') ? 1 : 0, collapsed.endsWith(' ') ? -1 : undefined),
      );
      if (collapsed.endsWith(' ')) hasBlank = true;
    },
    /** What follows stands beside the bullet, also if it is a paragraph. */
    addBullet(bullet: string): void {
      addExactly(bullet);
      isAtBullet = true;
    },
    addBreak(): void {
      breakCount = Math.min(2, breakCount + 1);
    },
    /** With a count of two there is an empty line. */
    breakLine(count: number): void {
      breakCount = Math.max(breakCount, count);
    },
    end: () => pieces.join('').trim(),
  };
}

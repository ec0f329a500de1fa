/**
 * The first characters of a message, for a list: of its text, else of its HTML without tags.
 * Guarantee: one pass over at most 256 KiB. The result is plain text and not safe to use as HTML.
 */
const maxCharacters = 200;
const maxRead = 256 * 1024;

export function makePreview(text: string | null, html: string | null): string | null {
  return shorten(text ?? '') || shorten(stripTags((html ?? '').slice(0, maxRead))) || null;
}

function shorten(text: string): string {
  const collapsed = text.trimStart().slice(0, maxRead).replace(/\s+/g, ' ').trimEnd();
  // A character has at most two UTF-16 units.
  return [...collapsed.slice(0, 2 * maxCharacters)].slice(0, maxCharacters).join('').trimEnd().toWellFormed();
}

const hidden = /^<(script|style|head|title|template)\b/i;
const withinLine =
  /^<\/?(?:a|abbr|b|big|bdi|bdo|cite|code|em|font|i|ins|kbd|mark|q|s|small|span|strong|sub|sup|tt|u)\b/i;

function stripTags(html: string): string {
  const kept: string[] = [];
  let from = 0;
  for (;;) {
    const open = html.indexOf('<', from);
    if (open === -1) break;
    kept.push(html.slice(from, open));
    const start = html.slice(open, open + 12);
    const end = findMarkupEnd(html, open, start);
    if (end === -1) return decodeEntities(kept.join(''));
    if (end === open + 1) kept.push('<');
    else if (!withinLine.test(start)) kept.push(' ');
    from = end;
  }
  kept.push(html.slice(from));
  return decodeEntities(kept.join(''));
}

/** The offset after the tag, comment or hidden element that begins at `open`; -1 if it never ends. */
function findMarkupEnd(html: string, open: number, start: string): number {
  if (start.startsWith('<!--')) return after(html, '-->', open + 4);
  if (!/^<[a-z/!?]/i.test(start)) return open + 1;
  const element = hidden.exec(start)?.[1];
  if (!element) return after(html, '>', open);
  const close = new RegExp(`</${element}\\s*>`, 'gi');
  close.lastIndex = open;
  return close.exec(html) ? close.lastIndex : -1;
}

function after(html: string, mark: string, from: number): number {
  const found = html.indexOf(mark, from);
  return found === -1 ? -1 : found + mark.length;
}

const entities = new Map([
  ['amp', '&'],
  ['lt', '<'],
  ['gt', '>'],
  ['quot', '"'],
  ['apos', "'"],
  ['nbsp', ' '],
  ['hellip', '…'],
  ['ndash', '–'],
  ['mdash', '—'],
  ['lsquo', '‘'],
  ['rsquo', '’'],
  ['ldquo', '“'],
  ['rdquo', '”'],
  ['copy', '©'],
  ['reg', '®'],
  ['euro', '€'],
  ['zwnj', ''],
  ['shy', ''],
]);

function decodeEntities(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]{2,8}));/gi, (written, decimal, hex, name) => {
    if (name) return entities.get(name.toLowerCase()) ?? written;
    const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code).toWellFormed() : '\ufffd';
  });
}

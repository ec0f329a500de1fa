/**
 * The first characters of a message, for a list: of its text, else of its HTML without tags.
 * Guarantee: one pass over at most 256 KiB. The result is plain text and not safe to use as HTML.
 */
import { decodeEntities, readHtmlPieces } from './html-text.ts';

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

const withinLine =
  /^<\/?(?:a|abbr|b|big|bdi|bdo|cite|code|em|font|i|ins|kbd|mark|q|s|small|span|strong|sub|sup|tt|u)\b/i;

function stripTags(html: string): string {
  const kept: string[] = [];
  for (const { kind, source } of readHtmlPieces(html)) {
    if (kind === 'text') kept.push(source);
    else if (!withinLine.test(source.slice(0, 12))) kept.push(' ');
  }
  return decodeEntities(kept.join(''));
}

/**
 * Address lists (RFC 5322 §3.4 with the old forms of §4.4, RFC 6532): groups flattened, comments and routes left out.
 * What has no addr-spec (`undisclosed-recipients:;`, `foo`) is left out as well. Encoded words are decoded in names,
 * quoted ones too because senders write them so, and never looked into for an address.
 * Guarantee: linear time; every address has a local part, one "@" that is not quoted, and a domain.
 */
import { decodeLine } from './encoded-words.ts';
import { findCommentEnd, findQuoteEnd, unquote } from './lexical.ts';

export interface Address {
  name: string | null;
  address: string;
}

interface Token {
  kind: 'word' | 'quoted' | 'literal' | 'comment' | 'special';
  text: string;
  /** a blank or a comment stands before it */
  isApart: boolean;
}

/** No address is longer than a line (RFC 5322 §2.1.1); names are cut there. */
const maxLength = 998;

/** The first `max` addresses, and whether there were more. */
export function readAddresses(value: string, max: number): { addresses: Address[]; isCut: boolean } {
  const addresses: Address[] = [];
  let mailbox: Token[] = [];
  let angle: 'closed' | 'opened' | 'route' | 'address' = 'closed';
  const endMailbox = () => {
    addresses.push(...readMailbox(mailbox, max + 1));
    mailbox = [];
    angle = 'closed';
  };
  for (const token of readTokens(value)) {
    const special = token.kind === 'special' ? token.text : '';
    // §4.4: in a route, `<@one,@two:ada@example.com>`, comma and colon are not what they are elsewhere.
    if (angle === 'opened' && token.kind !== 'comment') angle = special === '@' ? 'route' : 'address';
    if (special === '<') angle = 'opened';
    if (special === '>') angle = 'closed';
    if (special === ';' || (special === ',' && angle !== 'route')) endMailbox();
    else if (special === ':' && angle === 'closed') mailbox = [];
    else mailbox.push(token);
    if (addresses.length > max) break;
  }
  endMailbox();
  return { addresses: addresses.slice(0, max), isCut: addresses.length > max };
}

const encodedWord = /=\?[^?\s]+\?[bq]\?[^?\s]*\?=/iy;
const word = /[^\s"(<>,;:@.[]+/y;

function* readTokens(value: string): Generator<Token> {
  let isApart = false;
  let isOpenEnded = false;
  for (let i = 0; i < value.length; ) {
    const character = value[i] ?? '';
    const kind = isOpenEnded ? undefined : findKind(character);
    const end = kind ? findTokenEnd(value, i, kind) : -1;
    // What never closes opened nothing: the character is dropped, and no other is taken for an opening one.
    if (kind && end === -1) isOpenEnded = true;
    if (kind && end !== -1) {
      yield { kind, text: value.slice(i, end), isApart };
      isApart = kind === 'comment';
      i = end;
    } else if (/\s/.test(character)) {
      isApart = true;
      i++;
    } else if ('<>,;:@.'.includes(character)) {
      yield { kind: 'special', text: character, isApart };
      isApart = false;
      i++;
    } else {
      const text = matchAt(encodedWord, value, i) ?? matchAt(word, value, i);
      if (text !== undefined) yield { kind: 'word', text, isApart };
      isApart = text === undefined;
      i += text?.length ?? 1;
    }
  }
}

function findKind(character: string): 'quoted' | 'comment' | 'literal' | undefined {
  if (character === '"') return 'quoted';
  if (character === '(') return 'comment';
  return character === '[' ? 'literal' : undefined;
}

function findTokenEnd(value: string, start: number, kind: 'quoted' | 'comment' | 'literal'): number {
  if (kind === 'quoted') return findQuoteEnd(value, start);
  return kind === 'comment' ? findCommentEnd(value, start) : value.indexOf(']', start) + 1 || -1;
}

function matchAt(pattern: RegExp, value: string, place: number): string | undefined {
  pattern.lastIndex = place;
  return pattern.exec(value)?.[0];
}

/** No more than `max` of those that stand together without a comma. */
function readMailbox(tokens: readonly Token[], max: number): Address[] {
  const words = tokens.filter(({ kind }) => kind !== 'comment');
  const comment = tokens.findLast(({ kind }) => kind === 'comment');
  const aside = comment ? readName(unquote(comment.text)) : null;
  const angle = words.findLastIndex(({ kind, text }) => kind === 'special' && text === '<');
  if (angle !== -1) {
    const address = readAddrSpec(dropRoute(words.slice(angle + 1)));
    return address ? [{ name: readName(joinWords(words.slice(0, angle))) ?? aside, address }] : [];
  }
  const found: string[] = [];
  const rest: Token[] = [];
  for (const run of splitRuns(words)) {
    const address = readAddrSpec(run);
    if (address) found.push(address);
    else for (const token of run) rest.push(token);
    if (found.length === max) break;
  }
  const name = found.length === 1 ? (readName(joinWords(rest)) ?? aside) : null;
  return found.map((address) => ({ name, address }));
}

function dropRoute(tokens: readonly Token[]): Token[] {
  const end = tokens.findIndex(({ text }) => text === '>');
  const inner = tokens.slice(0, end === -1 ? undefined : end);
  return inner[0]?.text === '@' ? inner.slice(inner.findIndex(({ text }) => text === ':') + 1) : inner;
}

/** Words with blanks between them are apart, but for dots and "@": `ada . lovelace @ example.com` is one (§4.4). */
function* splitRuns(tokens: readonly Token[]): Generator<Token[]> {
  let run: Token[] = [];
  for (const token of tokens) {
    const isNew = token.isApart && token.kind !== 'special' && run.at(-1)?.kind !== 'special';
    if (isNew && run.length > 0) {
      yield run;
      run = [];
    }
    run.push(token);
  }
  if (run.length > 0) yield run;
}

function readAddrSpec(tokens: readonly Token[]): string | undefined {
  const at = tokens.findIndex(({ kind, text }) => kind === 'special' && text === '@');
  const local = joinLocal(tokens.slice(0, at));
  const domain = joinDotted(tokens.slice(at + 1), ['word', 'literal']);
  if (at === -1 || !local || !domain || local.length + domain.length >= maxLength) return undefined;
  return `${local}@${domain}`;
}

/** Quotes stay only where they are needed: with and without them it is the same mailbox (RFC 5321 §4.1.2). */
function joinLocal(tokens: readonly Token[]): string | undefined {
  const joined = joinDotted(tokens, ['word', 'quoted']);
  if (joined === undefined || joined.length > maxLength) return undefined;
  if (!tokens.some(({ kind }) => kind === 'quoted')) return joined;
  const isAtom = /^[^\s"(),:;<>@[\\\].]+(?:\.[^\s"(),:;<>@[\\\].]+)*$/.test(joined);
  return isAtom ? joined : `"${joined.replace(/["\\]/g, '\\$&')}"`;
}

/** Undefined unless words and dots take turns; a dot too many is let pass, as such mailboxes exist. */
function joinDotted(tokens: readonly Token[], kinds: readonly Token['kind'][]): string | undefined {
  let joined = '';
  let wasWord = false;
  for (const { kind, text } of tokens) {
    const isWord = kinds.includes(kind);
    if (isWord ? wasWord : text !== '.') return undefined;
    joined += kind === 'quoted' ? unquote(text) : text;
    wasWord = isWord;
  }
  return joined;
}

function joinWords(tokens: readonly Token[]): string {
  return tokens
    .map(({ kind, text, isApart }) => (isApart ? ' ' : '') + (kind === 'quoted' ? unquote(text) : text))
    .join('');
}

function readName(text: string): string | null {
  const name = decodeLine(text.trim().slice(0, 4 * maxLength)).replace(/\s+/g, ' ');
  return name === '' ? null : name.slice(0, maxLength).toWellFormed();
}

/**
 * Reads address lists (RFC 5322 §3.4 with the old forms of §4.4, RFC 6532). Groups are flattened; comments, routes and empty
 * groups (`undisclosed-recipients:;`) are dropped. Encoded words are decoded in names, also inside quotes because senders write
 * them there, and never searched for an address.
 * Guarantee: linear time; every address has a local part, one unquoted "@" and a domain.
 */
import { decodeLine } from './encoded-words.ts';
import { findCommentEnd, findQuoteEnd, trimBlanks, unquote } from './lexical.ts';

export interface Address {
  name: string | null;
  address: string;
}

/** What a person would see: where there is no usable address, `name` is what the sender wrote instead. */
export interface Mailbox {
  name: string | null;
  address: string | null;
}

interface Found {
  mailbox: Mailbox;
  cuts: Cuts;
}

/** What was too long: a name was cut, an address was left out. */
interface Cuts {
  name: boolean;
  address: boolean;
}

interface Token {
  kind: 'word' | 'quoted' | 'literal' | 'comment' | 'special';
  text: string;
  /** The blanks before it; a comment counts as one. Not only ASCII: a name may have U+3000 in it. */
  blanks: string;
}

/** RFC 5322 §2.1.1: the longest line. Longer addresses are dropped, longer names are cut. */
const maxLength = 998;

export function readAddresses(value: string, max: number): { addresses: Address[]; isCut: boolean } {
  const addresses: Address[] = [];
  for (const { mailbox } of readAll(value, max + 1)) {
    const { name, address } = mailbox;
    if (address !== null) addresses.push({ name, address });
    if (addresses.length > max) break;
  }
  return { addresses: addresses.slice(0, max), isCut: addresses.length > max };
}

/** `isCut`: there are more, or a name or an address is too long. */
export function readMailboxes(value: string, max: number): { mailboxes: Mailbox[]; isCut: boolean } {
  const mailboxes: Mailbox[] = [];
  let isCut = false;
  for (const { mailbox, cuts } of readAll(value, max + 1)) {
    isCut ||= cuts.name || cuts.address;
    mailboxes.push(mailbox);
    if (mailboxes.length > max) break;
  }
  return { mailboxes: mailboxes.slice(0, max), isCut: isCut || mailboxes.length > max };
}

interface Author {
  /** The first mailbox that has an address; if none has one, the first that has a name. */
  author: Mailbox | null;
  /** The name of the author is cut, or `isAddressCut`. */
  isCut: boolean;
  /** An address that would have been the author's is too long. */
  isAddressCut: boolean;
}

export function readAuthor(value: string): Author {
  let author: Found | null = null;
  let isAddressCut = false;
  for (const found of readAll(value, 2)) {
    isAddressCut ||= found.cuts.address;
    const hasAddress = found.mailbox.address !== null;
    if (hasAddress || author === null) author = found;
    if (hasAddress) break;
  }
  const isCut = isAddressCut || author?.cuts.name === true;
  return { author: author?.mailbox ?? null, isCut, isAddressCut };
}

/** At most `maxTogether` of those that no comma separates. */
function* readAll(value: string, maxTogether: number): Generator<Found> {
  let mailbox: Token[] = [];
  let angle: 'closed' | 'opened' | 'route' | 'address' = 'closed';
  for (const token of readTokens(value)) {
    const special = token.kind === 'special' ? token.text : '';
    // §4.4: in a route, `<@one,@two:ada@example.com>`, comma and colon do not separate addresses.
    if (angle === 'opened' && token.kind !== 'comment') angle = special === '@' ? 'route' : 'address';
    if (special === '<') angle = 'opened';
    if (special === '>') angle = 'closed';
    if (special === ';' || (special === ',' && angle !== 'route')) {
      yield* readTogether(mailbox, maxTogether);
      mailbox = [];
      angle = 'closed';
    } else if (special === ':' && angle === 'closed') mailbox = [];
    else mailbox.push(token);
  }
  yield* readTogether(mailbox, maxTogether);
}

const encodedWord = /=\?[^?\s]+\?[bq]\?[^?\s]*\?=/iy;
const word = /[^\s"(<>,;:@.[]+/y;

const enclosures = new Map<string, { kind: Token['kind']; findEnd(value: string, start: number): number }>([
  ['"', { kind: 'quoted', findEnd: findQuoteEnd }],
  ['(', { kind: 'comment', findEnd: findCommentEnd }],
  ['[', { kind: 'literal', findEnd: (value, start) => value.indexOf(']', start) + 1 || -1 }],
]);

function* readTokens(value: string): Generator<Token> {
  let blanks = '';
  let isOpenEnded = false;
  for (let i = 0; i < value.length; ) {
    const character = value[i] ?? '';
    const enclosure = isOpenEnded ? undefined : enclosures.get(character);
    const end = enclosure?.findEnd(value, i) ?? -1;
    // An unclosed opener is dropped, and no more openers are read after it: this keeps the time linear.
    if (enclosure && end === -1) isOpenEnded = true;
    if (enclosure && end !== -1) {
      yield { kind: enclosure.kind, text: value.slice(i, end), blanks };
      blanks = enclosure.kind === 'comment' ? ' ' : '';
      i = end;
    } else if (/\s/.test(character)) {
      blanks += character;
      i++;
    } else if ('<>,;:@.'.includes(character)) {
      yield { kind: 'special', text: character, blanks };
      blanks = '';
      i++;
    } else {
      const text = matchAt(encodedWord, value, i) ?? matchAt(word, value, i);
      if (text !== undefined) yield { kind: 'word', text, blanks };
      blanks = text === undefined ? ' ' : '';
      i += text?.length ?? 1;
    }
  }
}

function matchAt(pattern: RegExp, value: string, start: number): string | undefined {
  pattern.lastIndex = start;
  return pattern.exec(value)?.[0];
}

function readTogether(tokens: readonly Token[], max: number): Found[] {
  const cuts = { name: false, address: false };
  return readMailbox(tokens, max, cuts).map((mailbox) => ({ mailbox, cuts }));
}

/** The tokens between two commas may hold several addresses; at most `max` are read. */
function readMailbox(tokens: readonly Token[], max: number, cuts: Cuts): Mailbox[] {
  const words = tokens.filter(({ kind }) => kind !== 'comment');
  if (words.length === 0) return [];
  const comment = tokens.findLast(({ kind }) => kind === 'comment');
  const readComment = () => (comment ? readName(unquote(comment.text), cuts) : null);
  const angle = words.findLastIndex(({ kind, text }) => kind === 'special' && text === '<');
  if (angle !== -1) {
    const inside = dropRoute(words.slice(angle + 1));
    const address = readAddrSpec(inside, cuts) ?? readQuotedAddress(inside, cuts) ?? null;
    const name = readName(joinWords(words.slice(0, angle)), cuts) ?? readComment();
    return nameMailbox(name ?? (address === null ? readName(joinWords(inside), cuts) : null), address);
  }
  const quoted = readQuotedAddress(words, cuts);
  if (quoted) return [{ name: readComment(), address: quoted }];
  const found: string[] = [];
  const rest: Token[] = [];
  for (const run of splitRuns(words)) {
    const address = readAddrSpec(run, cuts);
    if (address) found.push(address);
    else for (const token of run) rest.push(token);
    if (found.length === max) break;
  }
  if (found.length > 1) return found.map((address) => ({ name: null, address }));
  const readWritten = () => readName(joinWords(rest), cuts);
  // `MAILER-DAEMON (Mail Delivery System)`: one word is in the place of the address, and the comment is the name.
  const isComment = found.length === 0 && rest.length === 1;
  const name = isComment ? (readComment() ?? readWritten()) : (readWritten() ?? readComment());
  return nameMailbox(name, found[0] ?? null);
}

function nameMailbox(name: string | null, address: string | null): Mailbox[] {
  return name === null && address === null ? [] : [{ name, address }];
}

function dropRoute(tokens: readonly Token[]): Token[] {
  const end = tokens.findIndex(({ text }) => text === '>');
  const inner = tokens.slice(0, end === -1 ? undefined : end);
  return inner[0]?.text === '@' ? inner.slice(inner.findIndex(({ text }) => text === ':') + 1) : inner;
}

/** Splits at blanks, but not around dots and "@": `ada . lovelace @ example.com` is one run (§4.4). */
function* splitRuns(tokens: readonly Token[]): Generator<Token[]> {
  let run: Token[] = [];
  for (const token of tokens) {
    const isNew = token.blanks !== '' && token.kind !== 'special' && run.at(-1)?.kind !== 'special';
    if (isNew && run.length > 0) {
      yield run;
      run = [];
    }
    run.push(token);
  }
  if (run.length > 0) yield run;
}

function readAddrSpec(tokens: readonly Token[], cuts: Cuts): string | undefined {
  const at = tokens.findIndex(({ kind, text }) => kind === 'special' && text === '@');
  if (at === -1) return undefined;
  const local = joinLocal(tokens.slice(0, at));
  const domain = joinDotted(tokens.slice(at + 1), ['word', 'literal']);
  if (!local || !domain) return undefined;
  if (local.length + domain.length < maxLength) return `${local}@${domain}`;
  cuts.address = true;
  return undefined;
}

/** `<"ada@example.com">`: the quotes are around the whole address. Readers see the address that the sender meant. */
function readQuotedAddress(tokens: readonly Token[], cuts: Cuts): string | undefined {
  const [only] = tokens;
  if (tokens.length !== 1 || only?.kind !== 'quoted') return undefined;
  return readAddrSpec([...readTokens(unquote(only.text))], cuts);
}

/** Drops needless quotes: the mailbox is the same with and without them (RFC 5321 §4.1.2). */
function joinLocal(tokens: readonly Token[]): string | undefined {
  const joined = joinDotted(tokens, ['word', 'quoted']);
  if (joined === undefined) return undefined;
  if (!tokens.some(({ kind }) => kind === 'quoted')) return joined;
  const isAtom = /^[^\s"(),:;<>@[\\\].]+(?:\.[^\s"(),:;<>@[\\\].]+)*$/.test(joined);
  return isAtom ? joined : `"${joined.replace(/["\\]/g, '\\$&')}"`;
}

/** Undefined if two words have no dot between them. Extra dots are allowed: such mailboxes exist. */
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
  return tokens.map(({ kind, text, blanks }) => blanks + (kind === 'quoted' ? unquote(text) : text)).join('');
}

/** Null: nothing but blanks. */
function readName(text: string, cuts: Cuts): string | null {
  const written = trimBlanks(text);
  const name = decodeLine(written.slice(0, 4 * maxLength)).replace(/[ \t\r\n]+/g, ' ');
  if (written.length > 4 * maxLength || name.length > maxLength) cuts.name = true;
  return name.trim() === '' ? null : name.slice(0, maxLength).toWellFormed();
}

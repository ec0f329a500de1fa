/**
 * Who sent a message, as far as DNS can tell: SPF, DKIM, DMARC and ARC, for the event to carry; nothing is refused for it.
 * Guarantees: never throws of itself, waits for DNS no longer than the deadline, asks DNS and nothing else. A DNS that does not
 * answer is `temperror` for what it was asked, while what was answered in time still counts; nothing else is `temperror`, for
 * it hides what DMARC says: a message must not get there by being large or odd.
 *
 * In three steps: DNS is asked for SPF and for the keys; the signatures are verified with these keys, which takes a processor
 * and no DNS and may be done elsewhere (`Verify`); DNS is asked for DMARC.
 *
 * SPF: RFC 7208. `none` over HTTP, where nobody connected. Of `<>` the HELO name is checked.
 * DKIM: RFC 6376 in the words of RFC 8601. `permerror`: no key, a revoked or unusable key, From not signed. `fail`: an expired
 * signature too. `policy`: RSA under 1024 bits, SHA-1 (RFC 8301), a body that goes on after what was signed (`l=`), since
 * anyone may have added that, or one that took too long to hash. A signature of an unknown algorithm, without domain or selector
 * or past the limits below is as if it were not there.
 * DMARC: RFC 9989, which replaced RFC 7489; the organizational domain is found by walking up the tree. `permerror`: no From,
 * several, or authors of several domains, so that nothing says whose policy holds. A record that cannot be read is none.
 */
import { isIP } from 'node:net';
import { Readable } from 'node:stream';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { domainToASCII } from 'node:url';
// By parts: half the time to load and 10 MB less than the whole, which brings BIMI, XML and HTTP along.
import { arc } from 'mailauth/lib/arc/index.js';
import { dkimVerify } from 'mailauth/lib/dkim/verify.js';
import { evaluateDmarc } from 'mailauth/lib/dmarc/index.js';
import { spf } from 'mailauth/lib/spf/index.js';
import { type Answer, makeResolver, type SharedResolver } from '../lib/resolver.ts';
import { readAddresses } from './address-list.ts';
import { cutHeader, gatherValues, readFields } from './headers.ts';

const spfResults = ['pass', 'fail', 'softfail', 'neutral', 'none', 'temperror', 'permerror'] as const;
const dkimResults = ['pass', 'fail', 'neutral', 'policy', 'temperror', 'permerror'] as const;
const dmarcResults = ['pass', 'fail', 'none', 'temperror', 'permerror'] as const;
const policies = ['none', 'quarantine', 'reject'] as const;

type SpfResult = (typeof spfResults)[number];
type DkimResult = (typeof dkimResults)[number];
type DmarcResult = (typeof dmarcResults)[number];
type ArcResult = 'pass' | 'fail' | 'none' | 'temperror';

export interface Authentication {
  /** `domain`: the one that was checked, of MAIL FROM or else of HELO. */
  spf: { result: SpfResult; domain: string | null };
  /** One for each signature, in the order of the message. `aligned`: of the author's domain, whether or not it verifies. */
  dkim: { result: DkimResult; domain: string | null; selector: string | null; aligned: boolean }[];
  /** `policy`: what the author's domain asks for mail that fails. `aligned`: null where there was nothing to judge by. */
  dmarc: { result: DmarcResult; policy: (typeof policies)[number] | null; aligned: boolean | null };
  arc: { result: ArcResult };
}

export interface Envelope {
  /** null: `<>` */
  mailFrom: string | null;
  remoteIp: string | null;
  helo: string | null;
}

/** What DNS says of the keys that a message names, by name in lower case: records, or the code of its error. */
export type Keys = ReadonlyMap<string, Answer | string>;

/** What the bytes of a message say with these keys. Rejects only where `authenticate` shall. */
export type Verify = (raw: Buffer, keys: Keys) => Promise<Signed>;

type Authenticate = (raw: Buffer, envelope: Envelope, verify?: Verify) => Promise<Authentication>;

/** Beyond these a header is not given to mailauth, whose time grows with the square of some of them. */
const maxHeaderBytes = 256 * 1024;
const maxHeaderLines = 4000;
const maxLineBytes = 64 * 1024;
const maxBlank = 500;
/** Of each signature every name is looked for among all fields. */
const maxSignedNames = 200;
const maxSignatures = 10;
/** Each way to hash the body takes it once more from end to end. Honest mail has one, or two. */
const maxBodyHashes = 4;
const maxHashingMs = 5000;
/** mailauth's time grows with the square of a line as well: 25 MiB of blanks took a minute. SMTP allows 1,000 bytes. */
const maxBodyLineBytes = 256 * 1024;
/** For SPF, for keys and for DMARC apart, so that none uses up what another needs. Honest mail asks less than 20. */
const maxQuestions = 50;
const chunkBytes = 64 * 1024;
const lineFeed = 0x0a;
/** As much of a header as the message is shown by; see structure.ts. */
const maxReadBytes = 512 * 1024;
const maxFields = 20_000;
const maxAuthors = 100;
/** So much is read of the header of a message that could not be verified. */
const unverifiedBytes = 64 * 1024;

export function makeAuthenticate(options: {
  dnsServers: readonly string[] | null;
  mailHost: string;
  deadlineMs?: number;
}): Authenticate {
  const { mailHost, deadlineMs = 5000 } = options;
  const resolver = makeResolver(options);
  const withLookUp = async <T>(ms: number, ask: (lookUp: LookUp) => Promise<T>): Promise<T> => {
    const controller = new AbortController();
    const timer = setTimeout(() => controller.abort(), ms);
    return await ask(makeLookUp(resolver, controller.signal)).finally(() => clearTimeout(timer));
  };

  return async (raw, envelope, verify = verifySignatures) => {
    // The rest is for DMARC: a sender's own slow names must not hide what the author's domain says of it.
    const gatherMs = deadlineMs * 0.7;
    const [sender, keys] = await Promise.all([
      withLookUp(gatherMs, (lookUp) => checkSpf(envelope, mailHost, lookUp)),
      withLookUp(gatherMs, (lookUp) => askForKeys(raw, lookUp)),
    ]);
    const signed = await verify(raw, keys);
    return withLookUp(deadlineMs - gatherMs, (lookUp) => judge(sender, signed, lookUp));
  };
}

interface LookUp {
  resolve(name: string, type: string): Promise<Answer>;
}

function makeLookUp(resolver: SharedResolver, signal: AbortSignal): LookUp {
  const asked = new Set<string>();
  return {
    async resolve(name, type) {
      asked.add(`${type} ${name}`);
      if (asked.size > maxQuestions) throw new Error('Too many DNS questions for one message.');
      return resolver.resolve(name, type, signal);
    },
  };
}

/** All at once, so that one that does not come holds up no other. */
async function askForKeys(raw: Buffer, lookUp: LookUp): Promise<Keys> {
  const fields = splitMessage(raw)?.fields.filter((field) => dkimOrArcField.test(field)) ?? [];
  // Those of DKIM first: they must be among the questions that are asked.
  const ordered = [...fields.filter(isSignature), ...fields.filter((field) => !isSignature(field))];
  const names = new Set(ordered.map((field) => readKeyName(readTags(field))).filter((name) => name !== null));
  const keys = new Map<string, Answer | string>();
  const ask = async (name: string) =>
    keys.set(
      name,
      await lookUp.resolve(name, 'TXT').catch((error: NodeJS.ErrnoException) => error.code ?? 'EREFUSED'),
    );
  await Promise.all([...names].map(ask));
  return keys;
}

/** As mailauth reads a list of tags (RFC 6376 §3.2), the last one of a name. */
function readTags(field: string): Map<string, string> {
  const value = Buffer.from(field.slice(field.indexOf(':') + 1), 'latin1').toString();
  return new Map(
    value.split(';').flatMap((tag) => {
      const equals = tag.indexOf('=');
      const name = tag.slice(0, equals).trim().toLowerCase();
      return equals === -1
        ? []
        : [
            [
              name,
              tag
                .slice(equals + 1)
                .replace(/\s+/g, ' ')
                .trim(),
            ] as const,
          ];
    }),
  );
}

function readKeyName(tags: ReadonlyMap<string, string>): string | null {
  const [domain, selector] = [tags.get('d'), tags.get('s')];
  return domain && selector ? keyName(selector, domain) : null;
}

/** RFC 8616 §3: DNS is asked for A-labels. */
function keyName(selector: unknown, domain: unknown): string {
  const name = `${selector}._domainkey.${domain}`.toLowerCase();
  return /^\p{ASCII}*$/u.test(name) ? name : domainToASCII(name) || name;
}

function isUnanswered(keys: Keys, name: string): boolean {
  const word = keys.get(name);
  return typeof word === 'string' && word !== 'ENOTFOUND' && word !== 'ENODATA';
}

type Spf = Authentication['spf'];

async function checkSpf(envelope: Envelope, mailHost: string, lookUp: LookUp): Promise<Spf> {
  const { mailFrom, remoteIp, helo } = envelope;
  if (remoteIp === null || (!mailFrom && !helo)) return { result: 'none', domain: null };
  try {
    const { status, domain } = await spf({
      sender: mailFrom ?? '',
      ip: remoteIp,
      // An address is no name that could have a record.
      helo: helo && isIP(helo) ? `[${helo}]` : (helo ?? ''),
      mta: mailHost,
      resolver: lookUp.resolve,
    });
    return { result: oneOf(spfResults, status.result) ?? 'temperror', domain: readName(domain) };
  } catch {
    return { result: 'permerror', domain: null };
  }
}

interface Signature {
  result: DkimResult;
  domain: string | null;
  selector: string | null;
  /** By the public suffix list, for when no DMARC record says how to compare. */
  related: boolean;
}

export interface Signed {
  dkim: Signature[];
  arc: ArcResult;
  /** As DMARC wants them. */
  authors: Authors;
}

interface Authors {
  headerFrom: string[];
  fromFields: number;
}

export async function verifySignatures(raw: Buffer, keys: Keys, hashingMs = maxHashingMs): Promise<Signed> {
  const authors = readAuthors(raw);
  const message = splitMessage(raw);
  try {
    if (message) return await verifyMessage(message, authors, keys, hashingMs);
  } catch {
    // As a header that mailauth is not given.
  }
  return { dkim: [], arc: 'none', authors };
}

/** Of a message that nobody signed, which is told by its header; null where there is something to verify. */
export function readUnsigned(raw: Buffer): Signed | null {
  const fields = splitMessage(raw)?.fields;
  if (!fields || fields.some((field) => dkimOrArcField.test(field))) return null;
  return { dkim: [], arc: 'none', authors: readAuthors(raw) };
}

/** Of a message that broke what should have verified it: DMARC goes by SPF alone. */
export function leaveUnverified(raw: Buffer): Signed {
  const head = cutHeader(raw, unverifiedBytes);
  const tags = (splitMessage(head)?.fields ?? []).filter(isSignature).map(readTags);
  const dkim = tags.map((one) => ({
    result: 'policy' as const,
    domain: readName(one.get('d')),
    selector: readName(one.get('s')),
    related: false,
  }));
  return { dkim, arc: 'none', authors: readAuthors(head) };
}

/**
 * By the reader that shows the message, so that whom it shows is who is judged. Of `<eve@one.example> <ada@other.example>`
 * mailauth takes the first and others the second.
 */
function readAuthors(raw: Buffer): Authors {
  const fields = readFields(cutHeader(raw, maxReadBytes), maxFields);
  const values = gatherValues(fields, ['from']).get('from') ?? [];
  const addresses = values.flatMap((value) => readAddresses(value, maxAuthors).addresses);
  return { headerFrom: addresses.map(({ address }) => address), fromFields: values.length };
}

async function verifyMessage(
  message: Message,
  authors: Authors,
  keys: Keys,
  hashingMs: number,
): Promise<Signed> {
  const resolver = (name: string) => recall(keys, name);
  const stream = makeStream(message, hashingMs);
  const verified = await dkimVerify(stream.readable, { resolver, rejectRsaSha1: true });
  const dkim = verified.results
    .filter(({ status }) => status.result !== 'none')
    .map(({ status, signingDomain, selector }) => ({
      result: readDkim(status, stream.cut, isUnanswered(keys, keyName(selector, signingDomain))),
      domain: readName(signingDomain),
      selector: readName(selector),
      related: Boolean(status.aligned),
    }));
  return {
    dkim,
    arc: await checkArc(verified.arc, keys, resolver),
    authors: { ...authors, fromFields: Math.max(authors.fromFields, verified.fromFields) },
  };
}

async function recall(keys: Keys, name: string): Promise<Answer> {
  const word = keys.get(name.toLowerCase()) ?? 'EREFUSED';
  if (typeof word === 'string') throw Object.assign(new Error('No such key.'), { code: word });
  return word;
}

/** What mailauth calls neutral and RFC 8601 does not. */
const dkimMeanings: Record<string, DkimResult | undefined> = {
  'body hash did not verify': 'fail',
  expired: 'fail',
  'invalid expiration': 'fail',
  'no key': 'permerror',
  'invalid public key': 'permerror',
  'unknown key version': 'permerror',
  'unknown key type': 'permerror',
  'inappropriate hash algorithm': 'permerror',
  'key not for email': 'permerror',
  'From field not signed': 'permerror',
};

function readDkim(
  status: { result: string; comment?: string; underSized?: number },
  isCut: boolean,
  isUnanswered: boolean,
): DkimResult {
  const found = oneOf(dkimResults, status.result) ?? 'neutral';
  const result = (found === 'neutral' && dkimMeanings[status.comment ?? '']) || found;
  // The hash of a part of the body says nothing, whatever it is.
  const isOpen = result === 'temperror' || (isCut && (result === 'pass' || result === 'fail'));
  if (isOpen) return isUnanswered ? 'temperror' : 'policy';
  return result === 'pass' && status.underSized ? 'policy' : result;
}

type Verified = Awaited<ReturnType<typeof dkimVerify>>;

async function checkArc(
  data: Verified['arc'],
  keys: Keys,
  resolver: (name: string) => Promise<Answer>,
): Promise<ArcResult> {
  if (!data?.chain && !data?.error) return 'none';
  const chain = data.chain || [];
  const { status } = await arc({ ...data, chain }, { resolver });
  if (status.result === 'pass') return 'pass';
  // For mailauth every failure of a chain is final; a key that did not come is not.
  const names = chain
    .flatMap((set) => [set['arc-seal'], set['arc-message-signature']])
    .map((header) => keyName(header?.parsed?.s?.value, header?.parsed?.d?.value));
  return !data.error && names.some((name) => isUnanswered(keys, name)) ? 'temperror' : 'fail';
}

async function judge(sender: Spf, signed: Signed, lookUp: LookUp): Promise<Authentication> {
  const { dmarc, isAligned } = await checkDmarc(sender, signed, lookUp);
  return {
    spf: sender,
    dkim: signed.dkim.map(({ related, ...signature }) => ({
      ...signature,
      aligned: isAligned ? isAligned(signature.domain) : related,
    })),
    dmarc,
    arc: { result: signed.arc },
  };
}

interface Judgement {
  dmarc: Authentication['dmarc'];
  /** By the record's own rule; null without a record. */
  isAligned: ((domain: string | null) => boolean) | null;
}

async function checkDmarc(sender: Spf, { dkim, authors }: Signed, lookUp: LookUp): Promise<Judgement> {
  const without = (result: DmarcResult): Judgement => ({
    dmarc: { result, policy: null, aligned: null },
    isAligned: null,
  });
  const compare = async (isMeant: (result: string) => boolean) => {
    const { response, dkimAligned } = await evaluateDmarc({
      ...authors,
      spfDomains: sender.domain && isMeant(sender.result) ? [sender.domain] : [],
      dkimDomains: dkim.flatMap(({ result, domain }) => (domain && isMeant(result) ? [{ domain }] : [])),
      resolver: lookUp.resolve,
    });
    const result = response && oneOf(dmarcResults, response.status.result);
    return { response, result: result || 'permerror', aligned: dkimAligned ?? new Set<string>() };
  };

  try {
    const { response, result, aligned } = await compare(isPass);
    const policy = response && oneOf(policies, response.policy);
    if (!policy) return without(result);

    const others = dkim.every((signature) => isPass(signature.result))
      ? []
      : (await compare(isFinal)).aligned;
    // It would pass if these did, and DNS did not say: that is no failure.
    const open = [sender, ...dkim].some((one) => isOpen(one.result)) ? await compare(isOpen) : null;
    const final = result === 'fail' && open && open.result !== 'fail' ? 'temperror' : result;
    const domains = new Set([...aligned, ...others, ...(open?.aligned ?? [])]);
    return {
      dmarc: {
        result: final,
        policy,
        aligned: final === 'temperror' ? null : final === 'pass',
      },
      isAligned: (domain) => domain !== null && domains.has(normalise(domain)),
    };
  } catch {
    return without('permerror');
  }
}

const isPass = (result: string) => result === 'pass';
const isOpen = (result: string) => result === 'temperror';
const isFinal = (result: string) => !isPass(result) && !isOpen(result);

interface Message {
  fields: string[];
  body: Buffer;
}

/** null: nothing for mailauth. A bare LF ends a line too, as it does for mailauth. */
function splitMessage(raw: Buffer): Message | null {
  const start = raw.toString('latin1', 0, maxHeaderBytes);
  const end = /^\r?\n|\r?\n\r?\n/.exec(start);
  if (!end && raw.length > maxHeaderBytes) return null;
  const head = end ? start.slice(0, end.index) : start;
  const lines = head.split(/\r?\n/);
  if (lines.length > maxHeaderLines || lines.some((line) => line.length > maxLineBytes)) return null;
  if (head.match(/[ \t\r\n]+/g)?.some((blank) => blank.length > maxBlank)) return null;
  const body = end ? raw.subarray(end.index + end[0].length) : Buffer.alloc(0);
  return { fields: limitSignatures(lines.join('\r\n').split(/\r\n(?![ \t])/)), body };
}

function limitSignatures(fields: readonly string[]): string[] {
  const bodyHashes = new Set<string>();
  let signatures = 0;
  return fields.filter((field) => {
    if (!dkimOrArcField.test(field)) return true;
    const tags = readTags(field);
    if ((tags.get('h') ?? '').split(':').length > maxSignedNames) return false;
    if (!isSignature(field)) return true;
    const [, canonicalization] = (tags.get('c') ?? '').toLowerCase().split('/');
    bodyHashes.add(`${canonicalization} ${tags.get('a')?.toLowerCase()} ${tags.get('l')}`);
    return ++signatures <= maxSignatures && bodyHashes.size <= maxBodyHashes;
  });
}

const dkimField = /^dkim-signature\s*:/i;
const dkimOrArcField = /^(?:dkim-signature|arc-[a-z-]+)\s*:/i;

function isSignature(field: string): boolean {
  return dkimField.test(field);
}

/** For mailauth: line ends made whole, the body only where it is signed, and not to its end where that takes too long (`cut`). */
function makeStream({ fields, body }: Message, hashingMs: number): { readable: Readable; cut: boolean } {
  const until = performance.now() + hashingMs;
  const stream = { readable: Readable.from(read()), cut: false };
  return stream;

  async function* read() {
    yield Buffer.from(`${fields.join('\r\n')}\r\n\r\n`, 'latin1');
    if (!fields.some((field) => dkimOrArcField.test(field))) return;
    for (let at = 0; at < body.length && !stream.cut; ) {
      const end = findCut(body, at + chunkBytes);
      yield endLines(body.subarray(at, end));
      at = end;
      await nextTurn();
      const line = at - body.lastIndexOf(lineFeed, at - 1);
      stream.cut = at < body.length && (performance.now() > until || line > maxBodyLineBytes);
    }
  }
}

/** Not between CR and LF. */
function findCut(body: Buffer, at: number): number {
  return body[at] === lineFeed && body[at - 1] === 0x0d ? at + 1 : Math.min(at, body.length);
}

function endLines(chunk: Buffer): Buffer {
  const text = chunk.toString('latin1');
  const whole = text.replace(/(?<!\r)\n/g, '\r\n');
  return whole === text ? chunk : Buffer.from(whole, 'latin1');
}

/** A name that can be shown and stored; mail says anything. */
function readName(name: string | undefined): string | null {
  return name && /^[\p{L}\p{N}_][\p{L}\p{M}\p{N}._-]{0,252}$/u.test(name) ? name.toLowerCase() : null;
}

function normalise(domain: string): string {
  return (domainToASCII(domain) || domain).replace(/\.+$/, '');
}

function oneOf<T extends string>(known: readonly T[], value: string): T | null {
  return known.find((one) => one === value) ?? null;
}

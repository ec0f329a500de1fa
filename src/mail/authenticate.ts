/**
 * Who sent a message, as far as DNS can tell: SPF, DKIM, DMARC and ARC, for the event to carry; nothing is refused for it.
 * Guarantees: never throws, ends with the deadline, asks DNS and nothing else, and a DNS that does not answer is `temperror`
 * for what it was asked, while what was answered in time still counts.
 *
 * SPF: RFC 7208. `none` over HTTP, where nobody connected. Of `<>` the HELO name is checked.
 * DKIM: RFC 6376 in the words of RFC 8601. `permerror`: no key, a revoked or unusable key, From not signed. `fail`: an expired
 * signature too. `policy`: RSA under 1024 bits, SHA-1 (RFC 8301), or a body that goes on after what was signed (`l=`), since
 * anyone may have added that. A signature of an unknown algorithm or without domain or selector is as if it were not there.
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

/** Of a message that could not be looked at. */
export const unknownAuthentication: Authentication = {
  spf: { result: 'temperror', domain: null },
  dkim: [],
  dmarc: { result: 'temperror', policy: null, aligned: null },
  arc: { result: 'temperror' },
};

export interface Envelope {
  /** null: `<>` */
  mailFrom: string | null;
  remoteIp: string | null;
  helo: string | null;
}

export type Authenticate = (raw: Buffer, envelope: Envelope) => Promise<Authentication>;

/** Beyond these a header is not read at all: mailauth's time grows with the square of some of them. */
const maxHeaderBytes = 256 * 1024;
const maxHeaderLines = 4000;
const maxLineBytes = 16 * 1024;
/** Each may want the body hashed anew. */
const maxSignatures = 10;
/** For SPF, for keys and for DMARC apart, so that none uses up what another needs. Honest mail asks less than 20. */
const maxQuestions = 50;
const chunkBytes = 64 * 1024;

export function makeAuthenticate(options: {
  dnsServers: readonly string[] | null;
  mailHost: string;
  deadlineMs?: number;
}): Authenticate {
  const { mailHost, deadlineMs = 5000 } = options;
  const resolver = makeResolver(options);

  return async (raw, envelope) => {
    const whole = startDeadline(deadlineMs);
    // The rest is for DMARC: a sender's own slow names must not hide what the author's domain says of it.
    const gathering = startDeadline(deadlineMs * 0.7);
    try {
      const [sender, signed] = await Promise.all([
        checkSpf(envelope, mailHost, makeLookUp(resolver, gathering.signal)),
        checkSignatures(raw, makeLookUp(resolver, gathering.signal), gathering.signal),
      ]);
      return await judge(sender, signed, makeLookUp(resolver, whole.signal));
    } finally {
      gathering.clear();
      whole.clear();
    }
  };
}

interface Deadline {
  signal: AbortSignal;
  clear(): void;
}

function startDeadline(ms: number): Deadline {
  const controller = new AbortController();
  const timer = setTimeout(() => controller.abort(), ms);
  return { signal: controller.signal, clear: () => clearTimeout(timer) };
}

interface LookUp {
  resolve(name: string, type: string): Promise<Answer>;
  /** The names of which DNS did not say whether they exist, in lower case. */
  unanswered: Set<string>;
}

function makeLookUp(resolver: SharedResolver, signal: AbortSignal): LookUp {
  const asked = new Set<string>();
  const unanswered = new Set<string>();
  return {
    unanswered,
    async resolve(name, type) {
      asked.add(`${type} ${name}`);
      try {
        if (asked.size > maxQuestions) throw new Error('Too many DNS questions for one message.');
        return await resolver.resolve(name, type, signal);
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException;
        if (code !== 'ENOTFOUND' && code !== 'ENODATA') unanswered.add(name.toLowerCase());
        throw error;
      }
    },
  };
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

interface Signed {
  dkim: Signature[];
  arc: ArcResult;
  /** The authors, as DMARC wants them; null when the header could not be read. */
  from: { headerFrom: string[]; fromFields: number } | null;
}

async function checkSignatures(raw: Buffer, keys: LookUp, signal: AbortSignal): Promise<Signed> {
  const message = splitMessage(raw);
  try {
    if (message) return await verifySignatures(message, keys, signal);
  } catch {
    // As a header that could not be read.
  }
  return { dkim: [], arc: 'none', from: null };
}

async function verifySignatures(message: Message, keys: LookUp, signal: AbortSignal): Promise<Signed> {
  askForKeys(message.fields, keys);
  const stream = makeStream(message, signal);
  const verified = await dkimVerify(stream.readable, {
    resolver: keys.resolve,
    rejectRsaSha1: true,
  });
  const { results, headerFrom, fromFields } = verified;
  const dkim = results
    .filter(({ status }) => status.result !== 'none')
    .map((signature) => ({
      result: stream.cut ? 'temperror' : readDkim(signature.status),
      domain: readName(signature.signingDomain),
      selector: readName(signature.selector),
      related: Boolean(signature.status.aligned),
    }));
  return { dkim, arc: await checkArc(verified.arc, stream.cut, keys), from: { headerFrom, fromFields } };
}

/** mailauth asks for one key after the other; so one that does not come holds up no other. */
function askForKeys(fields: readonly string[], keys: LookUp): void {
  for (const field of fields.filter(isSignature)) {
    const tags = field.replace(/\s+/g, '');
    const domain = /[:;]d=([^;]+)/i.exec(tags)?.[1];
    const selector = /[:;]s=([^;]+)/i.exec(tags)?.[1];
    if (domain && selector) keys.resolve(`${selector}._domainkey.${domain}`, 'TXT').catch(() => {});
  }
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

function readDkim(status: { result: string; comment?: string; underSized?: number }): DkimResult {
  const result = oneOf(dkimResults, status.result) ?? 'neutral';
  if (result === 'pass' && status.underSized) return 'policy';
  return (result === 'neutral' && dkimMeanings[status.comment ?? '']) || result;
}

type Verified = Awaited<ReturnType<typeof dkimVerify>>;

async function checkArc(data: Verified['arc'], cut: boolean, keys: LookUp): Promise<ArcResult> {
  if (!data?.chain && !data?.error) return 'none';
  const chain = data.chain || [];
  const { status } = await arc({ ...data, chain }, { resolver: keys.resolve });
  if (status.result === 'pass') return 'pass';
  // For mailauth every failure of a chain is final; a key that did not come is not.
  const names = chain.flatMap((set) => [set['arc-seal'], set['arc-message-signature']]).map(readKeyName);
  return !data.error && (cut || names.some((name) => keys.unanswered.has(name))) ? 'temperror' : 'fail';
}

function readKeyName(
  header: { parsed?: Partial<Record<'s' | 'd', { value?: unknown }>> } | undefined,
): string {
  return `${header?.parsed?.s?.value}._domainkey.${header?.parsed?.d?.value}`.toLowerCase();
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

async function checkDmarc(sender: Spf, { dkim, from }: Signed, lookUp: LookUp): Promise<Judgement> {
  const without = (result: DmarcResult): Judgement => ({
    dmarc: { result, policy: null, aligned: null },
    isAligned: null,
  });
  if (!from) return without('permerror');

  const compare = async (isMeant: (result: string) => boolean) => {
    const { response, dkimAligned } = await evaluateDmarc({
      ...from,
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

/** null: the header is too long to be read. A bare LF ends a line too, as it does for mailauth. */
function splitMessage(raw: Buffer): Message | null {
  const start = raw.toString('latin1', 0, maxHeaderBytes);
  const end = /^\r?\n|\r?\n\r?\n/.exec(start);
  if (!end && raw.length > maxHeaderBytes) return null;
  const head = end ? start.slice(0, end.index) : start;
  const lines = head.split(/\r?\n/);
  if (lines.length > maxHeaderLines || lines.some((line) => line.length > maxLineBytes)) return null;
  const body = end ? raw.subarray(end.index + end[0].length) : Buffer.alloc(0);
  let signatures = 0;
  const fields = lines
    .join('\r\n')
    .split(/\r\n(?![ \t])/)
    .filter((field) => !isSignature(field) || ++signatures <= maxSignatures);
  return { fields, body };
}

const dkimField = /^dkim-signature\s*:/i;
const dkimOrArcField = /^(?:dkim-signature|arc-[a-z-]+)\s*:/i;

function isSignature(field: string): boolean {
  return dkimField.test(field);
}

/** For mailauth: line ends made whole, the body only where it is signed, and no more of it after the signal (`cut`). */
function makeStream({ fields, body }: Message, signal: AbortSignal): { readable: Readable; cut: boolean } {
  const stream = { readable: Readable.from(read()), cut: false };
  return stream;

  async function* read() {
    yield Buffer.from(`${fields.join('\r\n')}\r\n\r\n`, 'latin1');
    if (!fields.some((field) => dkimOrArcField.test(field))) return;
    for (let at = 0; at < body.length && !stream.cut; ) {
      const end = findCut(body, at + chunkBytes);
      yield endLines(body.subarray(at, end));
      at = end;
      // Hashing 25 MiB takes a while, and others have their turn in it.
      await nextTurn();
      stream.cut = signal.aborted && at < body.length;
    }
  }
}

/** Not between CR and LF. */
function findCut(body: Buffer, at: number): number {
  return body[at] === 0x0a && body[at - 1] === 0x0d ? at + 1 : Math.min(at, body.length);
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

/**
 * Who sent a message, as far as DNS can tell: SPF, DKIM, DMARC and ARC, for the event to carry; nothing is refused for it.
 * Guarantees: never throws of itself, waits for DNS no longer than the deadline, asks DNS and nothing else. A DNS that does not
 * answer is `temperror` for what it was asked, while what was answered in time still counts; nothing else is `temperror`, for
 * it hides what DMARC says: a message must not get there by being large or odd.
 *
 * In three steps: DNS is asked for SPF and for the keys; the signatures are verified with these keys (signatures.ts), which
 * takes a processor and no DNS and may be done elsewhere (`Verify`); DNS is asked for DMARC.
 *
 * SPF: RFC 7208. `none` over HTTP, where nobody connected. Of `<>` the HELO name is checked.
 * DMARC: RFC 9989, which replaced RFC 7489; the organizational domain is found by walking up the tree. `permerror`: no From,
 * several, or authors of several domains, so that nothing says whose policy holds. A record that cannot be read is none.
 */
import { isIP } from 'node:net';
import { domainToASCII } from 'node:url';
// By its documented parts: half the time to load and 10 MB less than the whole, which brings BIMI, XML and HTTP along. What we rely
// on in them is in test/mailauth-contract.test.ts.
import { evaluateDmarc } from 'mailauth/lib/dmarc/index.js';
import { spf } from 'mailauth/lib/spf/index.js';
import { getDomain } from 'tldts';
import { type DnsClient, makeDnsClient, type RecordType, withDeadline } from '../net/dns.ts';
import type { ArcResult } from './arc.ts';
import {
  type DkimResult,
  type Keys,
  readKeyName,
  readName,
  type SignedMessage,
  splitMessage,
} from './dkim.ts';
import { listSignatures, type SignatureResults, verifySignatures } from './signatures.ts';

const spfResults = ['pass', 'fail', 'softfail', 'neutral', 'none', 'temperror', 'permerror'] as const;
const dmarcResults = ['pass', 'fail', 'none', 'temperror', 'permerror'] as const;
const policies = ['none', 'quarantine', 'reject'] as const;

type SpfResult = (typeof spfResults)[number];
type DmarcResult = (typeof dmarcResults)[number];

export interface Authentication {
  /** `domain`: the one that was checked, of MAIL FROM or else of HELO. */
  spf: { result: SpfResult; domain: string | null };
  /** One for each signature, in the order of the message. `aligned`: of the author's domain, whether or not it verifies. */
  dkim: { result: DkimResult; domain: string | null; selector: string | null; aligned: boolean }[];
  /** `policy`: what the author's domain asks for mail that fails. `aligned`: null where there was nothing to judge by. */
  dmarc: { result: DmarcResult; policy: (typeof policies)[number] | null; aligned: boolean | null };
  arc: { result: ArcResult };
}

export interface MailOrigin {
  /** null: `<>` */
  mailFrom: string | null;
  remoteIp: string | null;
  helo: string | null;
}

/** What the bytes of a message say with these keys. Rejects only where `authenticate` shall. */
export type Verify = (
  raw: Buffer,
  keys: Keys,
  message: SignedMessage | null,
) => SignatureResults | Promise<SignatureResults>;

type Authenticate = (raw: Buffer, envelope: MailOrigin, verify?: Verify) => Promise<Authentication>;

/** For SPF, for keys and for DMARC apart, so that none uses up what another needs. Honest mail asks less than 20. */
const maxQuestions = 50;

export function makeAuthenticate(options: {
  dnsServers: readonly string[] | null;
  mailHost: string;
  deadlineMs?: number;
}): Authenticate {
  const { dnsServers, mailHost, deadlineMs = 5000 } = options;
  // Thousands of messages ask alike.
  const dns = makeDnsClient({ dnsServers, keepMs: 60_000 });

  return async (raw, envelope, verify = verifySignatures) => {
    // The rest is for DMARC: a sender's own slow names must not hide what the author's domain says of it.
    const gatherMs = deadlineMs * 0.7;
    const message = splitMessage(raw);
    const [sender, keys] = await Promise.all([
      withDeadline(gatherMs, (signal) => checkSpf(envelope, mailHost, makeMailauthResolver(dns, signal))),
      withDeadline(gatherMs, (signal) => askForKeys(message, dns, signal)),
    ]);
    const signed = await verify(raw, keys, message);
    return withDeadline(deadlineMs - gatherMs, (signal) =>
      judge(sender, signed, makeMailauthResolver(dns, signal)),
    );
  };
}

type Resolver = (name: string, type: string) => Promise<string[]>;

/** The same errors for all: to make one takes a sixth of a message's time. mailauth copies them before it changes them. */
const [noName, noRecord] = ['ENOTFOUND', 'ENODATA'].map((code) =>
  Object.assign(new Error('DNS has no such record.'), { code }),
);

/** For one message. mailauth wants Node's error codes where DNS has nothing or does not answer. */
export function makeMailauthResolver(dns: DnsClient, signal: AbortSignal): Resolver {
  const asked = new Set<string>();
  return async (name, type) => {
    asked.add(`${type} ${name}`);
    if (asked.size > maxQuestions) throw new Error('Too many DNS questions for one message.');
    const answer = await dns.resolve(name, type as RecordType, signal);
    if (answer.kind === 'none') throw answer.why === 'no_such_record' ? noRecord : noName;
    if (answer.kind === 'unknown') throw Object.assign(new Error(answer.reason), { code: 'ETIMEOUT' });
    // An MX is an object; mailauth's types do not say so.
    return answer.values as string[];
  };
}

/** All at once, so that one that does not come holds up no other. */
async function askForKeys(message: SignedMessage | null, dns: DnsClient, signal: AbortSignal): Promise<Keys> {
  const { dkim, arc } = listSignatures(message?.fields ?? []);
  // Those of DKIM first: they must be among the questions that are asked. The rest is not known to anyone, and no outage.
  const named = new Set([...dkim, ...arc].map(readKeyName).filter((name) => name !== null));
  const names = [...named].slice(0, maxQuestions);
  const answers = names.map(async (name) => [name, await dns.resolve(name, 'TXT', signal)] as const);
  return new Map(await Promise.all(answers));
}

type Spf = Authentication['spf'];

async function checkSpf(envelope: MailOrigin, mailHost: string, resolver: Resolver): Promise<Spf> {
  const { mailFrom, remoteIp, helo } = envelope;
  if (remoteIp === null || (!mailFrom && !helo)) return { result: 'none', domain: null };
  try {
    const { status, domain } = await spf({
      sender: mailFrom ?? '',
      ip: remoteIp,
      // An address is no name that could have a record.
      helo: helo && isIP(helo) ? `[${helo}]` : (helo ?? ''),
      mta: mailHost,
      resolver,
    });
    return { result: oneOf(spfResults, status.result) ?? 'temperror', domain: readName(domain) };
  } catch {
    return { result: 'permerror', domain: null };
  }
}

async function judge(sender: Spf, signed: SignatureResults, resolver: Resolver): Promise<Authentication> {
  const { dmarc, isAligned } = await checkDmarc(sender, signed, resolver);
  const author = readAuthorDomain(signed.authors);
  return {
    spf: sender,
    dkim: signed.dkim.map((signature) => ({
      ...signature,
      aligned:
        author !== null && (isAligned ? isAligned(signature.domain) : isRelated(signature.domain, author)),
    })),
    dmarc,
    arc: { result: signed.arc },
  };
}

/** Null where it is not clear: several From fields, one of which a signature may not cover, or authors of several domains. */
function readAuthorDomain({ headerFrom, fromFields }: SignatureResults['authors']): string | null {
  const domains = new Set(
    headerFrom.map((address) => normalise(address.slice(address.lastIndexOf('@') + 1))),
  );
  const [domain] = domains;
  return fromFields === 1 && domains.size === 1 ? (domain ?? null) : null;
}

/** By the public suffix list, where no DMARC record says how to compare. */
function isRelated(domain: string | null, author: string): boolean {
  const organization = (name: string) => getDomain(normalise(name), { allowPrivateDomains: true });
  const found = domain === null ? null : organization(domain);
  return found !== null && found === organization(author);
}

interface Judgement {
  dmarc: Authentication['dmarc'];
  /** By the record's own rule; null without a record. */
  isAligned: ((domain: string | null) => boolean) | null;
}

async function checkDmarc(
  sender: Spf,
  { dkim, authors }: SignatureResults,
  resolver: Resolver,
): Promise<Judgement> {
  const without = (result: DmarcResult): Judgement => ({
    dmarc: { result, policy: null, aligned: null },
    isAligned: null,
  });
  const compare = async (isMeant: (result: string) => boolean) => {
    const { response, dkimAligned } = await evaluateDmarc({
      ...authors,
      spfDomains: sender.domain && isMeant(sender.result) ? [sender.domain] : [],
      dkimDomains: dkim.flatMap(({ result, domain }) => (domain && isMeant(result) ? [{ domain }] : [])),
      resolver,
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

function normalise(domain: string): string {
  return (domainToASCII(domain) || domain).replace(/\.+$/, '').toLowerCase();
}

function oneOf<T extends string>(known: readonly T[], value: string): T | null {
  return known.find((one) => one === value) ?? null;
}

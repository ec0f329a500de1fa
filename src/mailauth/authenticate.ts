/**
 * Authenticates the sender of a message with SPF, DKIM, DMARC and ARC. The results go into the event; no mail is refused for them.
 * Guarantees: rejects only if `verify` rejects; waits for DNS no longer than the deadline; uses no network but DNS. `temperror`
 * always means that DNS did not answer: a sender must not be able to get it with a large or odd message, because it hides DMARC.
 *
 * Three steps: query DNS for SPF and the keys; verify the signatures (signatures.ts; no DNS, may run in a worker); query DNS for
 * DMARC.
 *
 * SPF: RFC 7208. `none` for mail from the API, where no server connected. For `<>` the HELO name is checked. mailauth forgives
 * mistakes in records (its docs/spf.md, "Strict Mode"); test/spf-vectors/exceptions.ts lists every result that is not the RFC's.
 * DMARC: RFC 9989, which replaced RFC 7489; the organizational domain is found by walking up the tree. `permerror`: no From field,
 * several of them, one that cannot be read, or authors of several domains; `policy` is then the strictest of all authors. An
 * unreadable record counts as none.
 */
import { isIP } from 'node:net';
// These entry points load in half the time and take 10 MB less than the whole package, which adds BIMI, XML and HTTP.
// test/mailauth-contract.test.ts has what we rely on.
import { evaluateDmarc } from 'mailauth/lib/dmarc/index.js';
import { spf } from 'mailauth/lib/spf/index.js';
import { getDomain } from 'tldts';
import { type DnsClient, makeDnsClient, type RecordType, withDeadline } from '../net/dns.ts';
import type { ArcResult } from './arc.ts';
import { tooMany } from './authors.ts';
import { type Keys, readKeyName, type SignedMessage, splitMessage, type Verdict } from './dkim.ts';
import { readDomain, readName } from './domain.ts';
import { listSignatures, type SignatureResults, verifySignatures } from './signatures.ts';

const spfResults = ['pass', 'fail', 'softfail', 'neutral', 'none', 'temperror', 'permerror'] as const;
const dmarcResults = ['pass', 'fail', 'none', 'temperror', 'permerror'] as const;
/** From the weakest to the strictest. */
const policies = ['none', 'quarantine', 'reject'] as const;

type SpfResult = (typeof spfResults)[number];
type DmarcResult = (typeof dmarcResults)[number];

export interface Authentication {
  /** `domain`: of MAIL FROM, or of HELO for `<>`. */
  spf: { result: SpfResult; domain: string | null };
  /** In the order of the header fields. `aligned`: the signing domain is the author's, whether or not the signature verifies. */
  dkim: (Verdict & { domain: string | null; selector: string | null; aligned: boolean })[];
  /** `policy`: what the author's domain asks for mail that is not authenticated. `aligned`: null if DMARC gave no decision. */
  dmarc: {
    result: DmarcResult;
    policy: (typeof policies)[number] | null;
    aligned: boolean | null;
    /** A sentence for people. Null: nothing is wrong. */
    reason: string | null;
  };
  arc: { result: ArcResult };
}

/** Who sent a message, as far as SMTP knows. */
export interface MailOrigin {
  /** Null: `<>`. */
  mailFrom: string | null;
  remoteIp: string | null;
  helo: string | null;
}

export type Verify = (
  raw: Buffer,
  keys: Keys,
  message: SignedMessage | null,
) => SignatureResults | Promise<SignatureResults>;

type Authenticate = (raw: Buffer, origin: MailOrigin, verify?: Verify) => Promise<Authentication>;

/** For the keys, and for the policy of each author, so that none uses up the limit of another. Real mail needs less than 20. */
const maxQueries = 50;
/** RFC 7208 §4.6.4 allows 10 terms with 10 hosts each. mailauth asks for both types of address, and counts the terms itself. */
const maxSpfQueries = 250;

export function makeAuthenticate(options: {
  dnsServers: readonly string[] | null;
  mailHost: string;
  deadlineMs?: number;
}): Authenticate {
  const { dnsServers, mailHost, deadlineMs = 5000 } = options;
  // Cached: thousands of messages need the same records.
  const dns = makeDnsClient({ dnsServers, keepMs: 60_000 });

  return async (raw, origin, verify = verifySignatures) => {
    // DMARC gets the rest: slow DNS names of the sender must not hide the policy of the author's domain.
    const senderMs = deadlineMs * 0.7;
    const message = splitMessage(raw);
    const [sender, keys] = await Promise.all([
      withDeadline(senderMs, (signal) => evaluateSpf(origin, mailHost, dns, signal)),
      withDeadline(senderMs, (signal) => queryKeys(message, dns, signal)),
    ]);
    const signed = await verify(raw, keys, message);
    const { dmarc, isAligned } = await withDeadline(deadlineMs - senderMs, (signal) =>
      checkDmarc(sender, signed, () => makeMailauthResolver(dns, signal)),
    );
    const dkim = signed.dkim.map((signature) => ({ ...signature, aligned: isAligned(signature.domain) }));
    return { spf: sender, dkim, dmarc, arc: { result: signed.arc } };
  };
}

type Resolver = (name: string, type: string) => Promise<string[]>;

/** Shared: making an error takes a sixth of a message's time. mailauth copies errors before it changes them. */
const [noName, noRecord] = ['ENOTFOUND', 'ENODATA'].map((code) =>
  Object.assign(new Error('DNS has no such record.'), { code }),
);

/** For mailauth's SPF it is an error of the record. A `temperror` would let the sender past DMARC. */
const excess = Object.assign(new Error('Too many DNS queries for one message.'), {
  spfResult: { error: 'permerror', text: 'Too many DNS queries' },
});

/** For one message. mailauth expects Node's error codes if DNS has no record or does not answer. */
export function makeMailauthResolver(dns: DnsClient, signal: AbortSignal, limit = maxQueries): Resolver {
  const queries = new Set<string>();
  return async (name, type) => {
    queries.add(`${type} ${name}`);
    if (queries.size > limit) throw excess;
    const answer = await dns.resolve(name, type as RecordType, signal);
    if (answer.kind === 'none') throw answer.why === 'no_such_record' ? noRecord : noName;
    if (answer.kind === 'unknown') throw Object.assign(new Error(answer.reason), { code: 'ETIMEOUT' });
    // An MX record is an object, although mailauth's types say string.
    return answer.values as string[];
  };
}

/** All at once, so that a slow answer delays no other. */
async function queryKeys(message: SignedMessage | null, dns: DnsClient, signal: AbortSignal): Promise<Keys> {
  const { dkim, arc } = listSignatures(message?.fields ?? []);
  // DKIM first: its keys must be within the limit. A key above the limit is `policy`, not `temperror`.
  const named = new Set([...dkim, ...arc].map(readKeyName).filter((name) => name !== null));
  const names = [...named].slice(0, maxQueries);
  const answers = names.map(async (name) => [name, await dns.resolve(name, 'TXT', signal)] as const);
  return new Map(await Promise.all(answers));
}

type Spf = Authentication['spf'];

/** By the record of the sender's domain as DNS has it now. */
export function evaluateSpf(
  origin: MailOrigin,
  mailHost: string,
  dns: DnsClient,
  signal: AbortSignal,
): Promise<Spf> {
  return checkSpf(origin, mailHost, makeMailauthResolver(dns, signal, maxSpfQueries));
}

async function checkSpf(origin: MailOrigin, mailHost: string, resolver: Resolver): Promise<Spf> {
  const { mailFrom, remoteIp, helo } = origin;
  if (remoteIp === null || (!mailFrom && !helo)) return { result: 'none', domain: null };
  const evaluateAs = async (name: string): Promise<Spf> => {
    const { status, domain } = await spf({
      ...{ sender: mailFrom ?? '', ip: remoteIp, helo: name, mta: mailHost, resolver },
    });
    return { result: oneOf(spfResults, status.result) ?? 'temperror', domain: readName(domain) };
  };
  try {
    // An IP address is not a name that can have a record.
    const checked = await evaluateAs(helo && isIP(helo) ? `[${helo}]` : (helo ?? ''));
    // RFC 7208 §4.8: a record is not wrong because of what HELO says. mailauth checks names after it expanded `%{h}`.
    const isHost = /^(?:[^.]+\.)+[a-z][a-z0-9-]*$/.test(readDomain(helo) ?? '');
    const mayBeHelo = checked.result === 'permerror' && mailFrom && !isHost;
    return mayBeHelo ? await evaluateAs(noSuchHost) : checked;
  } catch {
    return { result: 'permerror', domain: null };
  }
}

/** RFC 6761 §6.4: no such name exists. */
const noSuchHost = 'helo.invalid';

/** By the public suffix list, for authors without a DMARC record. */
function isSameOrganization(domain: string | null, author: string): boolean {
  const organization = (name: string) => getDomain(name, { allowPrivateDomains: true });
  const found = domain === null ? null : organization(domain);
  return found !== null && found === organization(author);
}

interface DmarcDecision {
  dmarc: Authentication['dmarc'];
  /** Whether a signing domain is the author's: by the DMARC record, else by the public suffix list. */
  isAligned(domain: string | null): boolean;
}

/** Evaluates DMARC for mail of `author` as if exactly these domains had passed. */
async function evaluate(author: string, spfDomains: string[], signers: string[], resolver: Resolver) {
  const headerFrom = [`author@${author}`];
  const dkimDomains = signers.map((domain) => ({ domain }));
  // It is not known to throw. If it does, the mail must still arrive.
  const { response = false, dkimAligned = new Set<string>() } = await evaluateDmarc({
    ...{ headerFrom, fromFields: 1, spfDomains, dkimDomains, resolver },
  }).catch(() => ({}) as Partial<Awaited<ReturnType<typeof evaluateDmarc>>>);
  return {
    result: (response && oneOf(dmarcResults, response.status.result)) || 'permerror',
    policy: response && oneOf(policies, response.policy),
    aligned: dkimAligned,
  };
}

async function checkDmarc(
  sender: Spf,
  { dkim, authors }: SignatureResults,
  makeResolver: () => Resolver,
): Promise<DmarcDecision> {
  const { domains, fault } = authors;
  const [author] = domains;
  if (fault !== null || author === undefined) {
    const dmarc = await checkUnclearAuthors(domains, fault, makeResolver);
    return { dmarc, isAligned: () => false };
  }
  const resolver = makeResolver();
  /** With the results for which `isCounted` is true. */
  const evaluateWith = (isCounted: (result: string) => boolean) => {
    const spf = isCounted(sender.result) ? [readDomain(sender.domain)] : [];
    const signers = dkim.map(({ result, domain }) => (isCounted(result) ? readDomain(domain) : null));
    return evaluate(author, spf.filter(isKnown), signers.filter(isKnown), resolver);
  };

  const { result, policy, aligned } = await evaluateWith(isPass);
  if (!policy) {
    const reason = result === 'none' ? null : `DNS does not say whether ${author} has a DMARC policy.`;
    return {
      dmarc: { result, policy: null, aligned: null, reason },
      isAligned: (domain) => isSameOrganization(readDomain(domain), author),
    };
  }
  const failed = dkim.every((signature) => isPass(signature.result)) ? null : await evaluateWith(isFailure);
  const open = [sender, ...dkim].some((one) => isOpen(one.result)) ? await evaluateWith(isOpen) : null;
  // It would pass with the results that DNS did not give: that is not a failure.
  const final = result === 'fail' && open && open.result !== 'fail' ? 'temperror' : result;
  const signers = new Set([...aligned, ...(failed?.aligned ?? []), ...(open?.aligned ?? [])]);
  return {
    dmarc: {
      result: final,
      policy,
      aligned: final === 'temperror' ? null : final === 'pass',
      reason: describeDmarc(final, author),
    },
    isAligned: (domain) => signers.has(readDomain(domain) ?? ''),
  };
}

function describeDmarc(result: DmarcResult, author: string): string | null {
  if (result === 'pass') return null;
  if (result === 'temperror') return `DNS did not give all that is needed to authenticate ${author}.`;
  return `Neither SPF nor DKIM authenticates ${author}.`;
}

/**
 * RFC 9989 §5.3.1: DMARC has no result without a single author. The strictest policy of all authors is shown and applied, so that
 * nobody escapes a policy by adding an author.
 */
async function checkUnclearAuthors(
  domains: readonly string[],
  fault: string | null,
  makeResolver: () => Resolver,
): Promise<Authentication['dmarc']> {
  const found = await Promise.all(domains.map((domain) => evaluate(domain, [], [], makeResolver())));
  const strictest = Math.max(-1, ...found.map(({ policy }) => (policy ? policies.indexOf(policy) : -1)));
  // Only some of the authors were looked up: the others may enforce.
  const level = fault === tooMany ? Math.max(strictest, policies.indexOf('quarantine')) : strictest;
  const policy = policies[level] ?? null;
  const enforcing = domains.find((_, n) => policy !== 'none' && found[n]?.policy === policy);
  const request = enforcing ? ` ${enforcing} asks to ${policy} mail that is not authenticated.` : '';
  return { result: 'permerror', policy, aligned: null, reason: `${fault}${request}` };
}

const isPass = (result: string) => result === 'pass';
const isOpen = (result: string) => result === 'temperror';
const isFailure = (result: string) => !isPass(result) && !isOpen(result);

function isKnown<T>(value: T | null): value is T {
  return value !== null;
}

function oneOf<T extends string>(known: readonly T[], value: string): T | null {
  return known.find((one) => one === value) ?? null;
}

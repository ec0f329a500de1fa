/**
 * Authenticates the sender of a message with SPF, DKIM, DMARC and ARC. The results go into the event; no mail is refused for them.
 * Guarantees: rejects only if `verify` rejects; waits for DNS no longer than the deadline; uses no network but DNS. `temperror`
 * always means that DNS did not answer: a sender must not be able to get it with a large or odd message, because it hides DMARC.
 *
 * Three steps: query DNS for SPF and the keys; verify the signatures (signatures.ts; no DNS, may run in a worker); query DNS for
 * DMARC.
 *
 * SPF: RFC 7208. `none` for mail from the API, where no server connected. For `<>` the HELO name is checked.
 * DMARC: RFC 9989, which replaced RFC 7489; the organizational domain is found by walking up the tree. `permerror`: no From field,
 * several of them, or authors of several domains, so that no single policy applies. An unreadable record counts as none.
 */
import { isIP } from 'node:net';
import { domainToASCII } from 'node:url';
// These entry points load in half the time and take 10 MB less than the whole package, which adds BIMI, XML and HTTP.
// test/mailauth-contract.test.ts has what we rely on.
import { evaluateDmarc } from 'mailauth/lib/dmarc/index.js';
import { spf } from 'mailauth/lib/spf/index.js';
import { getDomain } from 'tldts';
import { type DnsClient, makeDnsClient, type RecordType, withDeadline } from '../net/dns.ts';
import type { ArcResult } from './arc.ts';
import { type Keys, readKeyName, type SignedMessage, splitMessage, type Verdict } from './dkim.ts';
import { readName } from './domain.ts';
import { listSignatures, type SignatureResults, verifySignatures } from './signatures.ts';

const spfResults = ['pass', 'fail', 'softfail', 'neutral', 'none', 'temperror', 'permerror'] as const;
const dmarcResults = ['pass', 'fail', 'none', 'temperror', 'permerror'] as const;
const policies = ['none', 'quarantine', 'reject'] as const;

type SpfResult = (typeof spfResults)[number];
type DmarcResult = (typeof dmarcResults)[number];

export interface Authentication {
  /** `domain`: of MAIL FROM, or of HELO for `<>`. */
  spf: { result: SpfResult; domain: string | null };
  /** In the order of the header fields. `aligned`: the signing domain is the author's, whether or not the signature verifies. */
  dkim: (Verdict & { domain: string | null; selector: string | null; aligned: boolean })[];
  /** `policy`: what the author's domain asks for failing mail. `aligned`: null if DMARC gave no decision. */
  dmarc: { result: DmarcResult; policy: (typeof policies)[number] | null; aligned: boolean | null };
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

/** For SPF, keys and DMARC separately, so that none uses up the limit of another. Real mail needs less than 20. */
const maxQueries = 50;

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
      withDeadline(senderMs, (signal) => checkSpf(origin, mailHost, makeMailauthResolver(dns, signal))),
      withDeadline(senderMs, (signal) => queryKeys(message, dns, signal)),
    ]);
    const signed = await verify(raw, keys, message);
    const { dmarc, isAligned } = await withDeadline(deadlineMs - senderMs, (signal) =>
      checkDmarc(sender, signed, makeMailauthResolver(dns, signal)),
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

/** For one message. mailauth expects Node's error codes if DNS has no record or does not answer. */
export function makeMailauthResolver(dns: DnsClient, signal: AbortSignal): Resolver {
  const queries = new Set<string>();
  return async (name, type) => {
    queries.add(`${type} ${name}`);
    if (queries.size > maxQueries) throw new Error('Too many DNS queries for one message.');
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

async function checkSpf(origin: MailOrigin, mailHost: string, resolver: Resolver): Promise<Spf> {
  const { mailFrom, remoteIp, helo } = origin;
  if (remoteIp === null || (!mailFrom && !helo)) return { result: 'none', domain: null };
  try {
    const { status, domain } = await spf({
      sender: mailFrom ?? '',
      ip: remoteIp,
      // An IP address is not a name that can have a record.
      helo: helo && isIP(helo) ? `[${helo}]` : (helo ?? ''),
      mta: mailHost,
      resolver,
    });
    return { result: oneOf(spfResults, status.result) ?? 'temperror', domain: readName(domain) };
  } catch {
    return { result: 'permerror', domain: null };
  }
}

/** Null if it is not clear: several From fields (a signature may not cover all), or authors of several domains. */
function readAuthorDomain({ headerFrom, fromFields }: SignatureResults['authors']): string | null {
  const domains = new Set(
    headerFrom.map((address) => normalise(address.slice(address.lastIndexOf('@') + 1))),
  );
  const [domain] = domains;
  return fromFields === 1 && domains.size === 1 ? (domain ?? null) : null;
}

/** By the public suffix list, for authors without a DMARC record. */
function isSameOrganization(domain: string | null, author: string): boolean {
  const organization = (name: string) => getDomain(normalise(name), { allowPrivateDomains: true });
  const found = domain === null ? null : organization(domain);
  return found !== null && found === organization(author);
}

interface DmarcDecision {
  dmarc: Authentication['dmarc'];
  /** Whether a signing domain is the author's: by the DMARC record, else by the public suffix list. */
  isAligned(domain: string | null): boolean;
}

async function checkDmarc(
  sender: Spf,
  { dkim, authors }: SignatureResults,
  resolver: Resolver,
): Promise<DmarcDecision> {
  const author = readAuthorDomain(authors);
  const withoutRecord = (result: DmarcResult): DmarcDecision => ({
    dmarc: { result, policy: null, aligned: null },
    isAligned: (domain) => author !== null && isSameOrganization(domain, author),
  });
  /** Evaluates DMARC as if exactly the SPF and DKIM results for which `isCounted` is true had passed. */
  const evaluate = async (isCounted: (result: string) => boolean) => {
    const { response, dkimAligned } = await evaluateDmarc({
      ...authors,
      spfDomains: sender.domain && isCounted(sender.result) ? [sender.domain] : [],
      dkimDomains: dkim.flatMap(({ result, domain }) => (domain && isCounted(result) ? [{ domain }] : [])),
      resolver,
    });
    const result = response && oneOf(dmarcResults, response.status.result);
    return { response, result: result || 'permerror', aligned: dkimAligned ?? new Set<string>() };
  };

  try {
    const { response, result, aligned } = await evaluate(isPass);
    const policy = response && oneOf(policies, response.policy);
    if (!policy) return withoutRecord(result);

    const failed = dkim.every((signature) => isPass(signature.result)) ? null : await evaluate(isFailure);
    const open = [sender, ...dkim].some((one) => isOpen(one.result)) ? await evaluate(isOpen) : null;
    // It would pass with the results that DNS did not give: that is not a failure.
    const final = result === 'fail' && open && open.result !== 'fail' ? 'temperror' : result;
    const domains = new Set([...aligned, ...(failed?.aligned ?? []), ...(open?.aligned ?? [])]);
    return {
      dmarc: { result: final, policy, aligned: final === 'temperror' ? null : final === 'pass' },
      isAligned: (domain) => author !== null && domain !== null && domains.has(normalise(domain)),
    };
  } catch {
    return withoutRecord('permerror');
  }
}

const isPass = (result: string) => result === 'pass';
const isOpen = (result: string) => result === 'temperror';
const isFailure = (result: string) => !isPass(result) && !isOpen(result);

function normalise(domain: string): string {
  return (domainToASCII(domain) || domain).replace(/\.+$/, '').toLowerCase();
}

function oneOf<T extends string>(known: readonly T[], value: string): T | null {
  return known.find((one) => one === value) ?? null;
}

/** DKIM and DMARC of every verified domain, as a receiver sees them: by the resolvers of this machine, not by the zone's servers. */
import { decideDkim } from '../identities/dkim.ts';
import { decideDmarc, mildestDmarc } from '../identities/dmarc.ts';
import type { DnsAnswer } from '../net/dns.ts';
import type { SigningDomain } from '../store/senders.ts';
import { type CheckResult, type Finding, fail, ok, unknown, warn } from './findings.ts';
import type { SendingChecks } from './way-checks.ts';

const maxShown = 20;
const atOnce = 20;

interface DomainResult {
  domain: string;
  /** Null: nothing is wrong. */
  result: CheckResult | null;
}

export async function checkDkim(
  checks: SendingChecks,
  domains: readonly SigningDomain[],
): Promise<Finding[]> {
  const results = await inBatches(domains, (domain) => checkKeys(checks, domain));
  return summarise(
    'DKIM',
    results,
    (count) => `${count} can be verified: the key in DNS is the key that signs`,
  );
}

export async function checkDmarc(
  checks: SendingChecks,
  domains: readonly SigningDomain[],
): Promise<Finding[]> {
  const results = await inBatches(domains, (domain) => checkPolicy(checks, domain));
  return summarise('DMARC', results, (count) => `${count} with a DMARC record`);
}

/** Mail is signed with a key that is in DNS. During a rotation this is one of two. */
async function checkKeys(checks: SendingChecks, { domain, keys }: SigningDomain): Promise<DomainResult> {
  const answers = await Promise.all(
    keys.map(async (key) => ({ key, answer: await ask(checks, `${key.selector}._domainkey.${domain}`) })),
  );
  const decisions = answers.map(({ key, answer }) => ({ key, answer, ...decideDkim(valuesOf(answer), key) }));
  if (decisions.some(({ status }) => status === 'valid')) return { domain, result: null };
  const silent = answers.find(({ answer }) => answer.kind === 'unknown')?.answer;
  if (silent?.kind === 'unknown') {
    return { domain, result: unknown(`${domain}: ${silent.reason}`, 'Run the check again.') };
  }
  const [used] = decisions;
  const remedy = `Mail of ${domain} leaves without a signature. Publish the record that GET /identities/{id}/dns shows.`;
  return { domain, result: fail(`${domain}: ${used?.note ?? 'there is no key'}`, remedy) };
}

/** The record of a parent domain counts too (RFC 9989). */
async function checkPolicy(checks: SendingChecks, { domain }: SigningDomain): Promise<DomainResult> {
  for (let name = domain; name.includes('.'); name = name.slice(name.indexOf('.') + 1)) {
    const answer = await ask(checks, `_dmarc.${name}`);
    if (answer.kind === 'unknown') {
      return { domain, result: unknown(`${domain}: ${answer.reason}`, 'Run the check again.') };
    }
    const { status, note } = decideDmarc(valuesOf(answer));
    if (status === 'valid') return { domain, result: null };
    if (status === 'mismatch') {
      return { domain, result: warn(`_dmarc.${name}: ${note}`, 'Correct the record.') };
    }
  }
  const remedy = `Large receivers expect one. Publish at _dmarc.${domain}: TXT "${mildestDmarc}"`;
  return { domain, result: warn(`${domain} has no DMARC record`, remedy) };
}

function ask({ dns, signal }: SendingChecks, name: string): Promise<DnsAnswer<string>> {
  return dns.resolve(name, 'TXT', signal);
}

function valuesOf(answer: DnsAnswer<string>): string[] {
  return answer.kind === 'records' ? answer.values : [];
}

async function inBatches(
  domains: readonly SigningDomain[],
  check: (domain: SigningDomain) => Promise<DomainResult>,
): Promise<DomainResult[]> {
  const results: DomainResult[] = [];
  for (let at = 0; at < domains.length; at += atOnce) {
    results.push(...(await Promise.all(domains.slice(at, at + atOnce).map(check))));
  }
  return results;
}

/** One line for all that is good, and one for each of the first problems. */
function summarise(
  check: string,
  results: readonly DomainResult[],
  describeGood: (count: string) => string,
): Finding[] {
  const bad = results.flatMap(({ result }) => (result ? [{ check, ...result }] : []));
  const good = results.length - bad.length;
  const more = bad.length - maxShown;
  return [
    ...(good > 0 ? [{ check, ...ok(describeGood(`${good} ${good === 1 ? 'domain' : 'domains'}`)) }] : []),
    ...bad.slice(0, maxShown),
    ...(more > 0 ? [{ check, ...warn(`${more} more domains have problems`, 'Correct these first.') }] : []),
  ];
}

/**
 * MTA-STS policies (RFC 8461): which hosts may receive the mail of a domain, and whether only over verified TLS.
 * Guarantees: never rejects; a policy that was known stays in force until its max_age, whatever DNS or the web server answer (an
 * attacker must not be able to switch it off); the cache has a bound; the web server is called by the egress rules.
 */
import tls from 'node:tls';
import type { DnsClient } from './dns.ts';
import type { Egress } from './egress.ts';
import { requestSmall, type SmallRequestLimits } from './small-request.ts';

export interface StsPolicy {
  mode: 'enforce' | 'testing' | 'none';
  /** Host names; the first label may be `*`. */
  mx: readonly string[];
  maxAgeSeconds: number;
}

export interface MtaSts {
  /** Null: the domain has no policy, or none that can be fetched. After `signal` aborts, a policy may be missed: do not send. */
  find(domain: string, signal: AbortSignal): Promise<StsPolicy | null>;
}

interface Known {
  /** Null: the policy could not be fetched. */
  policy: StsPolicy | null;
  id: string;
  until: number;
}

/** RFC 8461 §3.2 and §3.3. */
const maxAgeSeconds = 31_557_600;
const maxPolicyBytes = 64 * 1024;
/** RFC 8461 §3.3 advises to wait this long before fetching again. */
const retryMs = 5 * 60_000;

export function makeMtaSts(parts: {
  dns: DnsClient;
  egress: Egress;
  now: () => Date;
  /** RFC 8461 §3.3 advises a minute; mail waits for the answer. */
  fetchWithinMs?: number;
  maxCached?: number;
  /** Certificate authorities (PEM) instead of the well-known ones. */
  ca?: string;
  port?: number;
}): MtaSts {
  const { dns, egress, fetchWithinMs = 20_000, maxCached = 10_000, port = 443 } = parts;
  const secure = tls.createSecureContext(parts.ca === undefined ? {} : { ca: parts.ca });
  const cache = new Map<string, Known>();
  const fetching = new Map<string, Promise<StsPolicy | null>>();

  function findKnown(domain: string): Known | undefined {
    const known = cache.get(domain);
    return known && known.until > parts.now().getTime() ? known : undefined;
  }

  function remember(domain: string, known: Known): void {
    cache.delete(domain);
    const [oldest] = cache.size >= maxCached ? cache.keys() : [];
    if (oldest !== undefined) cache.delete(oldest);
    cache.set(domain, known);
  }

  async function refresh(domain: string, id: string): Promise<StsPolicy | null> {
    const url = URL.parse(`https://mta-sts.${domain}:${port}/.well-known/mta-sts.txt`);
    const limits = { egress, secure, withinMs: fetchWithinMs, maxBytes: maxPolicyBytes };
    const policy = url && (await fetchPolicy(url, limits));
    const known = findKnown(domain);
    const now = parts.now().getTime();
    if (policy) remember(domain, { policy, id, until: now + policy.maxAgeSeconds * 1000 });
    // RFC 8461 §5.1: the old policy stays in force until its own end, and the new id is asked for again at the next mail.
    else if (!known?.policy) remember(domain, { policy: null, id, until: now + retryMs });
    return policy ?? known?.policy ?? null;
  }

  function refreshOnce(domain: string, id: string): Promise<StsPolicy | null> {
    const open = fetching.get(domain);
    if (open) return open;
    const started = refresh(domain, id).finally(() => fetching.delete(domain));
    fetching.set(domain, started);
    return started;
  }

  return {
    async find(domain, signal) {
      const answer = await dns.resolve(`_mta-sts.${domain}`, 'TXT', signal);
      const id = answer.kind === 'records' ? readRecordId(answer.values) : null;
      const known = findKnown(domain);
      if (id === null || known?.id === id) return known?.policy ?? null;
      return orAborted(refreshOnce(domain, id), signal);
    },
  };
}

function orAborted<Result>(work: Promise<Result>, signal: AbortSignal): Promise<Result | null> {
  return new Promise((resolve) => {
    const giveUp = () => resolve(null);
    if (signal.aborted) giveUp();
    signal.addEventListener('abort', giveUp, { once: true });
    work.then(resolve).finally(() => signal.removeEventListener('abort', giveUp));
  });
}

/** RFC 8461 §4.1: the wildcard is one whole label, the first. */
export function matchesPolicy(policy: StsPolicy, host: string): boolean {
  const name = host.toLowerCase().replace(/\.$/, '');
  const parent = name.slice(name.indexOf('.') + 1);
  return policy.mx.some((pattern) =>
    pattern.startsWith('*.') ? name.includes('.') && pattern.slice(2) === parent : pattern === name,
  );
}

/** RFC 8461 §3.1: other records beside it do not matter, but two of this kind count as none. */
export function readRecordId(records: readonly string[]): string | null {
  const found = records.filter((record) => /^v=STSv1[ \t]*(?:;|$)/.test(record));
  const [, id = null] = /;[ \t]*id[ \t]*=[ \t]*([A-Za-z0-9]{1,32})[ \t]*(?:;|$)/.exec(found[0] ?? '') ?? [];
  return found.length === 1 ? id : null;
}

/** RFC 8461 §3.2. Null: not a valid policy. */
export function readPolicy(text: string): StsPolicy | null {
  const values = new Map<string, string[]>();
  for (const line of text.split(/\r?\n/)) {
    const colon = line.indexOf(':');
    if (colon === -1) continue;
    const name = line.slice(0, colon).trim();
    values.set(name, [...(values.get(name) ?? []), line.slice(colon + 1).trim()]);
  }
  // Of a field that occurs more than once only `mx` uses all.
  const first = (name: string) => values.get(name)?.[0] ?? '';
  const mode = (['enforce', 'testing', 'none'] as const).find((known) => known === first('mode'));
  const mx = (values.get('mx') ?? []).map((pattern) => pattern.toLowerCase().replace(/\.$/, ''));
  if (first('version') !== 'STSv1' || !mode || !/^\d{1,10}$/.test(first('max_age'))) return null;
  if (!mx.every((pattern) => /^(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*$/.test(pattern))) return null;
  if (mode !== 'none' && mx.length === 0) return null;
  return { mode, mx, maxAgeSeconds: Math.min(Number(first('max_age')), maxAgeSeconds) };
}

/** RFC 8461 §3.3: redirects are not followed, and the media type is text/plain. Null: no valid policy came in time. */
async function fetchPolicy(url: URL, limits: SmallRequestLimits): Promise<StsPolicy | null> {
  const answer = await requestSmall({ url, headers: { host: url.hostname, accept: 'text/plain' } }, limits);
  const isPolicy =
    answer.kind === 'response' && answer.status === 200 && /^text\/plain *(?:;|$)/i.test(answer.contentType);
  return isPolicy ? readPolicy(answer.body) : null;
}

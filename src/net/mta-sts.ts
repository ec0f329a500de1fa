/**
 * MTA-STS policies (RFC 8461): which hosts may receive the mail of a domain, and whether only over verified TLS.
 * Guarantees: never rejects; a policy that was known stays in force until its max_age, whatever DNS or the web server answer (an
 * attacker must not be able to switch it off); the cache has a bound; the web server is called by the egress rules.
 */
import http from 'node:http';
import type { Socket } from 'node:net';
import tls from 'node:tls';
import { connect } from './connect.ts';
import type { DnsClient } from './dns.ts';
import type { Egress } from './egress.ts';

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
    const policy = await fetchPolicy({ host: `mta-sts.${domain}`, port, secure, egress, fetchWithinMs });
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

interface PolicySource {
  host: string;
  port: number;
  secure: tls.SecureContext;
  egress: Egress;
  fetchWithinMs: number;
}

/** Null: no valid policy came in time. */
function fetchPolicy({ host, port, secure, egress, fetchWithinMs }: PolicySource): Promise<StsPolicy | null> {
  return new Promise((resolve) => {
    const connecting = connect({ hostname: host, port, secure }, egress, (error, connected) => {
      if (error) end(null);
      else requestPolicy(connected as Socket, host, end);
      socket = connected;
    });
    let socket: Socket | null = null;
    const timer = setTimeout(() => {
      connecting.expire();
      end(null);
    }, fetchWithinMs);
    const end = (policy: StsPolicy | null) => {
      clearTimeout(timer);
      socket?.destroy();
      resolve(policy);
    };
  });
}

/** RFC 8461 §3.3: redirects are not followed, and the media type is text/plain. Calls `done` at least once. */
function requestPolicy(socket: Socket, host: string, done: (policy: StsPolicy | null) => void): void {
  const fail = () => done(null);
  const request = http.get({
    createConnection: () => socket,
    path: '/.well-known/mta-sts.txt',
    headers: { host, connection: 'close', accept: 'text/plain' },
  });
  request.on('error', fail).on('response', (response) => {
    const isText = /^text\/plain *(?:;|$)/i.test(response.headers['content-type'] ?? '');
    if (response.statusCode !== 200 || !isText) return fail();
    const chunks: Buffer[] = [];
    let size = 0;
    response.on('data', (chunk: Buffer) => {
      chunks.push(chunk);
      size += chunk.length;
      if (size > maxPolicyBytes) fail();
    });
    response.on('error', fail).on('close', fail);
    response.on('end', () => {
      if (response.complete && size <= maxPolicyBytes) done(readPolicy(Buffer.concat(chunks).toString()));
    });
  });
}

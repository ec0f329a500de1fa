/**
 * Whom the service may call. One place decides, for registration and for every try.
 * Guarantee: an address that `resolve` hands out is global unicast or in a range that the operator allowed, and so is
 * every other address of its name; who connects to nothing else cannot be led inside, whatever DNS says next.
 */
import { isIP } from 'node:net';
import { classify, isWithin, parseRange } from './addresses.ts';
import { type DnsServers, openDnsServers } from './dns-servers.ts';

export interface TargetAddress {
  address: string;
  family: 4 | 6;
}

type Resolution =
  | { ok: true; addresses: TargetAddress[] }
  | { ok: false; code: 'dns_failed' | 'target_refused'; reason: string };

export interface Egress {
  /** What is wrong with the URL's host by its spelling alone, as the end of a sentence; null when nothing is. */
  findNameFault(url: URL): string | null;
  /** The addresses of a host (a name or a literal, as URL.hostname has it), all of them checked. Never rejects. */
  resolve(hostname: string, deadlineMs?: number): Promise<Resolution>;
  /** For registration: why this target is refused, or null. A name that does not resolve in time is let through. */
  checkTarget(url: URL, deadlineMs?: number): Promise<string | null>;
}

const advice =
  'webhooks may reach public addresses only, unless the operator allows more (POSTHORN_ALLOW_TARGETS)';
/** Names that mean something on this machine or network only. RFC 6761, 6762, 7686, 8375; ICANN for `internal`. */
const localSuffixes = ['localhost', 'local', 'internal', 'home.arpa', 'onion'];
const loopback: TargetAddress[] = [
  { address: '127.0.0.1', family: 4 },
  { address: '::1', family: 6 },
];

export function makeEgress(options: {
  /** Ranges (CIDR) or single addresses. */
  allowTargets: readonly string[];
  dnsServers: readonly string[] | null;
}): Egress {
  const allowed = options.allowTargets.map(parseRange);
  // Not dns.lookup: its four threads would be filled by a resolver that does not answer.
  const servers = openDnsServers({ dnsServers: options.dnsServers, roundsMs: [1000, 2000, 2000] });
  /** Several connections to one host are often opened at once; they share the question. */
  const asked = new Map<string, Question>();

  function findFault(host: string): string | null {
    if (isIP(host) !== 0) {
      const kind = findAddressFault(host);
      return kind && `is ${kind}; ${advice}.`;
    }
    if (isUnder(host, 'localhost')) {
      return allowedLoopback().length > 0 ? null : `is this machine's own name; ${advice}.`;
    }
    const suffix = localSuffixes.find((name) => isUnder(host, name));
    if (suffix) return `is a name under .${suffix}, which has no meaning on the public internet.`;
    if (!host.includes('.')) return 'is a name without a dot, which has no meaning on the public internet.';
    return null;
  }

  function findAddressFault(address: string): string | null {
    const kind = classify(address);
    return kind === 'public' || isWithin(address, allowed) ? null : kind;
  }

  function allowedLoopback(): TargetAddress[] {
    return loopback.filter(({ address }) => isWithin(address, allowed));
  }

  function ask(host: string): Question {
    const known = asked.get(host);
    if (known) return known;
    const question = new Question(servers, host);
    asked.set(host, question);
    question.done.then(() => asked.delete(host));
    return question;
  }

  async function resolve(hostname: string, deadlineMs = 5000): Promise<Resolution> {
    const host = normalise(hostname);
    const fault = findFault(host);
    if (fault) return { ok: false, code: 'target_refused', reason: `${host} ${fault}` };
    const family = isIP(host);
    if (family !== 0) return { ok: true, addresses: [{ address: host, family: family as 4 | 6 }] };
    if (isUnder(host, 'localhost')) return { ok: true, addresses: allowedLoopback() };

    const question = ask(host);
    await within(question.done, deadlineMs);
    const { addresses } = question;
    if (addresses.length === 0) {
      return { ok: false, code: 'dns_failed', reason: `${host} ${question.tellFailure()}.` };
    }
    for (const { address } of addresses) {
      const kind = findAddressFault(address);
      if (!kind) continue;
      return {
        ok: false,
        code: 'target_refused',
        reason: `${host} resolves to ${address}, which is ${kind}; ${advice}.`,
      };
    }
    return { ok: true, addresses };
  }

  return {
    findNameFault(url) {
      const host = normalise(url.hostname);
      const fault = findFault(host);
      return fault && `${host} ${fault}`;
    },
    resolve,
    async checkTarget(url, deadlineMs = 2000) {
      const resolution = await resolve(url.hostname, deadlineMs);
      return resolution.ok || resolution.code === 'dns_failed' ? null : resolution.reason;
    },
  };
}

/** A and AAAA of one name, asked together. What has come by a deadline may be used while the other is still out. */
class Question {
  readonly done: Promise<unknown>;
  #found: Record<4 | 6, string[]> = { 4: [], 6: [] };
  #failures: string[] = [];

  constructor(servers: DnsServers, host: string) {
    this.done = Promise.all([
      this.#ask(4, () => servers.ask((server) => server.resolve4(host))),
      this.#ask(6, () => servers.ask((server) => server.resolve6(host))),
    ]);
  }

  async #ask(family: 4 | 6, query: () => Promise<string[]>): Promise<void> {
    try {
      this.#found[family] = await query();
    } catch (error) {
      this.#failures.push((error as NodeJS.ErrnoException).code ?? 'unknown');
    }
  }

  /** IPv4 first: a sender's machine without IPv6 is common, one without IPv4 is not. */
  get addresses(): TargetAddress[] {
    return ([4, 6] as const).flatMap((family) => this.#found[family].map((address) => ({ address, family })));
  }

  tellFailure(): string {
    const telling = this.#failures.find((code) => code !== 'ENODATA') ?? this.#failures[0] ?? 'ETIMEOUT';
    return failures[telling] ?? `could not be resolved (${telling})`;
  }
}

const failures: Record<string, string | undefined> = {
  ENOTFOUND: 'does not exist in DNS (NXDOMAIN)',
  ENODATA: 'has no address in DNS',
  ESERVFAIL: 'could not be resolved: the DNS server failed (SERVFAIL)',
  EREFUSED: 'could not be resolved: the DNS server refused to answer (REFUSED)',
  ETIMEOUT: 'could not be resolved: no answer from DNS in time',
  ECONNREFUSED: 'could not be resolved: no DNS server could be reached',
  EBADNAME: 'is not a name that DNS can hold',
  EBADRESP: 'could not be resolved: the DNS server answered nonsense',
};

/** As sockets and certificates want it: no brackets around an IPv6 literal, no dot at the end. */
function normalise(hostname: string): string {
  return hostname
    .replace(/^\[|\]$/g, '')
    .replace(/\.+$/, '')
    .toLowerCase();
}

function isUnder(host: string, name: string): boolean {
  return host === name || host.endsWith(`.${name}`);
}

function within(promise: Promise<unknown>, deadlineMs: number): Promise<unknown> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, deadlineMs);
    promise.then(() => {
      clearTimeout(timer);
      resolve(undefined);
    });
  });
}

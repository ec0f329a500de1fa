/**
 * Whom the service may call. One place decides, for registration and for every try.
 * Guarantee: an address that `resolve` hands out is global unicast or in a range that the operator allowed, and so is
 * every other address of its name; who connects to nothing else cannot be led inside, whatever DNS says next.
 */
import { isIP } from 'node:net';
import { type DnsAnswer, makeDnsClient, withDeadline } from './dns.ts';
import { classify, isWithin, parseRange } from './ip-addresses.ts';

export interface TargetAddress {
  address: string;
  family: 4 | 6;
}

type Resolution =
  | { ok: true; addresses: TargetAddress[] }
  | { ok: false; code: 'dns_failed' | 'target_refused'; reason: string };

export interface Egress {
  /** The addresses of a host (a name or a literal, as URL.hostname has it), all of them checked. Never rejects. */
  resolve(host: string, deadlineMs?: number): Promise<Resolution>;
  /** For an early error: why this host is refused, or null. A name that does not resolve in time is let through. */
  findRefusal(host: string, deadlineMs?: number): Promise<string | null>;
}

const advice =
  'the service calls public addresses only, unless the operator allows more (POSTHORN_ALLOW_TARGETS)';
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
  const dns = makeDnsClient({ dnsServers: options.dnsServers, roundsMs: [1000, 2000, 2000] });

  function findNameFault(host: string): string | null {
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

  async function resolve(given: string, deadlineMs = 5000): Promise<Resolution> {
    const host = normalise(given);
    const fault = findNameFault(host);
    if (fault) return { ok: false, code: 'target_refused', reason: `${host} ${fault}` };
    const family = isIP(host);
    if (family !== 0) return { ok: true, addresses: [{ address: host, family: family as 4 | 6 }] };
    if (isUnder(host, 'localhost')) return { ok: true, addresses: allowedLoopback() };

    // What has come by the deadline is used while the other is still out.
    const [v4, v6] = await withDeadline(deadlineMs, (signal) =>
      Promise.all([dns.resolve(host, 'A', signal), dns.resolve(host, 'AAAA', signal)]),
    );
    // IPv4 first: a sender's machine without IPv6 is common, one without IPv4 is not.
    const addresses = [...listAddresses(v4, 4), ...listAddresses(v6, 6)];
    if (addresses.length === 0) {
      return { ok: false, code: 'dns_failed', reason: `${host} ${describeFailure([v4, v6])}.` };
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
    resolve,
    async findRefusal(host, deadlineMs = 2000) {
      const resolution = await resolve(host, deadlineMs);
      return resolution.ok || resolution.code === 'dns_failed' ? null : resolution.reason;
    },
  };
}

function listAddresses(answer: DnsAnswer<string>, family: 4 | 6): TargetAddress[] {
  return answer.kind === 'records' ? answer.values.map((address) => ({ address, family })) : [];
}

function describeFailure(answers: readonly DnsAnswer<string>[]): string {
  const unknown = answers.find((answer) => answer.kind === 'unknown');
  if (unknown) return `could not be resolved: ${unknown.reason}`;
  const isThere = answers.every((answer) => answer.kind === 'none' && answer.why === 'no_such_record');
  return isThere ? 'has no address in DNS' : 'does not exist in DNS (NXDOMAIN)';
}

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

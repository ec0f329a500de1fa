/**
 * Decides which hosts the service may call, when a webhook is saved and at every try.
 * Guarantee: every address that `resolve` returns is public or in a range that the operator allowed. A caller that connects only to
 * these addresses cannot be led into the operator's network, whatever DNS answers later.
 */
import { isIP } from 'node:net';
import type { Log } from '../lib/log.ts';
import { type DnsAnswer, makeDnsClient, withDeadline } from './dns.ts';
import { classify, isWithin, parseRange } from './ip-addresses.ts';

export interface TargetAddress {
  address: string;
  family: 4 | 6;
}

export type Resolution =
  | { ok: true; addresses: TargetAddress[] }
  /**
   * `reason` may be shown to the owner of the webhook. `isAbsent`: DNS says that the name does not exist or has no address, so
   * that asking again gives the same answer.
   */
  | { ok: false; code: 'dns_failed' | 'target_refused'; reason: string; isAbsent: boolean };

export interface Egress {
  /** `host` is a name or an IP address, as in `URL.hostname`. One refused address refuses the host. Never rejects. */
  resolve(host: string, deadlineMs?: number): Promise<Resolution>;
  /** For an early error message. Null if the host is allowed, or does not resolve in time. */
  findRefusal(host: string, deadlineMs?: number): Promise<string | null>;
  /** Whether the operator allowed the address by itself, so that rules about ports do not apply to it. */
  isAllowedTarget(address: string): boolean;
}

const advice = 'Use a public address; the operator can allow others with POSTHORN_ALLOW_TARGETS.';
/** Names with a local meaning only: RFC 6761, 6762, 7686, 8375; ICANN for `internal`. */
const localSuffixes = ['localhost', 'local', 'internal', 'home.arpa', 'onion'];
const loopback: TargetAddress[] = [
  { address: '127.0.0.1', family: 4 },
  { address: '::1', family: 6 },
];

export function makeEgress(options: {
  /** Ranges (CIDR) or single addresses. */
  allowTargets: readonly string[];
  dnsServers: readonly string[] | null;
  /** Gets what an owner must not learn: the private address of a name. */
  log?: Log;
}): Egress {
  const allowed = options.allowTargets.map(parseRange);
  // dns.lookup has only four threads, which a resolver that does not answer would block.
  const dns = makeDnsClient({ dnsServers: options.dnsServers, roundsMs: [1000, 2000, 2000] });

  function findNameRefusal(host: string): string | null {
    if (isIP(host) !== 0) {
      const kind = findAddressRefusal(host);
      return kind && `is ${kind}. ${advice}`;
    }
    if (isUnder(host, 'localhost')) {
      return allowedLoopback().length > 0 ? null : `is this machine. ${advice}`;
    }
    const suffix = localSuffixes.find((name) => isUnder(host, name));
    if (suffix) return `is a name under .${suffix}, which has no meaning on the public internet.`;
    if (!host.includes('.')) return 'is a name without a dot, which has no meaning on the public internet.';
    return null;
  }

  function findAddressRefusal(address: string): string | null {
    const kind = classify(address);
    return kind === 'public' || isWithin(address, allowed) ? null : kind;
  }

  function allowedLoopback(): TargetAddress[] {
    return loopback.filter(({ address }) => isWithin(address, allowed));
  }

  async function resolve(given: string, deadlineMs = 5000): Promise<Resolution> {
    const host = normalise(given);
    const refusal = findNameRefusal(host);
    if (refusal) return { ok: false, code: 'target_refused', reason: `${host} ${refusal}`, isAbsent: false };
    const family = isIP(host);
    if (family !== 0) return { ok: true, addresses: [{ address: host, family: family as 4 | 6 }] };
    if (isUnder(host, 'localhost')) return { ok: true, addresses: allowedLoopback() };

    // At the deadline one of the two answers is enough.
    const [v4, v6] = await withDeadline(deadlineMs, (signal) =>
      Promise.all([dns.resolve(host, 'A', signal), dns.resolve(host, 'AAAA', signal)]),
    );
    // IPv4 first: a machine without IPv6 is common, one without IPv4 is not.
    const addresses = [...listAddresses(v4, 4), ...listAddresses(v6, 6)];
    if (addresses.length === 0) {
      const isAbsent = v4.kind === 'none' && v6.kind === 'none';
      return { ok: false, code: 'dns_failed', reason: `${host} ${describeFailure([v4, v6])}.`, isAbsent };
    }
    for (const { address } of addresses) {
      const kind = findAddressRefusal(address);
      if (!kind) continue;
      options.log?.info(
        { host, address },
        `target refused: ${host} resolves to ${address}, which is ${kind}`,
      );
      // Without the address: a user could read the operator's internal DNS, name by name.
      const reason = `${host} resolves to an address that is not public. ${advice}`;
      return { ok: false, code: 'target_refused', reason, isAbsent: false };
    }
    return { ok: true, addresses };
  }

  return {
    resolve,
    async findRefusal(host, deadlineMs = 2000) {
      const resolution = await resolve(host, deadlineMs);
      return resolution.ok || resolution.code === 'dns_failed' ? null : resolution.reason;
    },
    isAllowedTarget: (address) => isWithin(address, allowed),
  };
}

function listAddresses(answer: DnsAnswer<string>, family: 4 | 6): TargetAddress[] {
  return answer.kind === 'records' ? answer.values.map((address) => ({ address, family })) : [];
}

function describeFailure(answers: readonly DnsAnswer<string>[]): string {
  const unknown = answers.find((answer) => answer.kind === 'unknown');
  if (unknown) return `could not be resolved: ${unknown.reason}`;
  const exists = answers.every((answer) => answer.kind === 'none' && answer.why === 'no_such_record');
  return exists ? 'has no address in DNS' : 'does not exist in DNS (NXDOMAIN)';
}

/** Sockets and certificates need IPv6 without brackets, and names without a dot at the end. */
function normalise(hostname: string): string {
  return hostname
    .replace(/^\[|\]$/g, '')
    .replace(/\.+$/, '')
    .toLowerCase();
}

function isUnder(host: string, name: string): boolean {
  return host === name || host.endsWith(`.${name}`);
}

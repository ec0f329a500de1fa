/**
 * The direct way out: which servers a recipient's domain has, and how safe the connection must be. Guarantee: where the MTA-STS
 * policy is `enforce`, only hosts of the policy are returned, and only for verified TLS (RFC 8461 §5).
 */
import type { DnsClient } from '../net/dns.ts';
import { type MtaSts, matchesPolicy } from '../net/mta-sts.ts';
import { findMailHosts, type MailHosts } from '../net/mx.ts';
import type { Server } from './transmit.ts';
import type { NotTried } from './try-reply.ts';

export type DirectServers =
  | { kind: 'servers'; servers: [Server, ...Server[]] }
  | NotTried
  | Exclude<MailHosts, { kind: 'hosts' }>;

export async function findDirectServers(
  domain: string,
  parts: { dns: DnsClient; mtaSts: MtaSts; random: () => number; signal: AbortSignal; port: number },
): Promise<DirectServers> {
  const [found, policy] = await Promise.all([
    findMailHosts(domain, parts),
    parts.mtaSts.find(domain, parts.signal),
  ]);
  // The policy may be missing now, and a server that is called without it could be the wrong one.
  if (parts.signal.aborted)
    return { kind: 'temporary', code: 'stopped', reason: 'Posthorn is shutting down.' };
  if (found.kind !== 'hosts') return found;
  const isEnforced = policy?.mode === 'enforce';
  const hosts = isEnforced ? found.hosts.filter((host) => matchesPolicy(policy, host)) : found.hosts;
  const [first, ...others] = hosts.map((host): Server => {
    const security = isEnforced ? 'verified' : 'opportunistic';
    return { host, port: parts.port, isImplicitTls: false, security, login: null };
  });
  if (first) return { kind: 'servers', servers: [first, ...others] };
  // Temporary, because the records and the policy may be changed one after the other.
  const reason = `The MTA-STS policy of ${domain} allows none of its mail servers.`;
  return { kind: 'temporary', code: 'mta_sts_failed', reason };
}

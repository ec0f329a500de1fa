/**
 * Finds the mail servers of a recipient's domain (RFC 5321 §5.1, RFC 7505). Guarantees: never throws; a DNS failure is never
 * reported as "no such domain"; at most ten hosts, whatever DNS answers. The addresses of a host are resolved when a connection is
 * opened, by the egress rules (egress.ts), so that the address that was checked is the address that is called.
 */
import { isIP } from 'node:net';
import type { DnsClient } from './dns.ts';

export type MailHosts =
  /** In the order in which they are tried. */
  | { kind: 'hosts'; hosts: string[] }
  /** `reason`: a sentence. */
  | { kind: 'permanent'; code: 'null_mx' | 'no_such_domain' | 'no_mail_server'; reason: string }
  | { kind: 'temporary'; reason: string };

/** A domain with more records than this gains nothing by them, and could make one try last for hours. */
const maxHosts = 10;

export async function findMailHosts(
  domain: string,
  parts: { dns: DnsClient; random: () => number; signal: AbortSignal },
): Promise<MailHosts> {
  const answer = await parts.dns.resolve(domain, 'MX', parts.signal);
  if (answer.kind === 'unknown') {
    return { kind: 'temporary', reason: `The mail servers of ${domain} are not known: ${answer.reason}.` };
  }
  if (answer.kind === 'none') {
    // RFC 5321 §5.1: without an MX record the domain itself is the mail server.
    if (answer.why === 'no_such_record') return { kind: 'hosts', hosts: [domain] };
    return {
      kind: 'permanent',
      code: 'no_such_domain',
      reason: `The domain ${domain} does not exist in DNS.`,
    };
  }
  const records = answer.values.map(({ priority, exchange }) => ({ priority, host: readHost(exchange) }));
  if (records.every(({ host }) => host === '')) {
    return {
      kind: 'permanent',
      code: 'null_mx',
      reason: `The domain ${domain} accepts no mail (null MX, RFC 7505).`,
    };
  }
  const usable = records.filter(({ host }) => isHostName(host));
  if (usable.length === 0) {
    return {
      kind: 'permanent',
      code: 'no_mail_server',
      reason: `The MX records of ${domain} name no host that can be called.`,
    };
  }
  const hosts = new Set(shuffleEquals(usable, parts.random).map(({ host }) => host));
  return { kind: 'hosts', hosts: [...hosts].slice(0, maxHosts) };
}

function readHost(exchange: string): string {
  return exchange.toLowerCase().replace(/\.+$/, '');
}

/** RFC 5321 §5.1 and RFC 2181 §10.3: a name. An address in an MX record is a mistake, and `localhost` would be this machine. */
function isHostName(host: string): boolean {
  const isLocal = host === 'localhost' || host.endsWith('.localhost');
  return host !== '' && isIP(host) === 0 && !/^\[.*\]$/.test(host) && !isLocal;
}

/** RFC 5321 §5.1: hosts of one preference in random order, so that senders share the load among them. */
function shuffleEquals<Record extends { priority: number }>(
  records: readonly Record[],
  random: () => number,
): Record[] {
  return records
    .map((record) => ({ record, turn: random() }))
    .sort((one, other) => one.record.priority - other.record.priority || one.turn - other.turn)
    .map(({ record }) => record);
}

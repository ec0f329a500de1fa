/** Whether mail gets out: a mail server or the relay is called up to the point where a message would follow. */
import type { Config } from '../config.ts';
import type { DnsClient } from '../net/dns.ts';
import type { Egress } from '../net/egress.ts';
import type { MtaSts } from '../net/mta-sts.ts';
import { resolveOperatorHost } from '../net/operator-host.ts';
import { findDirectServers } from '../sending/direct.ts';
import { makeTlsContexts, openConnection, type Server, standardTimeouts } from '../sending/transmit.ts';
import type { TryReply } from '../sending/try-reply.ts';
import { type CheckResult, fail, ok, unknown } from './findings.ts';

/** What the checks of sending use. */
export interface SendingChecks {
  config: Config;
  dns: DnsClient;
  egress: Egress;
  mtaSts: MtaSts;
  signal: AbortSignal;
}

/** A person waits. */
const timeouts = { ...standardTimeouts, connectMs: 8000, tlsMs: 8000, greetingMs: 15_000, commandMs: 15_000 };
const maxHosts = 3;
const checkDns = 'Check that DNS works: run the checks without --sending.';

interface Direct {
  result: CheckResult;
  /** The address from which this machine called. Null: there was no connection. */
  localAddress: string | null;
}

export async function checkDirect(checks: SendingChecks, domain: string): Promise<Direct> {
  const { config, dns, egress, mtaSts, signal } = checks;
  const parts = { dns, mtaSts, random: Math.random, signal, port: config.mxPort };
  const found = await findDirectServers(domain, parts);
  if (found.kind !== 'servers') {
    const remedy = 'Name another domain that receives mail with --to.';
    // Without DNS, some resolvers answer that no name exists.
    const isMissing = found.kind === 'permanent' && found.code === 'no_such_domain';
    const result = isMissing
      ? unknown(`DNS does not find ${domain}`, `${checkDns} Or name another domain with --to.`)
      : unknown(found.reason, remedy);
    return { result, localAddress: null };
  }
  let first: TryReply | null = null;
  for (const server of found.servers.slice(0, maxHosts)) {
    const opened = await openConnection(
      server,
      clientOf(checks, (host) => egress.resolve(host)),
      signal,
    );
    if ('connection' in opened) {
      const { localAddress, isSecure } = opened.connection;
      opened.connection.quit();
      const result = ok(`${server.host} answers, ${isSecure ? 'with' : 'without'} TLS`);
      return { result, localAddress };
    }
    first ??= opened.failure;
  }
  return { result: describeDirectFailure(first as TryReply, config.mxPort), localAddress: null };
}

function describeDirectFailure(failure: TryReply, port: number): CheckResult {
  const { kind, phase, error } = failure;
  if (error === 'dns_failed' || error === 'no_such_host') {
    return unknown(describeFailure(failure), checkDns);
  }
  if (error === 'target_refused') {
    return fail(describeFailure(failure), 'Name another domain with --to, or see POSTHORN_ALLOW_TARGETS.');
  }
  if (kind === 'refused') {
    const remedy =
      'The reply says why. Often the address of this machine is on a blocklist, or has no reverse DNS.';
    return fail(describeFailure(failure), remedy);
  }
  const remedy =
    phase === 'connect'
      ? `Many providers block outgoing port ${port}: ask yours to open it, or use a relay (POSTHORN_RELAY_URL).`
      : 'Try another domain with --to. If all fail, something between this machine and the internet changes SMTP.';
  return fail(describeFailure(failure), remedy);
}

export async function checkRelay(checks: SendingChecks): Promise<CheckResult> {
  const relay = checks.config.relay as Server;
  const opened = await openConnection(relay, clientOf(checks, resolveOperatorHost), checks.signal);
  if ('failure' in opened) return describeRelayFailure(opened.failure);
  const { isSecure, isVerified } = opened.connection;
  opened.connection.quit();
  const tls = isVerified
    ? 'TLS with a valid certificate'
    : isSecure
      ? 'TLS, certificate not checked'
      : 'no TLS';
  return ok(
    `${relay.host} answers; ${tls}; ${relay.login ? `login as ${relay.login.user} works` : 'no login'}`,
  );
}

function describeRelayFailure(failure: TryReply): CheckResult {
  const remedies: Partial<Record<TryReply['phase'], string>> = {
    connect: 'Check the host and port of POSTHORN_RELAY_URL, and that a firewall allows the connection.',
    tls: 'With a password Posthorn requires TLS and a valid certificate. Check the host name, and smtps:// for port 465.',
    auth: 'Check the user and password of POSTHORN_RELAY_URL. Write % and / in a password as %25 and %2F.',
  };
  const remedy = remedies[failure.phase] ?? 'The reply says why. Check that the relay accepts this machine.';
  return fail(describeFailure(failure), remedy);
}

function describeFailure({ host, address, detail, response }: TryReply): string {
  const at = address ? `${host} (${address})` : host;
  return `${at}: ${response ? `${response.code} ${response.text}` : detail}`;
}

function clientOf(checks: SendingChecks, resolve: typeof resolveOperatorHost) {
  return { resolve, heloName: checks.config.mailHost, contexts: makeTlsContexts(), timeouts };
}

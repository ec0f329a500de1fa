/** `posthorn doctor --sending`: what outgoing mail needs, as the servers that receive it see it. No mail is sent. */
import type { Config } from '../config.ts';
import { hasCluster } from '../db/embedded/cluster.ts';
import { openDatabase } from '../db/open.ts';
import { makeLog } from '../lib/log.ts';
import { makeDnsClient } from '../net/dns.ts';
import { makeEgress } from '../net/egress.ts';
import { classify } from '../net/ip-addresses.ts';
import { makeMtaSts } from '../net/mta-sts.ts';
import { listSigningDomains, type SigningDomain } from '../store/senders.ts';
import { checkDkim, checkDmarc } from './domain-checks.ts';
import { type Finding, messageOf, ok, runCheck, unknown, warn } from './findings.ts';
import {
  checkBounces,
  checkCertificate,
  checkHelo,
  checkMtaSts,
  checkReverse,
  checkSpf,
  findAddresses,
  hasName,
} from './host-checks.ts';
import { checkDirect, checkRelay, type SendingChecks } from './way-checks.ts';

interface Options {
  /** Doctor connects to the mail server of this domain. */
  to: string;
  /** The address that other mail servers see. */
  address?: string;
}

/** Enough for any operator; the checks ask DNS a few questions for each domain. */
const maxDomains = 1000;
/** DNS and mail servers that do not answer end the checks then. */
const maxMs = 120_000;

export async function diagnoseSending(config: Config, options: Options): Promise<Finding[]> {
  if (config.outbound === 'capture') return [{ check: 'transport', ...describeCapture(config) }];
  const { dnsServers } = config;
  const dns = makeDnsClient({ dnsServers, keepMs: 60_000 });
  const egress = makeEgress(config);
  const mtaSts = makeMtaSts({ dns, egress, now: () => new Date() });
  const checks = { config, dns, egress, mtaSts, signal: AbortSignal.timeout(maxMs) };
  const way =
    config.outbound === 'relay' ? await diagnoseRelay(checks) : await diagnoseDirect(checks, options);
  if (!hasName(config)) return [...way, ...(await diagnoseDomains(checks))];
  return [
    ...way,
    await runCheck('bounces', checkBounces(checks)),
    ...(await diagnoseDomains(checks)),
    await runCheck('certificate', checkCertificate(config, new Date())),
    await runCheck('MTA-STS', checkMtaSts(checks)),
  ];
}

function describeCapture({ production }: Config) {
  const detail = 'capture: outgoing mail is captured and does not leave this machine';
  const remedy =
    'Nothing is checked until POSTHORN_OUTBOUND is direct or relay. Set it, or POSTHORN_RELAY_URL, to send mail.';
  return production ? warn(detail, remedy) : { ...ok(detail), remedy };
}

async function diagnoseRelay(checks: SendingChecks): Promise<Finding[]> {
  const { relay, bounceDomain } = checks.config;
  const spf = unknown(
    'Posthorn does not know from which addresses the relay sends',
    `The SPF record of ${bounceDomain} must allow the relay: its provider says what to add.`,
  );
  return [
    { check: 'transport', ...ok(`relay: all mail goes through ${relay?.host}:${relay?.port}`) },
    await runCheck('relay', checkRelay(checks)),
    hasName(checks.config) ? { check: 'SPF', ...spf } : await runCheck('HELO name', checkHelo(checks, null)),
  ];
}

async function diagnoseDirect(checks: SendingChecks, { to, address }: Options): Promise<Finding[]> {
  const { mailHost } = checks.config;
  const { result, localAddress } = await checkDirect(checks, to);
  const connection = [
    { check: 'transport', ...ok('direct: to the mail server of each recipient') },
    { check: `port ${checks.config.mxPort}`, ...result },
  ];
  if (!hasName(checks.config)) return [...connection, await runCheck('HELO name', checkHelo(checks, null))];
  const isKnown = localAddress !== null && classify(localAddress) === 'public';
  const seen = address ?? (isKnown ? localAddress : null);
  // Behind NAT this machine does not know its public address, and the name in DNS is the best guess.
  const addresses = seen ? [seen] : ((await findAddresses(checks, mailHost)) ?? []);
  const none = unknown(
    'the address of outgoing mail is not known',
    'Name the public address of this machine with --address.',
  );
  const each = await Promise.all(
    addresses.flatMap((one) => [
      runCheck('reverse DNS', checkReverse(checks, one)),
      runCheck('SPF', checkSpf(checks, one)),
    ]),
  );
  return [
    ...connection,
    await runCheck('HELO name', checkHelo(checks, seen)),
    ...(each.length > 0 ? each : [{ check: 'reverse DNS', ...none }]),
  ];
}

async function diagnoseDomains(checks: SendingChecks): Promise<Finding[]> {
  let domains: SigningDomain[];
  try {
    domains = await listDomains(checks.config);
  } catch (error) {
    const remedy = 'Run the checks without --sending: they say what is wrong with the database.';
    return [{ check: 'DKIM', ...unknown(`the identities cannot be read: ${messageOf(error)}`, remedy) }];
  }
  if (domains.length === 0) {
    const remedy = 'Only a verified identity sends. Connect a domain and publish its DNS records.';
    return [{ check: 'DKIM', ...warn('no domain is verified', remedy) }];
  }
  return [...(await checkDkim(checks, domains)), ...(await checkDmarc(checks, domains))];
}

async function listDomains(config: Config): Promise<SigningDomain[]> {
  if (config.databaseUrl === null && !hasCluster(config.dataDir)) return [];
  const log = makeLog({ level: 'silent', json: false });
  const opening = { purpose: 'tool', log, max: 1, signal: AbortSignal.timeout(5000) } as const;
  const database = await openDatabase(config, opening);
  try {
    return await listSigningDomains(database.sql, maxDomains);
  } finally {
    await database.close();
  }
}

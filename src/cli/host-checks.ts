/** What other mail servers find out about this host: its names, its SPF record, where bounces go, its certificate. */
import { X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { Config } from '../config.ts';
import { evaluateSpf } from '../mailauth/authenticate.ts';
import { openCertificate } from '../net/certificate.ts';
import { type DnsAnswer, withDeadline } from '../net/dns.ts';
import { reverseName } from '../net/ip-addresses.ts';
import { matchesPolicy, readRecordId } from '../net/mta-sts.ts';
import { findMailHosts } from '../net/mx.ts';
import { makeToolLog } from './database-tool.ts';
import { type CheckResult, fail, ok, unknown, warn } from './findings.ts';
import type { SendingChecks } from './way-checks.ts';

const again = 'Run the check again. If it stays so, check the DNS servers: run the checks without --sending.';
const spfMs = 10_000;
const renewDays = 14;

/** Null: DNS did not answer. */
export async function findAddresses({ dns, signal }: SendingChecks, name: string): Promise<string[] | null> {
  const answers = await Promise.all([dns.resolve(name, 'A', signal), dns.resolve(name, 'AAAA', signal)]);
  const found = answers.flatMap((answer) => (answer.kind === 'records' ? answer.values : []));
  return found.length === 0 && answers.some(({ kind }) => kind === 'unknown') ? null : found;
}

/** Without a name of this host, the checks of its DNS records and of its certificate would give advice about localhost. */
export function hasName({ mailHost }: Config): boolean {
  return mailHost !== 'localhost';
}

/** `seen`: the address of outgoing mail; null if only DNS says it. */
export async function checkHelo(checks: SendingChecks, seen: string | null): Promise<CheckResult> {
  const { mailHost } = checks.config;
  if (!hasName(checks.config)) {
    const remedy =
      'Set POSTHORN_MAIL_HOST to the public name of this machine, such as mx.example.com. Then run the check again.';
    return fail('Posthorn has no name of its own', remedy);
  }
  const addresses = await findAddresses(checks, mailHost);
  if (addresses === null)
    return unknown(`the addresses of ${mailHost} are not known: DNS does not answer`, again);
  const publish = `Publish an A or AAAA record for ${mailHost} with the address of outgoing mail`;
  if (addresses.length === 0) return fail(`${mailHost} has no address in DNS`, `${publish}.`);
  if (seen === null || addresses.includes(seen))
    return ok(`${mailHost} has the address ${addresses.join(', ')}`);
  return fail(
    `${mailHost} has the address ${addresses.join(', ')}, but mail leaves from ${seen}`,
    `${publish}, ${seen}. Behind NAT, name the public address with --address.`,
  );
}

export async function checkReverse(checks: SendingChecks, address: string): Promise<CheckResult> {
  const { mailHost } = checks.config;
  const answer = await checks.dns.resolve(reverseName(address), 'PTR', checks.signal);
  if (answer.kind === 'unknown')
    return unknown(`the name of ${address} is not known: ${answer.reason}`, again);
  const names = answer.kind === 'records' ? answer.values.map(plain) : [];
  const ask = `Ask the provider of the address to set its reverse DNS (PTR) to ${mailHost}.`;
  if (names.length === 0) return fail(`${address} has no name (PTR record)`, ask);
  const leads = await Promise.all(names.map((name) => findAddresses(checks, name)));
  const confirmed = names.filter((_, n) => leads[n]?.includes(address));
  const shown = names.join(', ');
  if (confirmed.includes(plain(mailHost))) return ok(`${address} is ${mailHost}, in both directions`);
  if (confirmed.length > 0) {
    const remedy = `${ask} Or set POSTHORN_MAIL_HOST to ${confirmed[0]}.`;
    return warn(`${address} is ${shown}, but Posthorn says that it is ${mailHost} (HELO)`, remedy);
  }
  if (leads.includes(null))
    return unknown(`the addresses of ${shown} are not known: DNS does not answer`, again);
  return fail(`${address} is named ${shown}, but that name does not lead to ${address}`, ask);
}

export async function checkSpf({ config, dns }: SendingChecks, address: string): Promise<CheckResult> {
  const { bounceDomain, mailHost } = config;
  const origin = { mailFrom: `bounces@${bounceDomain}`, remoteIp: address, helo: mailHost };
  const { result } = await withDeadline(spfMs, (signal) => evaluateSpf(origin, mailHost, dns, signal));
  if (result === 'pass') return ok(`${bounceDomain} allows ${address}`);
  if (result === 'temperror') return unknown(`the SPF record of ${bounceDomain} could not be read`, again);
  if (result === 'none') {
    return fail(
      `${bounceDomain} has no SPF record`,
      `Publish at ${bounceDomain}: TXT "v=spf1 a:${mailHost} -all"`,
    );
  }
  if (result === 'permerror') {
    return fail(
      `the SPF record of ${bounceDomain} has a mistake`,
      `Correct it, for example: v=spf1 a:${mailHost} -all`,
    );
  }
  return fail(
    `the SPF record of ${bounceDomain} does not allow ${address} (${result})`,
    `Add a:${mailHost} or ip${address.includes(':') ? 6 : 4}:${address} to the record, before "all".`,
  );
}

/** Reports about mail that could not be delivered come to the bounce domain. */
export async function checkBounces(checks: SendingChecks): Promise<CheckResult> {
  const { bounceDomain, mailHost } = checks.config;
  const found = await findMailHosts(bounceDomain, { ...checks, random: Math.random });
  const record = bounceDomain === mailHost ? 'an A or AAAA record' : `MX 10 ${mailHost}`;
  const publish = `Publish at ${bounceDomain}: ${record}`;
  if (found.kind === 'temporary') return unknown(found.reason, again);
  if (found.kind === 'permanent') return fail(found.reason, publish);
  if (found.hosts.includes(plain(mailHost))) return ok(`mail to ${bounceDomain} comes to ${mailHost}`);
  const ours = await findAddresses(checks, mailHost);
  const theirs = await Promise.all(found.hosts.map((host) => findAddresses(checks, host)));
  if (theirs.flat().some((address) => address !== null && ours?.includes(address))) {
    return ok(`mail to ${bounceDomain} comes to the address of ${mailHost}`);
  }
  return fail(`mail to ${bounceDomain} goes to ${found.hosts.join(', ')}, not to ${mailHost}`, publish);
}

/** The files that the listeners load. */
export async function checkCertificate({ tls, mailHost }: Config, now: Date): Promise<CheckResult> {
  if (tls === null) {
    const remedy = 'Set POSTHORN_TLS_CERT and POSTHORN_TLS_KEY (docs/operations.md, "TLS for SMTP").';
    return warn('self-signed: many programs and senders with MTA-STS refuse it', remedy);
  }
  // Throws if the files do not fit together.
  await openCertificate({ files: tls, mailHost, log: makeToolLog() });
  const certificate = new X509Certificate(await readFile(tls.certFile));
  const days = Math.floor((certificate.validToDate.getTime() - now.getTime()) / 86_400_000);
  const renew = `Renew ${tls.certFile}.`;
  if (days < 0) return fail(`expired on ${certificate.validToDate.toISOString().slice(0, 10)}`, renew);
  if (certificate.checkHost(mailHost) === undefined) {
    return fail(
      `not for ${mailHost}: ${certificate.subjectAltName ?? certificate.subject}`,
      `Get one for ${mailHost}.`,
    );
  }
  if (certificate.checkIssued(certificate)) {
    return warn(`for ${mailHost}, but self-signed`, 'Get one from an authority that others trust.');
  }
  if (days < renewDays) return warn(`for ${mailHost}, expires in ${days} days`, renew);
  return ok(`for ${mailHost}, valid for ${days} days`);
}

/** Of the bounce domain, whose mail comes here: a wrong policy keeps the reports away. */
export async function checkMtaSts({ config, dns, mtaSts, signal }: SendingChecks): Promise<CheckResult> {
  const { bounceDomain, mailHost, tls } = config;
  const record: DnsAnswer<string> = await dns.resolve(`_mta-sts.${bounceDomain}`, 'TXT', signal);
  if (record.kind === 'unknown') return unknown(`not known: ${record.reason}`, again);
  if (record.kind === 'none' || readRecordId(record.values) === null)
    return ok(`${bounceDomain} has no policy`);
  const policy = await mtaSts.find(bounceDomain, signal);
  if (!policy) {
    const file = `https://mta-sts.${bounceDomain}/.well-known/mta-sts.txt`;
    return fail(
      'the policy is announced, but cannot be fetched',
      `Serve it at ${file}, or delete _mta-sts.${bounceDomain}.`,
    );
  }
  if (policy.mode === 'none') return ok(`${bounceDomain} has a policy that asks for nothing`);
  if (!matchesPolicy(policy, mailHost)) {
    return fail(
      `the policy of ${bounceDomain} does not allow ${mailHost}`,
      `Add to the policy: mx: ${mailHost}`,
    );
  }
  if (policy.mode === 'enforce' && tls === null) {
    const remedy = 'Set POSTHORN_TLS_CERT and POSTHORN_TLS_KEY, or change the policy to testing.';
    return fail(
      `the policy of ${bounceDomain} requires a valid certificate, and this one is self-signed`,
      remedy,
    );
  }
  return ok(`the policy of ${bounceDomain} (${policy.mode}) allows ${mailHost}`);
}

function plain(name: string): string {
  return name.toLowerCase().replace(/\.$/, '');
}

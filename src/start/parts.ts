/** The parts that loops and listeners share: made once for a process, and stopped after both. */
import { availableParallelism } from 'node:os';
import type { Config } from '../config.ts';
import { makeConfirmationLinks } from '../contract/confirmation-links.ts';
import { makeLinks } from '../contract/links.ts';
import type { Pool } from '../db/client.ts';
import { prepareSchema, refuseNewerSchema } from '../db/migrate.ts';
import type { MakeKeyPair } from '../identities/dkim.ts';
import { makeLookup } from '../identities/lookup.ts';
import { makeVerifyParts } from '../identities/verify.ts';
import type { Log } from '../lib/log.ts';
import { type Metrics, makeMetrics } from '../lib/metrics.ts';
import { originOf } from '../lib/origin.ts';
import { loadSecretKeys } from '../lib/secrets.ts';
import type { Tracer } from '../lib/tracing.ts';
import { readVersion } from '../lib/version.ts';
import { ImapThreads } from '../mailboxes/imap-threads.ts';
import { Verifications } from '../mailboxes/verifications.ts';
import { makeMailWork } from '../mailwork/mailwork.ts';
import { AccessTokens } from '../net/access-tokens.ts';
import { makeDnsClient } from '../net/dns.ts';
import { makeEgress } from '../net/egress.ts';
import { makeMtaSts } from '../net/mta-sts.ts';
import { makeSns } from '../providers/sns.ts';
import { MailLog } from '../receiving/mail-log.ts';
import { AccountServers } from '../sending/account-servers.ts';
import { deriveBounceKeys } from '../sending/bounce-address.ts';
import { makeWay, makeWays } from '../sending/way.ts';
import { countBacklog, readOldestPending } from '../store/backlog.ts';
import { renumberRestored } from '../store/event-stream.ts';
import { countFailing } from '../store/imap-connections.ts';
import { openSealer } from '../store/sealed-secrets.ts';
import { Poster } from '../webhooks/post.ts';
import { type Stops, stopLater } from './stops.ts';

/** How long a DNS answer is reused for outgoing mail. */
const dnsKeepMs = 60_000;

/** For tests: servers that take the place of the providers' own. `ca`: the authority that issued their certificates. */
export interface ProviderServers {
  snsPort?: number;
  smtpPort?: number;
  ca: string;
}

export type Parts = Awaited<ReturnType<typeof makeParts>>;

export async function makeParts(
  {
    config,
    log,
    sql,
    providerServers,
    makeKeyPair,
  }: {
    config: Config;
    log: Log;
    sql: Pool;
    providerServers?: ProviderServers | undefined;
    makeKeyPair?: MakeKeyPair | undefined;
  },
  readUrl: () => string | null,
  stops: Stops,
) {
  await refuseNewerSchema(sql);
  const secretKeys = loadSecretKeys(config);
  // Before the migration: a start with the wrong key must not change the schema.
  const sealer = await openSealer(sql, secretKeys);
  await prepareSchema(sql, log, config);
  while (await renumberRestored(sql));
  const mailWork = stopLater(stops, makeMailWork({ ...config, log }));
  const metrics = makeMetrics({
    backlog: () => countBacklog(sql),
    oldestPendingSeconds: () => readOldestPending(sql),
    failingSyncs: () => countFailing(sql),
  });
  const tracer = await openTracer(config, log, metrics);
  if (tracer) stopLater(stops, tracer);
  const mailLog = new MailLog(log);
  stops.push(async () => mailLog.stop());
  const egress = makeEgress({ ...config, log });
  const poster = new Poster({ egress });
  stops.push(() => poster.close());
  const { mailHost, acceptUnverified, inlineRawBytes, maxMessageBytes } = config;
  const dns = makeDnsClient({ dnsServers: config.dnsServers, keepMs: dnsKeepMs });
  const mtaSts = makeMtaSts({ dns, egress, now: () => new Date() });
  const bounceKeys = deriveBounceKeys(secretKeys);
  const readBaseUrl = () => baseUrl(config, readUrl());
  const operatorWay = makeWay({ ...config, heloName: mailHost, dns, mtaSts, egress });
  const tokens = new AccessTokens({ egress, allowHttp: config.allowHttp });
  const { production } = config;
  const { snsPort, smtpPort: providerPort, ca } = providerServers ?? {};
  const accounts = new AccountServers({
    ...{ sql, sealer, log, egress, tokens, heloName: mailHost, production, ca, providerPort },
  });
  const ways = makeWays(operatorWay, accounts);
  // One core is left for the event loop. The threads start with the first connections.
  const imapThreads = stopLater(
    stops,
    new ImapThreads({ log, count: Math.max(2, availableParallelism() - 1) }),
  );
  return {
    ...{ config, log, sql, sealer, mailWork, metrics, tracer, egress, poster, dns, ways },
    bounceKeys,
    verifyAccounts: { sql, sealer, tokens, accounts, imap: { egress, production, threads: imapThreads } },
    verifications: new Verifications(),
    reports: { sql, bounceKeys, bounceDomain: config.bounceDomain, read: mailWork.report, log },
    links: makeLinks(secretKeys, readBaseUrl),
    confirmationLinks: makeConfirmationLinks(secretKeys, readBaseUrl),
    readBaseUrl,
    verification: makeVerifyParts({
      ...{ sql, sealer, log, mailHost, lookup: makeLookup(config), makeKeyPair },
      onLost: () => metrics.identitiesLost.inc(),
    }),
    mail: { sql, mailWork, tracer, metrics, mailLog, acceptUnverified, inlineRawBytes },
    submit: {
      ...{ sql, work: mailWork, ways, metrics, log, maxMessageBytes },
      sendRatePerMinute: config.sendRatePerMinute,
    },
    sns: makeSns({ egress, port: snsPort, ca }),
    userAgent: `Posthorn/${readVersion()}`,
  };
}

/** OpenTelemetry is loaded only when tracing is on. */
async function openTracer(config: Config, log: Log, { spans }: Metrics): Promise<Tracer | null> {
  if (!config.traces) return null;
  const { startTracer } = await import('../lib/tracing.ts');
  const count = (outcome: string, number: number) => spans.inc({ outcome }, number);
  return startTracer({ config: config.traces, version: readVersion(), log, count });
}

/** The start of links in payloads: the same in every process, unless PORT is 0. */
export function baseUrl({ publicUrl, host, port, basePath }: Config, url: string | null): string {
  const own = port === 0 && url ? url : originOf(host, port);
  return `${publicUrl ?? own}${basePath}`;
}

/**
 * The MX server: joins the SMTP protocol (server.ts, connection.ts, session.ts) to the receiving code.
 *   RCPT         → a bounce address of ours: 250, or 550 if it is forged or expired. Else `findRoute` finds the identity: 250, 550
 *                  (unknown) or 450 (several unverified owners)
 *   end of DATA  → `acceptMail` examines the message and commits it: 250, or 45x if it cannot be stored now. A message that has
 *                  passed through too many servers is in a loop: 554
 * Guarantee: no 250 for a message before its commit.
 */
import type { Config } from '../config.ts';
import type { Log } from '../lib/log.ts';
import type { Metrics } from '../lib/metrics.ts';
import { cutHeader } from '../mime/headers.ts';
import { type AcceptParts, acceptMail } from '../receiving/accept.ts';
import { cacheRoutes, type RoutedRecipient } from '../receiving/route.ts';
import { applyReport, findBounce, type ReportParts, type SentRecipient } from '../sending/reports.ts';
import type { MessageDecision, ReceivedMail } from './accept-message.ts';
import { makeSmtpMetrics } from './metrics.ts';
import { type Refusal, refusal } from './reply.ts';
import { type SmtpServer, startSmtpServer } from './server.ts';
import type { RecipientDecision } from './session.ts';
import { chooseSpoolFolder } from './spool.ts';
import { findStorageRefusal } from './storage-refusals.ts';

interface MxParts {
  config: Config;
  mail: AcceptParts;
  reports: ReportParts;
  log: Log;
  metrics: Metrics;
}

const unknownRecipient = refusal(550, '5.1.1', 'No such recipient; check the address', 'unknown');
/** By `RouteDecision`. The client must not learn which identities exist without being verified. */
const refusals = {
  unknown: unknownRecipient,
  unverified: { ...unknownRecipient, reason: 'unverified' },
  contested: refusal(
    450,
    '4.2.1',
    'The owner of this address is not verified yet; please try again later',
    'contested',
  ),
};
const tooEarly = refusal(
  451,
  '4.3.0',
  'The message of this report is still being sent; please try again later',
  'report_too_early',
);
const badBounce = refusal(550, '5.1.1', 'No such bounce address, or it has expired', 'bad_bounce_address');
const loop = refusal(554, '5.4.6', 'Too many Received fields: the message is in a mail loop', 'loop');

/** Where mail for a recipient goes: to an identity, or, if it is a report, to the message that it is about. */
type MxRoute = RoutedRecipient | SentRecipient;

export function startMxServer({ config, mail, reports, log, metrics }: MxParts): Promise<SmtpServer> {
  const findRoute = cacheRoutes(mail);

  async function route(address: string): Promise<RecipientDecision<MxRoute>> {
    try {
      const bounce = findBounce(reports, address, Date.now());
      if (bounce !== null) {
        return typeof bounce === 'string'
          ? { accepted: false, refusal: badBounce }
          : { accepted: true, route: bounce };
      }
      const found = await findRoute(address);
      if (typeof found !== 'string') return { accepted: true, route: found };
      return { accepted: false, refusal: refusals[found] };
    } catch (error) {
      return { accepted: false, refusal: refusalFor(error) };
    }
  }

  async function accept(received: ReceivedMail<MxRoute>): Promise<MessageDecision> {
    const { raw, mailFrom, remoteIp, helo, tls } = received;
    if (isInLoop(raw)) return { accepted: false, refusal: loop };
    const routes = received.recipients.map(({ route }) => route);
    const routed = routes.filter((route) => 'identity' in route);
    const envelope = { mailFrom, remoteIp, helo, tls };
    try {
      // First: if the rest fails, the message comes again, and a report that is applied already changes nothing.
      for (const route of routes) {
        if (!('identity' in route) && !(await applyReport(reports, route, raw)))
          return { accepted: false, refusal: tooEarly };
      }
      if (routed.length === 0) return { accepted: true, id: 'a report' };
      const [id] = await acceptMail(mail, { source: 'smtp', raw, envelope, recipients: async () => routed });
      // Now a 250 is safe: `acceptMail` has committed the message. Without an id nothing was stored: since RCPT every identity was
      // deleted, or may no longer receive mail.
      return id === undefined ? { accepted: false, refusal: unknownRecipient } : { accepted: true, id };
    } catch (error) {
      const refusal = refusalFor(error);
      log.debug({ err: error }, `A message was put off with ${refusal.status}`);
      return { accepted: false, refusal };
    }
  }

  return startSmtpServer<MxRoute>({
    host: config.smtpHost,
    port: config.smtpPort,
    mailHost: config.mailHost,
    tls: config.tls,
    limits: config.smtpLimits,
    spoolFolder: chooseSpoolFolder(config),
    ownerOf: (route) => ('identity' in route ? route.identity.ownerId : ''),
    route,
    accept,
    log,
    openMailLog: (remoteIp) => mail.mailLog.openConnection(remoteIp, 'smtp'),
    metrics: makeSmtpMetrics(metrics, 'mx'),
  });
}

/** RFC 5321 §6.3: every server on the way adds a Received field. */
const maxReceivedFields = 50;
/** As much of a header as is shown. */
const maxHeaderBytes = 512 * 1024;

function isInLoop(raw: Buffer): boolean {
  const header = cutHeader(raw, maxHeaderBytes).toString('latin1');
  const received = header.match(/(?:^|\n)received[ \t]*:/gi) ?? [];
  return received.length > maxReceivedFields;
}

/** Throws any other error again: the connection logs it and answers 451. */
function refusalFor(error: unknown): Refusal {
  const refusal = findStorageRefusal(error);
  if (!refusal) throw error;
  return refusal;
}

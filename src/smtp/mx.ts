/** The MX door as the service uses it: a recipient is routed at RCPT, a message is committed before its 250. */
import type { Config } from '../config.ts';
import { errorCode, isUnavailable } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import type { Metrics } from '../lib/metrics.ts';
import { type AcceptParts, acceptMail } from '../receiving/accept.ts';
import { type RouteDecision, type RoutedRecipient, routeRecipient } from '../receiving/route.ts';
import type { Acceptance, ReceivedMail } from './connection.ts';
import { type SmtpServer, startSmtpServer } from './server.ts';
import type { RecipientDecision, Refusal } from './session.ts';

interface DoorParts {
  config: Config;
  mail: AcceptParts;
  log: Log;
  metrics: Metrics;
}

const diskFull = '53100';

const unknownRecipient: Refusal = {
  status: 550,
  enhanced: '5.1.1',
  text: 'There is no such recipient here; check the address',
};
const contested: Refusal = {
  status: 450,
  enhanced: '4.2.1',
  text: 'It is not settled whose address this is; please try again later',
};
const away: Refusal = {
  status: 451,
  enhanced: '4.3.0',
  text: 'Mail cannot be stored for the moment; please try again later',
};
const full: Refusal = {
  status: 452,
  enhanced: '4.3.1',
  text: 'There is no room for mail for the moment; please try again later',
};

export function startMxServer(parts: DoorParts): Promise<SmtpServer> {
  const { config, mail, log, metrics } = parts;
  const route = rememberRoutes((address) => routeRecipient(mail, address));

  async function answerRecipient(address: string): Promise<RecipientDecision<RoutedRecipient>> {
    try {
      const found = await route(address);
      if (typeof found !== 'string') return { accept: true, route: { ...found, address } };
      if (found === 'unknown') return { accept: false, ...unknownRecipient };
      log.warn(
        { address },
        'mail was put off: several unverified identities claim this address, and none gets it before one is verified',
      );
      return { accept: false, ...contested };
    } catch (error) {
      return { accept: false, ...explain(error) };
    }
  }

  async function accept(received: ReceivedMail<RoutedRecipient>): Promise<Acceptance> {
    const { raw, mailFrom, remoteIp, helo, tls } = received;
    const recipients = async () => received.recipients.map(({ route }) => route);
    const envelope = { mailFrom, remoteIp, helo, tls };
    try {
      const [id] = await acceptMail(mail, { source: 'smtp', raw, envelope, recipients });
      // Here 250 becomes safe to send: the message is committed.
      return id === undefined ? { ok: false, ...unknownRecipient } : { ok: true, id };
    } catch (error) {
      const refusal = explain(error);
      log.warn({ err: error }, `a message was put off with ${refusal.status}`);
      return { ok: false, ...refusal };
    }
  }

  return startSmtpServer<RoutedRecipient>({
    host: config.smtpHost,
    port: config.smtpPort,
    mailHost: config.mailHost,
    tls: config.tls,
    limits: config.smtpLimits,
    route: answerRecipient,
    accept,
    log,
    metrics: {
      connections: (open) => metrics.smtpConnections.set(open),
      connectionRefused: () => metrics.smtpRefused.inc(),
      recipientAnswered: (status) => metrics.smtpRecipients.inc({ status }),
      messageAnswered: (status) => metrics.smtpMessages.inc({ status }),
    },
  });
}

/** What the database being away or full is called in SMTP; anything else is ours to log, and is thrown on. */
function explain(error: unknown): Refusal {
  if (errorCode(error) === diskFull) return full;
  if (isUnavailable(error)) return away;
  throw error;
}

const rememberMs = 1000;
const maxRemembered = 10_000;

/**
 * Who gets an address is asked once a second at most, unless nobody does. What is recorded is held against the identities of
 * that moment, so one that was deleted stops at once.
 */
function rememberRoutes(route: (address: string) => Promise<RouteDecision>) {
  const known = new Map<string, { found: RouteDecision; until: number }>();
  return async (address: string): Promise<RouteDecision> => {
    const remembered = known.get(address);
    if (remembered && remembered.until > performance.now()) return remembered.found;
    const found = await route(address);
    if (known.size >= maxRemembered) known.clear();
    if (found !== 'unknown') known.set(address, { found, until: performance.now() + rememberMs });
    return found;
  };
}

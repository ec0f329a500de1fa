/**
 * The submission listeners (RFC 6409, RFC 8314): programs send mail by SMTP, with an API key as the password.
 *   AUTH         → the owner of the key, if the key is valid now and has the scope `full` or `send`: 235, or 535
 *   MAIL         → the key is still valid, and one of the owner's identities may send from the address: 250, or 550
 *   RCPT         → any valid address: 250
 *   end of DATA  → the same way as `POST /messages`: 250 with the id of the message, 4xx if it cannot be sent now, or 5xx
 * Guarantee: no 250 for a message before its commit.
 */
import type { Config } from '../config.ts';
import { hashApiKey } from '../lib/api-key.ts';
import type { Log } from '../lib/log.ts';
import type { Metrics } from '../lib/metrics.ts';
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import { AuthFailures } from '../net/auth-failures.ts';
import { clientNetwork } from '../net/client-network.ts';
import { Problem } from '../problems.ts';
import type { MailLog } from '../receiving/mail-log.ts';
import { findSenderFor } from '../sending/authors.ts';
import {
  maxRecipients,
  noteSubmission,
  recordSubmission,
  type SubmitParts,
  submitRaw,
} from '../sending/submit.ts';
import { type ActiveKey, findActiveKey, touchApiKey } from '../store/api-keys.ts';
import type { MessageDecision, ReceivedMail } from './accept-message.ts';
import type { Submitter } from './auth.ts';
import { makeSmtpMetrics } from './metrics.ts';
import { type Refusal, type Reply, refusal, reply } from './reply.ts';
import { type SmtpServer, startSmtpServer } from './server.ts';
import type { RecipientDecision } from './session.ts';
import { chooseSpoolFolder } from './spool.ts';
import { findStorageRefusal } from './storage-refusals.ts';

interface SubmissionParts {
  config: Config;
  submit: SubmitParts;
  mail: { mailLog: MailLog };
  log: Log;
  metrics: Metrics;
}

const badKey = {
  ...reply(535, '5.7.8', 'The password must be an API key that is neither revoked nor expired'),
  reason: 'bad_api_key',
};
const badScope = {
  ...reply(535, '5.7.8', 'This API key may not send; use a key with the scope "send" or "full"'),
  reason: 'scope_insufficient',
};
const blocked = {
  ...reply(421, '4.7.0', 'Too many failed AUTH commands from your address; try again in a minute', 'close'),
  reason: 'too_many_failed_auths',
};
const notNow = {
  ...reply(454, '4.7.0', 'API keys cannot be checked right now; please try again later'),
  reason: 'database_unavailable',
};
const notAuthenticated = refusal(550, '5.7.1', 'Send AUTH first', 'not_authenticated');
const revoked = refusal(550, '5.7.1', 'The API key was revoked or has expired', 'bad_api_key');
const noSender = refusal(
  550,
  '5.7.1',
  'MAIL FROM:<> is not allowed here; give an address of yours',
  'no_sender',
);
const deleted = refusal(550, '5.7.1', 'The identity was deleted meanwhile', 'identity_deleted');

interface SubmittedRecipient {
  /** As it is stored. */
  address: string;
  submitter: Submitter;
}

interface SubmissionServers {
  /** Ports; null without the listener. */
  submissionPort: number | null;
  submissionsPort: number | null;
  stop(): Promise<void>;
}

export async function startSubmissionServers(parts: SubmissionParts): Promise<SubmissionServers> {
  const { submissionPort, submissionsPort } = parts.config;
  // Shared by both listeners: otherwise a client could try twice as many keys.
  const failures = new AuthFailures();
  const plain =
    submissionPort === null ? null : await startSubmission(parts, failures, submissionPort, 'submission');
  const secure =
    submissionsPort === null
      ? null
      : await startSubmission(parts, failures, submissionsPort, 'submissions').catch(async (error) => {
          await plain?.stop();
          throw error;
        });
  return {
    submissionPort: plain?.port ?? null,
    submissionsPort: secure?.port ?? null,
    async stop() {
      await Promise.all([plain?.stop(), secure?.stop()]);
    },
  };
}

function startSubmission(
  { config, submit, mail: { mailLog }, log, metrics }: SubmissionParts,
  failures: AuthFailures,
  port: number,
  listener: 'submission' | 'submissions',
): Promise<SmtpServer> {
  async function authenticate(password: string, remoteIp: string): Promise<Submitter | Reply> {
    const network = clientNetwork(remoteIp);
    // Also a valid key is refused then: otherwise the replies would still tell valid keys from others.
    if (failures.isBlocked(network, performance.now())) return blocked;
    try {
      // For every password the same work: one hash and one query.
      const keyHash = hashApiKey(password);
      const key = await findActiveKey(submit.sql, keyHash);
      if (key && maySend(key)) return { ownerId: key.ownerId, keyId: key.id, keyHash };
      failures.add(network, performance.now());
      return key ? badScope : badKey;
    } catch (error) {
      if (findStorageRefusal(error)) return notNow;
      throw error;
    }
  }

  /** Null: the key is still valid. */
  async function checkKey({ keyHash }: Submitter): Promise<Refusal | null> {
    const key = await findActiveKey(submit.sql, keyHash);
    if (!key || !maySend(key)) return revoked;
    if (key.stale) {
      touchApiKey(submit.sql, key.ownerId, key.id).catch((err) =>
        log.warn({ err, keyId: key.id }, 'last_used_at of an API key was not updated'),
      );
    }
    return null;
  }

  async function checkSender(mailFrom: string | null, submitter: Submitter): Promise<Refusal | null> {
    if (mailFrom === null) return noSender;
    try {
      const refused = await checkKey(submitter);
      if (!refused) await findSenderFor(submit, submitter.ownerId, mailFrom);
      return refused;
    } catch (error) {
      return refusalFor(error);
    }
  }

  async function accept({
    raw,
    recipients,
    remoteIp,
  }: ReceivedMail<SubmittedRecipient>): Promise<MessageDecision> {
    const submitter = recipients[0]?.route.submitter;
    if (!submitter) return { accepted: false, refusal: notAuthenticated };
    try {
      // Again: the client may have taken half an hour to send the message.
      const refused = await checkKey(submitter);
      if (refused) return { accepted: false, refusal: refused };
      const { ownerId, keyId } = submitter;
      const submission = await submitRaw(submit, { ownerId, keyId, source: 'submission', remoteIp }, null, {
        raw,
        recipients: recipients.map(({ route }) => ({ name: null, address: route.address })),
      });
      const recorded = await recordSubmission(submit.sql, submission);
      if (!recorded) return { accepted: false, refusal: deleted };
      noteSubmission(submit, submission, recorded);
      return { accepted: true, id: submission.message.id };
    } catch (error) {
      const refusal = refusalFor(error);
      if (refusal.status < 500)
        log.debug({ err: error }, `A submitted message was put off with ${refusal.status}`);
      return { accepted: false, refusal };
    }
  }

  const isTlsFromStart = listener === 'submissions';
  return startSmtpServer<SubmittedRecipient>({
    host: config.smtpHost,
    port,
    portSetting: isTlsFromStart ? 'POSTHORN_SUBMISSIONS_PORT' : 'POSTHORN_SUBMISSION_PORT',
    isTlsFromStart,
    mailHost: config.mailHost,
    tls: config.tls,
    limits: { ...config.smtpLimits, maxRecipients },
    spoolFolder: chooseSpoolFolder(config),
    submission: { authenticate, checkSender },
    ownerOf: ({ submitter }) => submitter.ownerId,
    route,
    accept,
    log,
    openMailLog: (remoteIp) => mailLog.openConnection(remoteIp, 'submission'),
    metrics: makeSmtpMetrics(metrics, listener),
  });
}

function maySend({ scope }: ActiveKey): boolean {
  return scope === 'full' || scope === 'send';
}

async function route(
  given: string,
  submitter: Submitter | null,
): Promise<RecipientDecision<SubmittedRecipient>> {
  if (!submitter) return { accepted: false, refusal: notAuthenticated };
  const read = readAddressOrDomain(given);
  if ('fault' in read)
    return { accepted: false, refusal: refusal(550, '5.1.3', read.fault, 'bad_recipient') };
  return { accepted: true, route: { address: read.value, submitter } };
}

/** Throws any other error again: the session or the connection logs it and answers 451. */
function refusalFor(error: unknown): Refusal {
  const storage = findStorageRefusal(error);
  if (storage) return storage;
  if (!(error instanceof Problem)) throw error;
  const { code, message, detail, errors: [fault] = [] } = error;
  switch (code) {
    case 'rate_limited':
      return refusal(451, '4.7.1', detail, code);
    case 'identity_not_verified':
      return refusal(550, '5.7.1', `${message}. ${detail}`, code);
    case 'body_too_large':
      return refusal(552, '5.3.4', detail, 'too_big');
    case 'invalid_body':
      return fault?.code === 'not_allowed'
        ? refusal(550, '5.7.1', fault.message, 'sender_not_allowed')
        : refusal(554, '5.6.0', fault?.message ?? detail, 'invalid_message');
    default:
      throw error;
  }
}

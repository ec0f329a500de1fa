/**
 * The queue of outgoing mail: claim → sign → transmit → decide → record. One job for each recipient. The recipients of an owner at
 * one domain, for the relay, or for one account or provider, are a lane, so a dead server delays no other mail; the lanes of an owner are a group, so no owner
 * delays another. `queue/worker.ts` has the loop and its guarantees; this file says what sending is.
 */
import { isUnavailable, type Pool } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import type { Loop } from '../lib/loop.ts';
import type { Metrics } from '../lib/metrics.ts';
import type { LaneLimits } from '../queue/lanes.ts';
import { type JobOutcome, type Preparation, QueueWorker } from '../queue/worker.ts';
import {
  type ConfirmationMail,
  readConfirmationMails,
  recordConfirmationMails,
} from '../store/confirmations.ts';
import { leaseSeconds } from '../store/queue-rows.ts';
import {
  type ClaimedSend,
  claimSends,
  dropSends,
  promoteSends,
  readSends,
  recordSends,
  releaseSends,
  renewSends,
  type SendFacts,
  type TriedSend,
} from '../store/send-queue.ts';
import { mayJoin } from './authors.ts';
import { isSuppressing } from './bounce-type.ts';
import { type ConfirmationParts, writeConfirmationMail } from './confirmation-mail.ts';
import { DeadDestinations } from './dead-destinations.ts';
import { decide, type Tried } from './decide.ts';
import { FreshFacts } from './fresh-facts.ts';
import { LargeMail, type largeMemory } from './large-mail.ts';
import type { Signer } from './signer.ts';
import type { SendErrorCode, TryReply } from './try-reply.ts';
import type { Way, Ways } from './way.ts';
import type { Content } from './wire.ts';

export interface SendParts {
  /** Its own connections: claims and records must not wait for the API. */
  sql: Pool;
  ways: Ways;
  signer: Signer;
  /** The envelope sender of a message to one recipient. */
  bounceAddress(recipient: { messageId: string; recipient: number }): string;
  confirmations: ConfirmationParts;
  scheduleSeconds: readonly number[];
  log: Log;
  metrics: Metrics;
  /** Call it after the commit of events. */
  wakeAfterEvents(): void;
  limits?: LaneLimits;
  largeMemory?: typeof largeMemory;
  idleMs?: number | undefined;
}

const sendLimits: LaneLimits = {
  // As many connections to one host as `Connections` allows an owner.
  perLane: 10,
  maxPerLane: 10,
  perProcess: 400,
  maxWindow: 64,
  maxAhead: 512,
  // Never: a paused lane would not count the tries of its recipients, and nobody would ever give them up (`DeadDestinations`).
  breakerFailures: Number.POSITIVE_INFINITY,
  breakerPauseMs: 1000,
  maxBreakerPauseMs: 60_000,
};

/** Also within this time a retry becomes ready by itself (`promoteSends`). */
const pollMs = 2000;
/** A try that starts now must be safe from others for this long without a renewal of its lease: `mayEnd` asks again later. */
const safeTryMs = (leaseSeconds * 1000) / 2;

interface PreparedSend extends Preparation {
  facts: Omit<SendFacts, 'raw' | 'stored'>;
  content: Content;
  /** The field to put in front. */
  sign(): string | Promise<string>;
  /** Of the operator's mail, which belongs to no message. */
  confirmation?: ConfirmationMail;
}
type Outcome = TriedSend & JobOutcome & { ownerId: string; address: string; isConfirmation: boolean };

export function startSending(parts: SendParts): Loop & { pollNow(): void } {
  const { sql, ways, signer, log, metrics } = parts;
  const large = new LargeMail({ sql, log, ...(parts.largeMemory ? { limits: parts.largeMemory } : {}) });
  const dead = new DeadDestinations();
  const stopping = new AbortController();
  const read = new FreshFacts();

  const prepareSmall = (facts: SendFacts, raw: Buffer, { ownerId }: ClaimedSend): PreparedSend => {
    return { facts, content: [raw], sign: () => signer.sign(raw, ownerId, facts.domain) };
  };

  async function load(job: ClaimedSend, leaseEnd: AbortSignal): Promise<PreparedSend | 'cancel'> {
    const [found] = await readSends(sql, [job.id]);
    if (!found) return (await loadConfirmation(parts, job)) ?? 'cancel';
    const { raw, stored, domain } = found;
    if (raw) return prepareSmall(found, raw, job);
    // The signer caches the key. Looked up before memory is taken, because the name servers of the domain may take 5 s to answer.
    await signer.findKey(job.ownerId, domain);
    const signature = await large.withWhole(stored, leaseEnd, (raw) => signer.sign(raw, job.ownerId, domain));
    // Again: it may have been cancelled or suppressed while it waited for memory.
    const [facts] = await readSends(sql, [job.id]);
    return facts ? { facts, content: large.read(stored, stopping.signal), sign: () => signature } : 'cancel';
  }

  const worker = new QueueWorker<ClaimedSend, PreparedSend, Outcome>({
    name: 'outgoing mail',
    ...{ pollMs, idleMs: parts.idleMs },
    limits: parts.limits ?? sendLimits,
    leaseMs: leaseSeconds * 1000,
    maxTryMs: safeTryMs,
    laneOf: ({ laneId }) => laneId,
    groupOf: ({ ownerId }) => ownerId,
    skippedLanes: () => [],
    claim: (request) => claimSends(sql, request),
    renew: (leases) => renewSends(sql, leases),
    release: (leases) => releaseSends(sql, leases),
    hold: (leases) => releaseSends(sql, leases),
    cancel: (leases) => dropSends(sql, leases),
    promote: () => promoteSends(sql),
    async prefetch(jobs) {
      const ids = jobs.map(({ id }) => id);
      read.keep(await readSends(sql, ids), performance.now());
    },
    prepare(job, leaseEnd) {
      const facts = read.take(job.id, performance.now());
      return facts?.raw ? prepareSmall(facts, facts.raw, job) : load(job, leaseEnd());
    },
    tryOnce: (job, prepared, _claimedAt, isOurs) =>
      send({ ...parts, dead, stopping: stopping.signal }, job, prepared, isOurs),
    async abort() {
      stopping.abort();
      ways.close();
    },
    async record(tried) {
      const { confirmations = [], sends = [] } = Object.groupBy(tried, ({ isConfirmation }) =>
        isConfirmation ? 'confirmations' : 'sends',
      );
      const ended = confirmations.length > 0 ? await recordConfirmationMails(sql, confirmations) : [];
      const { ids, events } = sends.length > 0 ? await recordSends(sql, sends) : { ids: [], events: 0 };
      if (events > 0) parts.wakeAfterEvents();
      return [...ended, ...ids];
    },
    async afterRecord(tried) {
      for (const one of tried) note(parts, one);
    },
    gauges: { running: metrics.sendsUnderWay, pausedLanes: { set() {} } },
    isUnavailable,
    log,
  });
  return { wake: () => worker.wake(), pollNow: () => worker.pollNow(), stop: () => worker.stop() };
}

/** Undefined: its link is no longer of use. */
async function loadConfirmation(
  { sql, confirmations, ways, log }: SendParts,
  job: ClaimedSend,
): Promise<PreparedSend | undefined> {
  const [confirmation] = await readConfirmationMails(sql, [job.id]);
  const written = confirmation && (await writeConfirmationMail(confirmations, confirmation));
  if (!confirmation || !written) return undefined;
  const { raw, link, isUtf8 } = written;
  const { identityId, address, domain } = confirmation;
  if (ways.operator.kind === 'capture')
    log.info({ identityId, address, link }, 'open this link to confirm an address');
  const none = {
    ...{ isVerified: true, isSuppressed: false, isCancelling: false },
    ...{ accountId: null, providerId: null, hasOwnWay: false, coauthors: null, from: null },
  };
  const facts = {
    ...none,
    id: job.id,
    address,
    domain,
    size: raw.length,
    eightBit: isUtf8,
    smtpUtf8: isUtf8,
  };
  // Never with a key of the user who asked for the mail.
  return { facts, content: [raw], sign: () => '', confirmation };
}

type TryParts = SendParts & { dead: DeadDestinations; stopping: AbortSignal };

async function send(
  parts: TryParts,
  job: ClaimedSend,
  prepared: PreparedSend,
  isOurs: () => boolean,
): Promise<Outcome | null> {
  const { id, token, messageId, n, ownerId, tries } = job;
  const { facts } = prepared;
  const { address } = facts;
  const isConfirmation = prepared.confirmation !== undefined;
  const way = parts.ways.choose({ ...facts, ownerId });
  const accountId = way.kind === 'account' ? facts.accountId : null;
  const base = { id, token, messageId, n, ownerId, address, isConfirmation, transport: way.kind, accountId };
  const untried = { waitSeconds: null, attempt: null, bounce: null, suppresses: false, isHealthy: true };
  // The mark turns what is put off into what is cancelled.
  if (facts.isCancelling) return { ...base, ...untried, status: 'queued' };
  if (facts.isSuppressed) {
    const bounce = { type: 'unknown', source: 'suppression' } as const;
    return { ...base, ...untried, bounce, status: 'suppressed' };
  }
  const startedAt = performance.now();
  const tried = await tryServers(parts, way, job, prepared, isOurs);
  if (isStopped(tried)) return null;
  const decision = decide(tried, { tries, way: way.kind }, parts.scheduleSeconds, Math.random);
  const attempt = {
    ...describe(tried),
    ...{ id: newId(), startedAt, durationMs: Math.round(performance.now() - startedAt) },
  };
  parts.metrics.sends.inc({ outcome: decision.kind });
  const source = decision.kind === 'expired' ? 'expired' : 'smtp';
  return {
    ...base,
    status: statusOf(decision),
    waitSeconds: decision.kind === 'deferred' ? decision.waitSeconds : null,
    attempt,
    bounce: 'type' in decision ? { type: decision.type, source } : null,
    suppresses:
      decision.kind === 'bounced' && way.kind !== 'capture' && isSuppressing('smtp', attempt.response),
    isHealthy: true,
  };
}

async function tryServers(
  parts: TryParts,
  way: Way,
  { messageId, n, ownerId }: ClaimedSend,
  { facts, content, sign }: PreparedSend,
  isOurs: () => boolean,
): Promise<Tried> {
  const { dead } = parts;
  const needsVerified = way.kind !== 'capture' && !facts.hasOwnWay;
  if (needsVerified && !facts.isVerified) {
    return {
      kind: 'temporary',
      code: 'identity_not_verified',
      reason: 'The identity is no longer verified: publish its DNS records again.',
    };
  }
  if (way.kind !== 'capture' && !(facts.coauthors ?? []).every((coauthor) => mayJoin(facts, coauthor))) {
    return {
      kind: 'temporary',
      code: 'identity_not_verified',
      reason:
        'An address in From or Sender is not verified, and this message does not leave through its SMTP account or provider.',
    };
  }
  const destination = way.destinationOf(facts.address);
  const known = dead.find(destination, performance.now());
  if (known) return known;
  const mail = {
    messageId,
    ownerId,
    mailFrom: (way.isOwn && facts.from) || parts.bounceAddress({ messageId, recipient: n }),
    rcptTo: facts.address,
    ...{
      signature: await sign(),
      content,
      size: facts.size,
      eightBit: facts.eightBit,
      smtpUtf8: facts.smtpUtf8,
    },
    mayEnd: isOurs,
  };
  const tried = await way.send(mail, parts.stopping);
  if (isReply(tried)) dead.note(destination, tried, performance.now());
  return tried;
}

/** This process stops, and no server has the message: the recipient keeps its place in the schedule. */
function isStopped(tried: Tried): boolean {
  return isReply(tried)
    ? tried.error === 'stopped' && !tried.uncertain
    : 'code' in tried && tried.code === 'stopped';
}

function isReply(tried: Tried): tried is TryReply {
  return 'phase' in tried;
}

function statusOf(decision: ReturnType<typeof decide>): TriedSend['status'] {
  if (decision.kind === 'deferred') return 'queued';
  if (decision.kind === 'sent') return decision.isDelivered ? 'delivered' : 'sent';
  return 'bounced';
}

/** What EHLO says that the server cannot take is not sent: the status that such a refusal has (RFC 3463, RFC 6531 §3.5). */
const ownVerdicts: Partial<Record<SendErrorCode, string>> = {
  message_too_large: '5.3.4',
  needs_8bitmime: '5.6.3',
  needs_smtputf8: '5.6.7',
};

function describe(tried: Tried): Omit<NonNullable<TriedSend['attempt']>, 'id' | 'startedAt' | 'durationMs'> {
  if (isReply(tried)) {
    const { host, address, tls, error, detail } = tried;
    const enhanced = (error && ownVerdicts[error]) ?? null;
    // What the server would have replied, in words that say what to do: without it a bounce would show no reason.
    const response = enhanced === null ? tried.response : { code: null, enhanced, text: detail ?? '' };
    return { host, address, tls, response, error, errorDetail: detail };
  }
  const none = { host: null, address: null, tls: null, response: null, errorDetail: tried.reason };
  return { ...none, error: 'code' in tried ? tried.code : 'dns_failed' };
}

/** After the outcome is recorded: the mail log has one line for each try. */
function note({ log }: SendParts, tried: Outcome): void {
  const { messageId, n, address: recipient, status, attempt, waitSeconds, ownerId } = tried;
  const { host = null, durationMs = 0, error = null, response = null, errorDetail = null } = attempt ?? {};
  const fields = {
    messageId,
    n,
    ownerId,
    recipients: [recipient],
    host,
    durationMs,
    error,
    code: response?.code ?? null,
    reply: errorDetail ?? response?.text ?? null,
  };
  if (status === 'sent' || status === 'delivered') log.info(fields, `mail ${status}`);
  else if (status === 'queued')
    log.warn({ ...fields, retryInSeconds: Math.round(waitSeconds ?? 0) }, 'mail put off');
  else log.warn(fields, `mail ${status}`);
}

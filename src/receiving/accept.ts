/**
 * The way in for mail from SMTP, the API and the hooks of providers (mail from mailboxes elsewhere: accept-synced.ts). `acceptMail`
 * examines a message, then writes message, event and deliveries of every identity in one transaction. Traces, metrics and the
 * wake-up of the delivery loop follow the commit.
 * Guarantee: when `acceptMail` resolves with ids, the message is committed. A repeat gets the id of the stored message.
 * The acknowledgement follows the commit: SMTP sends 250 (smtp/accept-message.ts) and a hook sends 200 after `acceptMail` resolves;
 * `POST /inbound` sends 202 at the end of its `runSteps` (http/idempotency.ts), which is after the commit and before `acceptMail`
 * resolves.
 */
import type { Span } from '@opentelemetry/api';
import type { Message } from '../contract/message.ts';
import { repeatKey } from '../contract/thread.ts';
import { type Sql, transaction } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Metrics } from '../lib/metrics.ts';
import type { Tracer } from '../lib/tracing.ts';
import type { Examination, MailWork } from '../mailwork/mailwork.ts';
import { maxPackedRawBytes, packContent } from '../store/content.ts';
import { chunkBytes, findFirst } from '../store/messages.ts';
import type { MailLog } from './mail-log.ts';
import { measureMail, type PreparedMessage, prepareMessage } from './prepare.ts';
import type { MessageRecorder } from './record.ts';
import { type RoutedRecipient, type RouteParts, routeRecipient, routeVouched } from './route.ts';
import { type AcceptTrace, startAcceptTrace } from './trace.ts';

export interface IncomingMail {
  source: Message['source'];
  raw: Buffer;
  envelope: Omit<Message['envelope'], 'rcptTo'>;
  /** Called once, right before the message is examined. */
  recipients(): Promise<readonly RoutedRecipient[]>;
  /** Only identities of this owner get the message. Default: any owner's. */
  ownerId?: string;
  /** The server that holds the owner's mailbox vouches for the mail: it is recorded whatever the status of the identity. */
  isVouched?: boolean;
  /** The span of the HTTP request. */
  request?: Span | undefined;
  requestId?: string;
}

export interface AcceptParts extends RouteParts {
  mailWork: MailWork;
  recorder: MessageRecorder;
  /** A raw message up to this size is part of the event. */
  inlineRawBytes: number;
  tracer: Tracer | null;
  metrics: Pick<Metrics, 'receivedMessages'>;
  mailLog: MailLog;
  /** Called with a report for each owner before it is recorded: a crash in between makes the sender send it again. */
  applyReport?(raw: Buffer, ownerId: string, type: ReportType): Promise<void>;
  /** For new deliveries of these webhooks. */
  wakeDelivery(webhookIds: readonly string[]): void;
  /** Call it after the commit of events. */
  wakeStreams?(): void;
}

type ReportType = NonNullable<Message['report']>['type'];

interface ExaminedMail {
  recipients: readonly RoutedRecipient[];
  examination: Examination;
  messages: readonly PreparedMessage[];
}

/**
 * Runs both steps of `acceptMail`, and resolves after the commit. A caller that must commit something else together with the message
 * passes its own function, which calls `record` in the caller's transaction: `POST /inbound` also stores its response for the
 * Idempotency-Key. If that response is already stored, no step runs.
 */
type RunSteps = (
  examine: () => Promise<ExaminedMail>,
  record: (sql: Sql, mail: ExaminedMail) => Promise<string[]>,
) => Promise<unknown>;

/**
 * Returns the ids of the messages, one for each identity. Empty: every identity was deleted or may no longer receive mail, or
 * `runSteps` ran no step.
 */
export async function acceptMail(
  parts: AcceptParts,
  mail: IncomingMail,
  runSteps: RunSteps = async (examine, record) => record(parts.sql, await examine()),
): Promise<string[]> {
  using memory = new DisposableStack();
  using offers = new DisposableStack();
  let trace: AcceptTrace | null | undefined;
  let outcomes: readonly MessageOutcome[] = [];

  async function examine(): Promise<ExaminedMail> {
    const recipients = await mail.recipients();
    trace = parts.tracer && startAcceptTrace(parts.tracer, mail.source, mail.request);
    // The owner whose turn the work takes (`MailWork`). If the message has several owners: the first.
    const ownerId = recipients[0]?.identity.ownerId;
    const examination = await parts.mailWork.examine(mail.raw, mail.envelope, ownerId);
    const { report } = examination.parsed;
    if (report) {
      const owners = new Set(recipients.map(({ identity }) => identity.ownerId));
      for (const owner of owners) await parts.applyReport?.(mail.raw, owner, report.type);
    }
    memory.use(await parts.recorder.takeMemory(ownerId ?? '', mail.raw.length));
    const messages = await prepareMessages(parts, mail, recipients, examination);
    trace?.examined(messages);
    return { recipients, examination, messages };
  }

  async function record(sql: Sql, examined: ExaminedMail): Promise<string[]> {
    outcomes = await recordMail({ ...parts, sql, offers }, mail, examined);
    return listIds(outcomes);
  }

  try {
    await runSteps(examine, record);
  } catch (error) {
    trace?.failed(error);
    throw error;
  }
  // The message is committed: from here on the caller may acknowledge it. (`POST /inbound` has already done so.)
  trace?.recorded(outcomes);
  for (const outcome of outcomes) countAndLog(parts, mail, outcome);
  const unclaimed = outcomes.flatMap(({ recorded }) => parts.recorder.adopt(recorded));
  if (unclaimed.length > 0) parts.wakeDelivery(unclaimed);
  if (outcomes.some(({ outcome }) => outcome === 'recorded')) parts.wakeStreams?.();
  return listIds(outcomes);
}

export interface MessageOutcome {
  message: PreparedMessage;
  recorded: Awaited<ReturnType<MessageRecorder['record']>>;
  outcome: 'recorded' | 'repeat' | 'gone';
  /** Of a repeat, the id of the first message; null if the identity is gone. */
  id: string | null;
}

type RecordParts = AcceptParts & { offers: DisposableStack };

export function countAndLog(
  { metrics, mailLog }: AcceptParts,
  mail: Pick<IncomingMail, 'source' | 'requestId' | 'envelope' | 'raw'>,
  stored: MessageOutcome,
): void {
  const { source, requestId, envelope } = mail;
  const { outcome, id: messageId } = stored;
  const deliveries = stored.recorded.deliveries.length;
  const { ownerId, identityId, recipients } = stored.message;
  metrics.receivedMessages.inc({ source, outcome });
  mailLog.accepted({
    ...{ messageId, ownerId, identityId, source, outcome, size: mail.raw.length, deliveries },
    ...{ mailFrom: envelope.mailFrom, recipients, remoteIp: envelope.remoteIp, requestId },
  });
}

function listIds(outcomes: readonly MessageOutcome[]): string[] {
  return outcomes.map(({ id }) => id).filter((id) => id !== null);
}

/** Commits before it resolves, unless `parts.sql` is a transaction of the caller, who then commits. */
async function recordMail(
  parts: RecordParts,
  mail: IncomingMail,
  { recipients, examination, messages }: ExaminedMail,
): Promise<MessageOutcome[]> {
  const work = async (sql: Sql) => {
    const outcomes = await recordEach({ ...parts, sql }, messages);
    const notReceiving = outcomes.filter(({ id }) => id === null).map(({ message }) => message.identityId);
    if (notReceiving.length === 0) return outcomes;
    const lost = recipients.filter(({ identity }) => notReceiving.includes(identity.id));
    const others = await routeAgain({ ...parts, sql }, lost, mail);
    const again = await prepareMessages({ ...parts, sql }, mail, others, examination);
    const further = await transaction(sql, (sql) => recordEach({ ...parts, sql }, again));
    return [...outcomes, ...further];
  };
  // One statement is a transaction by itself, and can have messages of other mail.
  const isOneStatement = messages.length === 1 && mail.raw.length <= chunkBytes;
  return isOneStatement ? work(parts.sql) : transaction(parts.sql, work);
}

async function recordEach(
  { sql, recorder, offers }: RecordParts,
  messages: readonly PreparedMessage[],
): Promise<MessageOutcome[]> {
  const outcomes: MessageOutcome[] = [];
  for (const message of messages) {
    const data = message.writeData();
    const content = await packContent(message.rawId === null ? message.raw : null, data);
    const recorded = await recorder.record(sql, { ...message, data, content }, offers);
    const { outcome } = recorded;
    const ids = { recorded: message.id, gone: null };
    const id = outcome === 'repeat' ? await findFirst(sql, message) : ids[outcome];
    outcomes.push({ message, recorded, outcome, id });
  }
  return outcomes;
}

/** If an identity no longer receives mail, another identity may get its mail, for example the catch-all domain. */
async function routeAgain(
  parts: RouteParts,
  lost: readonly RoutedRecipient[],
  { ownerId, isVouched }: IncomingMail,
): Promise<RoutedRecipient[]> {
  const found: RoutedRecipient[] = [];
  for (const { address, identity } of lost) {
    const route =
      isVouched && ownerId !== undefined
        ? await routeVouched(parts.sql, address, ownerId)
        : await routeRecipient(parts, address, ownerId);
    if (typeof route !== 'string' && route.identity.id !== identity.id) found.push(route);
  }
  return found;
}

/** One message for each identity. */
function prepareMessages(
  parts: AcceptParts,
  mail: IncomingMail,
  recipients: readonly RoutedRecipient[],
  { parsed, facts, authentication }: Examination,
): Promise<PreparedMessage[]> {
  const measured = measureMail({ parsed, facts }, mail.raw, parts.inlineRawBytes);
  const receivedAt = new Date();
  /** By owner: bytes that have rows of their own are stored once for each owner, under the id of the owner's first message. */
  const rawIds = new Map<string, string>();
  const groups = [...Map.groupBy(recipients, ({ identity }) => identity.id).values()];
  // Always in the same order, so that two transactions with the same identities cannot deadlock.
  groups.sort(([one], [other]) => ((one?.identity.id ?? '') < (other?.identity.id ?? '') ? -1 : 1));

  return Promise.all(
    groups.map((recipients) => {
      const [{ identity, tag }] = recipients as [RoutedRecipient];
      const id = newId();
      const isShared = groups.some(
        ([other]) => other?.identity.ownerId === identity.ownerId && other.identity.id !== identity.id,
      );
      const isPacked = !isShared && mail.raw.length <= maxPackedRawBytes;
      const rawId = isPacked ? null : (rawIds.get(identity.ownerId) ?? id);
      if (rawId) rawIds.set(identity.ownerId, rawId);
      const envelope = { ...mail.envelope, rcptTo: recipients.map(({ address }) => address) };
      return prepareMessage(parts.sql, measured, {
        ...{ id, source: mail.source, receivedAt, identity, tag, envelope, parsed, authentication, rawId },
        isVouched: mail.isVouched ?? false,
        repeatKey: parsed.messageId === null ? null : repeatKey(envelope, measured.sha256),
      });
    }),
  );
}

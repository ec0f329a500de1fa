/**
 * The only way in for mail, whoever brings it: a message is examined, then one transaction writes a message, an event and its
 * deliveries for each identity; traces, metrics and the wake-up of the delivery loop come after the commit.
 * Guarantee: when `acceptMail` resolves, the message is committed, once. Whoever brought it may be told so.
 */
import { createHash } from 'node:crypto';
import type { Span } from '@opentelemetry/api';
import { type Message, summarize } from '../contract/message.ts';
import { storeData } from '../contract/payload.ts';
import { type Sql, transaction } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Metrics } from '../lib/metrics.ts';
import type { Tracer } from '../lib/tracing.ts';
import { chunkBytes, findThread, type NewMessage, recordMessage } from '../store/messages.ts';
import { composeMessage } from './compose.ts';
import type { Examination, Examiner } from './examine.ts';
import { type RoutedRecipient, type RouteParts, routeRecipient } from './route.ts';
import { messageKey, readThread, repeatKey } from './thread.ts';
import { type AcceptTrace, startAcceptTrace } from './trace.ts';

export interface IncomingMail {
  source: Message['source'];
  /** The bytes as the client meant them. */
  raw: Buffer;
  envelope: Omit<Message['envelope'], 'rcptTo'>;
  /** Asked for once, right before the message is examined. */
  recipients(): Promise<readonly RoutedRecipient[]>;
  /** Only this owner's identities may get it; left out: anyone's. */
  ownerId?: string;
  /** The span of the request that brought it. */
  request?: Span | undefined;
}

export interface AcceptParts extends RouteParts {
  examiner: Examiner;
  /** Up to this size the raw message is part of the event. */
  inlineRawBytes: number;
  tracer: Tracer | null;
  metrics: Pick<Metrics, 'receivedMessages'>;
  wakeDelivery(): void;
}

interface Examined {
  recipients: readonly RoutedRecipient[];
  examination: Examination;
  messages: readonly NewMessage[];
}

/**
 * How the two steps are carried out. A caller that has something to commit together with the message, such as the answer that
 * `POST /inbound` keeps for an Idempotency-Key, records inside its own transaction, and resolves after its commit.
 */
type CarryOut = (
  examine: () => Promise<Examined>,
  record: (sql: Sql, examined: Examined) => Promise<string[]>,
) => Promise<unknown>;

/**
 * Returns the ids of the messages, those that were known already included; none where every identity is gone meanwhile, or
 * where `carryOut` took no step.
 */
export async function acceptMail(
  parts: AcceptParts,
  mail: IncomingMail,
  carryOut: CarryOut = async (examine, record) => record(parts.sql, await examine()),
): Promise<string[]> {
  let taking: AcceptTrace | null | undefined;
  let recorded: readonly Recorded[] = [];

  async function examine(): Promise<Examined> {
    const recipients = await mail.recipients();
    taking = parts.tracer && startAcceptTrace(parts.tracer, mail.source, mail.request);
    const examination = await parts.examiner.examine(mail.raw, mail.envelope);
    const messages = await prepareMessages(parts, mail, recipients, examination);
    taking?.examined(messages);
    return { recipients, examination, messages };
  }

  async function record(sql: Sql, examined: Examined): Promise<string[]> {
    recorded = await recordMail({ ...parts, sql }, mail, examined);
    return listIds(recorded);
  }

  try {
    await carryOut(examine, record);
  } catch (error) {
    taking?.failed(error);
    throw error;
  }
  taking?.recorded(recorded);
  for (const { outcome } of recorded) parts.metrics.receivedMessages.inc({ source: mail.source, outcome });
  if (recorded.some(({ deliveries }) => deliveries > 0)) parts.wakeDelivery();
  return listIds(recorded);
}

/** What became of a message: `repeat` has the id of the same message that came before, `gone` has none. */
interface Recorded {
  message: NewMessage;
  outcome: 'recorded' | 'repeat' | 'gone';
  id: string | null;
  deliveries: number;
}

function listIds(recorded: readonly Recorded[]): string[] {
  return recorded.map(({ id }) => id).filter((id) => id !== null);
}

/** One transaction, or a part of the caller's. */
async function recordMail(
  parts: AcceptParts,
  mail: IncomingMail,
  { recipients, examination, messages }: Examined,
): Promise<Recorded[]> {
  const work = async (sql: Sql) => {
    const recorded = await recordMessages(sql, messages, parts);
    const gone = recorded.filter(({ id }) => id === null).map(({ message }) => message.identityId);
    if (gone.length === 0) return recorded;
    const lost = recipients.filter(({ identity }) => gone.includes(identity.id));
    const others = await routeAgain({ ...parts, sql }, lost, mail.ownerId);
    const again = await prepareMessages({ ...parts, sql }, mail, others, examination);
    const further = await transaction(sql, (sql) => recordMessages(sql, again, parts));
    return [...recorded, ...further];
  };
  // One statement is a transaction by itself.
  const isOneStatement = messages.length === 1 && mail.raw.length <= chunkBytes;
  return isOneStatement ? work(parts.sql) : transaction(parts.sql, work);
}

async function recordMessages(
  sql: Sql,
  messages: readonly NewMessage[],
  options: { acceptUnverified: boolean },
): Promise<Recorded[]> {
  const recorded: Recorded[] = [];
  for (const message of messages) {
    const { id, deliveries } = await recordMessage(sql, message, options);
    const known = id === message.id ? 'recorded' : 'repeat';
    recorded.push({ message, outcome: id === null ? 'gone' : known, id, deliveries });
  }
  return recorded;
}

/** What was routed a moment ago to an identity that is gone now, another may get: a domain that takes all its mail, say. */
async function routeAgain(
  parts: RouteParts,
  lost: readonly RoutedRecipient[],
  ownerId: string | undefined,
): Promise<RoutedRecipient[]> {
  const found: RoutedRecipient[] = [];
  for (const { address, identity } of lost) {
    const route = await routeRecipient(parts, address, ownerId);
    if (typeof route !== 'string' && route.identity.id !== identity.id) found.push(route);
  }
  return found;
}

/** A message for each identity, ready to be recorded. */
function prepareMessages(
  parts: AcceptParts,
  mail: IncomingMail,
  recipients: readonly RoutedRecipient[],
  { parsed, authentication }: Examination,
): Promise<NewMessage[]> {
  const sha256 = createHash('sha256').update(mail.raw).digest();
  const receivedAt = new Date();
  /** The first message of each owner gives the bytes their id. */
  const rawIds = new Map<string, string>();
  const groups = [...Map.groupBy(recipients, ({ identity }) => identity.id).values()];
  // In one order everywhere, so that two transactions with the same identities cannot wait for each other.
  groups.sort(([one], [other]) => ((one?.identity.id ?? '') < (other?.identity.id ?? '') ? -1 : 1));

  return Promise.all(
    groups.map(async (recipients) => {
      const [{ identity, tag }] = recipients as [RoutedRecipient];
      const id = newId();
      const rawId = rawIds.get(identity.ownerId) ?? id;
      rawIds.set(identity.ownerId, rawId);
      const envelope = { ...mail.envelope, rcptTo: recipients.map(({ address }) => address) };
      const { threadId, ancestors } = readThread(identity.id, id, parsed);
      const found =
        ancestors.length > 0
          ? await findThread(parts.sql, identity.ownerId, identity.id, ancestors)
          : undefined;
      const message = composeMessage({
        ...{ id, threadId: found ?? threadId, source: mail.source, receivedAt, size: mail.raw.length },
        ...{ identity, tag, envelope, parsed, authentication },
      });
      return {
        ...{ id, ownerId: identity.ownerId, identityId: identity.id, eventId: newId(), rawId },
        threadId: message.threadId,
        raw: mail.raw,
        sha256,
        summary: JSON.stringify(summarize(message)),
        data: storeData(message, mail.raw, sha256),
        inline: mail.raw.length <= parts.inlineRawBytes,
        messageKey: parsed.messageId === null ? null : messageKey(parsed.messageId),
        repeatKey: parsed.messageId === null ? null : repeatKey(envelope, sha256),
      };
    }),
  );
}

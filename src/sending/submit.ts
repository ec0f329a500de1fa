/**
 * The only way out for mail, from the API and from SMTP submission: who may send, the bytes as they will be sent, and the record
 * that puts the message into the queue. Guarantee: when `recordSubmission` resolves outside of a transaction, the message is committed.
 */
import { type Message, summarize } from '../contract/message.ts';
import { makeStoreData, placeLink } from '../contract/payload.ts';
import { messageKey, readThread } from '../contract/thread.ts';
import type { Sql } from '../db/client.ts';
import { hashId, isUuid, newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import type { Metrics } from '../lib/metrics.ts';
import type { ReadMail } from '../mailwork/jobs.ts';
import type { MailWork } from '../mailwork/mailwork.ts';
import type { Address } from '../mime/address-list.ts';
import type { Draft } from '../mime/draft.ts';
import { needsEightBit, needsSmtpUtf8 } from '../mime/outgoing.ts';
import type { ParsedMessage } from '../mime/parse.ts';
import { makeMessageId, makeReplyFields, replySubject } from '../mime/reply.ts';
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import { Problem } from '../problems.ts';
import { maxPackedRawBytes, packContent } from '../store/content.ts';
import { findMessage, findMessageId, findThread } from '../store/messages.ts';
import {
  type NewOutgoing,
  type NewRecipient,
  type RecipientKind,
  recordOutgoing,
} from '../store/outgoing.ts';
import { admitRecipients } from '../store/send-rates.ts';
import type { Sender } from '../store/senders.ts';
import { wordKeysOf } from '../store/words.ts';
import { findAuthors, findSenderOrThrow, invalid, readFrom, requireAuthor } from './authors.ts';
import type { Way } from './way.ts';

export interface SubmitParts {
  sql: Sql;
  work: Pick<MailWork, 'compose' | 'prepare'>;
  ways: {
    operator: Pick<Way, 'kind' | 'destinationOf'>;
    choose(sender: Pick<Sender, 'ownerId' | 'accountId' | 'providerId'>): Pick<Way, 'kind' | 'destinationOf'>;
  };
  /** For each owner. 0: no limit. */
  sendRatePerMinute: number;
  maxMessageBytes: number;
  metrics: Pick<Metrics, 'submitted'>;
  log: Log;
  /** Call these after the commit. */
  wakeSending(): void;
  wakeAfterEvents(): void;
}

export interface Submitter {
  ownerId: string;
  keyId: string | null;
  source: 'api' | 'submission';
  /** Its key may send, and not read mail that was not made with it. */
  isSendOnly?: boolean;
  /** Of a client that submits by SMTP, for the log. */
  remoteIp?: string;
}

/** The options of a message beside its content. */
interface SendOptions {
  sendAt: Date | null;
  metadata: Record<string, string> | null;
}

export interface GivenDraft extends SendOptions {
  identityId: string;
  draft: Draft;
  /** The JSON body that has the texts and attachments (`MailWork.readDraft`); null: the draft has them. */
  body: Buffer | null;
  /** An id or a Message-ID. */
  inReplyTo: string | null;
}

export interface Submission extends Submitter {
  message: NewOutgoing;
  suppressed: ReadonlySet<string>;
}

/** Composes the message of a request. Outside of a transaction. */
export async function submitDraft(
  parts: SubmitParts,
  submitter: Submitter,
  given: GivenDraft,
): Promise<Submission> {
  const { ownerId } = submitter;
  const sender = await findSenderOrThrow(parts, ownerId, given.identityId);
  const parent =
    given.inReplyTo === null ? null : await findParent(parts.sql, ownerId, sender, given.inReplyTo);
  const { draft } = given;
  if (parent && submitter.isSendOnly) requireOwnFields(draft, sender);
  const from = readFrom(sender, draft.from, parent);
  const recipients =
    draft.to.length + draft.cc.length + draft.bcc.length > 0 ? draft : replyTo(draft, parent);
  const id = newId();
  const composed = await parts.work.compose(
    {
      ...{ ...draft, to: recipients.to, cc: recipients.cc, from, date: new Date() },
      subject: draft.subject ?? replySubject(parent?.subject ?? null),
      messageId: makeMessageId(id, from.address),
      ...(parent ? makeReplyFields(parent) : { inReplyTo: null, references: [] }),
    },
    ownerId,
    { maxBytes: parts.maxMessageBytes, body: given.body },
  );
  if ('leastBytes' in composed) throw tooLarge(composed.leastBytes, parts.maxMessageBytes);
  const { bytes: raw, parsed, facts } = composed;
  const { sendAt, metadata } = given;
  const threadId = parent?.threadId ?? null;
  return finish(parts, submitter, sender, { id, raw, parsed, facts, recipients, threadId, sendAt, metadata });
}

/**
 * A finished message. `sender` null: the identity of the author, and each address of From and Sender belongs to one of the owner's
 * identities. `recipients`: those of the envelope; null: those of its header.
 */
export async function submitRaw(
  parts: SubmitParts,
  submitter: Submitter,
  sender: Sender | null,
  given: { raw: Buffer; recipients: readonly Address[] | null },
): Promise<Submission> {
  const id = newId();
  const options = { date: new Date(), unique: id, hasOwnRecipients: given.recipients !== null };
  const prepared = await parts.work.prepare(given.raw, options, submitter.ownerId);
  if ('errors' in prepared) throw new Problem('invalid_body', { errors: prepared.errors });
  const { bytes, from, to, cc, bcc, parsed, facts } = prepared;
  const authors = [...from, ...(prepared.sender ? [prepared.sender] : [])].map(({ address }) => address);
  if (sender) requireAuthor(sender, authors);
  const [author, ...coauthors] = sender ? [sender] : await findAuthors(parts, submitter.ownerId, authors);
  const recipients = given.recipients === null ? { to, cc, bcc } : fromEnvelope(given.recipients, parsed);
  const none = { threadId: null, sendAt: null, metadata: null };
  return finish(parts, submitter, author, { id, raw: bytes, parsed, facts, recipients, coauthors, ...none });
}

/** Undefined if the identity was deleted meanwhile. */
export async function recordSubmission(
  sql: Sql,
  { message, suppressed }: Submission,
): Promise<Recorded | undefined> {
  return recordOutgoing(sql, message, suppressed);
}
type Recorded = NonNullable<Awaited<ReturnType<typeof recordOutgoing>>>;

/** After the commit. */
export function noteSubmission(parts: SubmitParts, submission: Submission, { events }: Recorded): void {
  const { message, source, ownerId, remoteIp } = submission;
  const { id: messageId, identityId, recipients } = message;
  parts.metrics.submitted.inc({ source });
  parts.log.info(
    {
      ...{
        messageId,
        ownerId,
        identityId,
        source,
        remoteIp,
        size: message.raw.length,
        sendAt: message.sendAt ?? undefined,
      },
      recipients: recipients.map(({ address }) => address),
    },
    'message taken to be sent',
  );
  parts.wakeSending();
  if (events > 0) parts.wakeAfterEvents();
}

/** What a reply takes from the message that it answers would tell the caller what stands in it. */
function requireOwnFields(draft: Draft, sender: Sender): void {
  const needed = [
    draft.subject === null ? ['subject'] : [],
    draft.to.length + draft.cc.length + draft.bcc.length === 0 ? ['to'] : [],
    draft.from === null && sender.kind === 'domain' ? ['from'] : [],
  ].flat();
  if (needed.length === 0) return;
  const names = needed.map((name) => `"${name}"`).join(' and ');
  const detail = `The API key has the scope \`send\`, and cannot read the message that "inReplyTo" names. Give ${names} in the request, or use a key with the scope \`full\`.`;
  throw new Problem('scope_insufficient', { detail });
}

interface Recipients {
  to: Address[];
  cc: Address[];
  bcc: Address[];
}

function replyTo(draft: Draft, parent: Message | null): Recipients {
  const given = parent?.replyTo.length ? parent.replyTo : [parent?.from ?? null];
  const to = given.flatMap((one) => {
    const read = one?.address ? readAddressOrDomain(one.address) : null;
    return read && !('fault' in read) && read.kind === 'email'
      ? [{ name: one?.name ?? null, address: read.value }]
      : [];
  });
  if (to.length > 0) return { ...draft, to };
  throw invalid(
    '/to',
    'required',
    'The message that "inReplyTo" names has no address to reply to. Write one in "to".',
  );
}

async function findParent(sql: Sql, ownerId: string, sender: Sender, given: string): Promise<Message> {
  const id = given.startsWith('<') ? await findMessageId(sql, ownerId, sender.id, messageKey(given)) : given;
  const found = id !== undefined && isUuid(id) ? await findMessage(sql, ownerId, id) : undefined;
  if (!found) {
    const message =
      '"inReplyTo" must be the id or the Message-ID of one of your messages, such as <id@example.com>.';
    throw invalid('/inReplyTo', 'not_found', message);
  }
  return (JSON.parse(found.data) as { message: Message }).message;
}

/** A recipient of the envelope that the header does not show is a blind one. */
function fromEnvelope(recipients: readonly Address[], shown: Pick<ParsedMessage, 'to' | 'cc'>): Recipients {
  const keyOf = (address: string) => {
    const read = readAddressOrDomain(address);
    return 'fault' in read ? address : read.key;
  };
  const [to, cc] = [shown.to, shown.cc].map(
    (list) => new Set(list.map(({ address }) => keyOf(address ?? ''))),
  );
  const kinds = recipients.map(
    ({ address }): RecipientKind => (to?.has(keyOf(address)) ? 'to' : cc?.has(keyOf(address)) ? 'cc' : 'bcc'),
  );
  const ofKind = (kind: RecipientKind) => recipients.filter((_, n) => kinds[n] === kind);
  return { to: ofKind('to'), cc: ofKind('cc'), bcc: ofKind('bcc') };
}

interface FinishedMail extends SendOptions, ReadMail {
  id: string;
  raw: Buffer;
  recipients: Recipients;
  /** Null: found by the header. */
  threadId: string | null;
  coauthors?: Sender[];
}

async function finish(
  parts: SubmitParts,
  submitter: Submitter,
  sender: Sender,
  mail: FinishedMail,
): Promise<Submission> {
  const { sql, maxMessageBytes } = parts;
  const way = parts.ways.choose(sender);
  const { ownerId, keyId, source } = submitter;
  const { id, raw, parsed, facts, sendAt, metadata, coauthors = [] } = mail;
  if (raw.length > maxMessageBytes) throw tooLarge(raw.length, maxMessageBytes);
  const recipients = listRecipients(ownerId, mail.recipients, way);
  requireFewRecipients(recipients.length);
  const suppressed = await admitOrThrow(parts, ownerId, recipients);
  const threadId = mail.threadId ?? (await findOwnThread(sql, sender, id, parsed, source));
  const sha256 = Buffer.from(facts.sha256, 'hex');
  const message = composeMessage({ ...mail, threadId }, sender, source, parsed, recipients);
  const summary = summarize(message);
  const rawId = raw.length <= maxPackedRawBytes ? null : id;
  const data = makeStoreData(parsed, facts)(message);
  const addresses = recipients.map(({ address }) => address);
  return {
    ...submitter,
    suppressed,
    message: {
      ...{ id, ownerId, identityId: sender.id, keyId, threadId, rawId, raw, sha256, recipients, sendAt },
      coauthorIds: coauthors.map(({ id }) => id),
      messageKey: parsed.messageId === null ? null : messageKey(parsed.messageId),
      summary: JSON.stringify(summary),
      words: wordKeysOf(ownerId, summary),
      content: await packContent(rawId === null ? raw : null, data),
      transport: way.kind,
      metadata: metadata && JSON.stringify(metadata),
      eightBit: needsEightBit(raw),
      smtpUtf8: needsSmtpUtf8(raw, addresses),
    },
  };
}

function tooLarge(bytes: number, maxBytes: number): Problem {
  const detail = `The finished message has ${bytes} bytes or more. The limit is ${maxBytes} bytes.`;
  return new Problem('body_too_large', { detail });
}

export const maxRecipients = 50;

function requireFewRecipients(count: number): void {
  if (count === 0)
    throw invalid('/to', 'required', 'The message has no recipient. Write an address in "to".');
  if (count <= maxRecipients) return;
  const message = `The message has ${count} recipients. A message can have at most ${maxRecipients}.`;
  throw invalid('', 'too_long', message);
}

/** Returns the keys of suppressed addresses. */
async function admitOrThrow(
  { sql, sendRatePerMinute }: SubmitParts,
  ownerId: string,
  recipients: readonly NewRecipient[],
): Promise<ReadonlySet<string>> {
  const keys = recipients.map(({ addressKey }) => addressKey);
  const { suppressed, waitSeconds } = await admitRecipients(sql, ownerId, keys, sendRatePerMinute);
  if (waitSeconds === null) return suppressed;
  throw new Problem('rate_limited', {
    detail: `The limit is ${sendRatePerMinute} recipients a minute. Retry in ${waitSeconds} s.`,
    headers: { 'retry-after': String(waitSeconds) },
  });
}

function listRecipients(ownerId: string, given: Recipients, way: Pick<Way, 'destinationOf'>): NewRecipient[] {
  const seen = new Set<string>();
  return (['to', 'cc', 'bcc'] as const).flatMap((kind) =>
    given[kind].flatMap(({ address }): NewRecipient[] => {
      const read = readAddressOrDomain(address);
      if ('fault' in read || seen.has(read.key)) return [];
      seen.add(read.key);
      const laneId = hashId('lane', ownerId, way.destinationOf(read.value));
      return [{ address: read.value, addressKey: read.key, kind, laneId }];
    }),
  );
}

async function findOwnThread(
  sql: Sql,
  sender: Sender,
  id: string,
  parsed: ParsedMessage,
  source: Message['source'],
): Promise<string> {
  const { threadId, ancestors } = readThread(sender.id, id, parsed, { source, envelope: { mailFrom: null } });
  const found =
    ancestors.length > 0 ? await findThread(sql, sender.ownerId, sender.id, ancestors) : undefined;
  return found ?? threadId;
}

function composeMessage(
  { id, raw, recipients: given, threadId }: FinishedMail & { threadId: string },
  sender: Sender,
  source: Submitter['source'],
  { returnedIds, ...parsed }: ParsedMessage,
  recipients: readonly NewRecipient[],
): Message {
  const { publicId, kind, value } = sender;
  return {
    id,
    identity: { id: sender.id, publicId, kind, value },
    mailbox: { id: sender.sentId, kind: 'sent' },
    source,
    direction: 'outgoing',
    sending: null,
    threadId,
    receivedAt: new Date().toISOString(),
    size: raw.length,
    recipient: null,
    tag: null,
    ...parsed,
    bcc: given.bcc.map(({ name, address }) => ({ name, address })),
    attachments: parsed.attachments.map((attachment, n) => ({ ...attachment, url: placeLink(n) })),
    envelope: {
      ...{ mailFrom: null, rcptTo: recipients.map(({ address }) => address) },
      ...{ remoteIp: null, helo: null, tls: null },
    },
    authentication: null,
  };
}

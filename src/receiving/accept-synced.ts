/**
 * Mail that was found in a mailbox elsewhere (IMAP). The server of the mailbox vouches for it: it is recorded whatever the status of
 * the identity, and the folder decides the mailbox. Guarantee: the messages, their events and deliveries, and what `alsoWrite` writes
 * are committed in one transaction before `acceptSynced` resolves.
 */
import { type Sql, transaction } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Authentication } from '../mailauth/authenticate.ts';
import type { ReadMail } from '../mailwork/jobs.ts';
import type { ParsedMessage } from '../mime/parse.ts';
import { maxPackedRawBytes, packContent } from '../store/content.ts';
import { MailboxGone, type ReadKind } from '../store/mailbox-sync.ts';
import { findMailboxOwner, type MailboxOwner } from '../store/receivers.ts';
import { type AcceptParts, countAndLog, type MessageOutcome } from './accept.ts';
import { readEnvelope } from './envelope.ts';
import { measureMail, type PreparedMessage, prepareMessage } from './prepare.ts';
import { readTag } from './route.ts';
import { startAcceptTrace } from './trace.ts';

interface SyncedMail {
  raw: Buffer;
  /** The INTERNALDATE of the server. */
  receivedAt: Date;
  hasEvent: boolean;
}

/** All from one folder. */
export interface SyncedMails {
  ownerId: string;
  identityId: string;
  kind: ReadKind;
  mails: readonly SyncedMail[];
}

const source = 'imap';
const noServer = { remoteIp: null, helo: null, tls: null };

/** Rejects with `MailboxGone`, and writes nothing, if the identity was deleted. */
export async function acceptSynced(
  parts: AcceptParts,
  { ownerId, identityId, kind, mails }: SyncedMails,
  alsoWrite: (sql: Sql) => Promise<void>,
): Promise<void> {
  using memory = new DisposableStack();
  using offers = new DisposableStack();
  const identity = await findMailboxOwner(parts.sql, ownerId, identityId);
  if (!identity) throw new MailboxGone();
  const trace = parts.tracer && startAcceptTrace(parts.tracer, source);
  const outcomes: MessageOutcome[] = [];
  try {
    const examined = await Promise.all(mails.map((mail) => examine(parts, identity, kind, mail)));
    const bytes = mails.reduce((sum, { raw }) => sum + raw.length, 0);
    memory.use(await parts.recorder.takeMemory(ownerId, bytes));
    const prepared = await Promise.all(
      mails.map((mail, n) => prepare(parts, identity, kind, mail, examined[n] as Examined)),
    );
    trace?.examined(prepared.map(({ message }) => message));
    await transaction(parts.sql, async (sql) => {
      await alsoWrite(sql);
      for (const hasEvent of [true, false]) {
        const chosen = prepared.filter((one) => one.hasEvent === hasEvent);
        outcomes.push(...(await record(parts, sql, kind, chosen, hasEvent, offers)));
      }
    });
  } catch (error) {
    trace?.failed(error);
    throw error;
  }
  trace?.recorded(outcomes);
  for (const outcome of outcomes) {
    const envelope = { mailFrom: null, ...noServer };
    countAndLog(parts, { source, envelope, raw: outcome.message.raw }, outcome);
  }
  const unclaimed = outcomes.flatMap(({ recorded }) => parts.recorder.adopt(recorded));
  if (unclaimed.length > 0) parts.wakeDelivery(unclaimed);
  if (mails.some(({ hasEvent }) => hasEvent)) parts.wakeStreams?.();
}

interface Examined extends ReadMail {
  authentication: Authentication | null;
}

async function examine(
  parts: AcceptParts,
  { ownerId }: MailboxOwner,
  kind: ReadKind,
  { raw }: SyncedMail,
): Promise<Examined> {
  if (kind === 'sent') {
    return { ...(await parts.mailWork.parse(raw, ownerId)), authentication: null };
  }
  const origin = { mailFrom: null, remoteIp: null, helo: null };
  const { parsed, facts, authentication } = await parts.mailWork.examine(raw, origin, ownerId);
  if (parsed.report) await parts.applyReport?.(raw, ownerId, parsed.report.type);
  return { parsed, facts, authentication: judgeByDkimAlone(authentication) };
}

/** Nobody knows which server sent the message, so SPF says nothing, and a missing signature is no failure of DMARC. */
function judgeByDkimAlone(authentication: Authentication): Authentication {
  const { dmarc } = authentication;
  if (dmarc.result === 'pass') return authentication;
  const reason = 'No valid DKIM signature of the author, and SPF cannot be checked in a mailbox.';
  return { ...authentication, dmarc: { ...dmarc, result: 'none', aligned: null, reason } };
}

interface Prepared {
  message: PreparedMessage;
  hasEvent: boolean;
}

async function prepare(
  parts: AcceptParts,
  identity: MailboxOwner,
  kind: ReadKind,
  { raw, receivedAt, hasEvent }: SyncedMail,
  { parsed, facts, authentication }: Examined,
): Promise<Prepared> {
  const id = newId();
  const { mailFrom, rcptTo } = readEnvelope(parsed.headers, identity);
  const isSent = kind === 'sent';
  const envelope = {
    ...noServer,
    mailFrom: isSent ? null : mailFrom,
    rcptTo: isSent ? listRecipients(parsed) : [rcptTo],
  };
  const mailboxIds = { inbox: identity.inboxId, spam: identity.spamId, sent: identity.sentId };
  const message = await prepareMessage(parts.sql, measureMail({ parsed, facts }, raw, parts.inlineRawBytes), {
    ...{ id, source, receivedAt, identity, envelope, parsed, authentication, isVouched: true },
    tag: isSent ? null : readTag(rcptTo, identity),
    mailbox: { id: mailboxIds[kind], kind },
    rawId: raw.length <= maxPackedRawBytes ? null : id,
    // The ledger knows for ever which mail was seen.
    repeatKey: null,
  });
  return { message, hasEvent: hasEvent && !isSent };
}

function listRecipients({ to, cc, bcc }: ParsedMessage): string[] {
  const addresses = [...to, ...cc, ...bcc].map(({ address }) => address);
  return [...new Set(addresses.filter((address) => address !== null))];
}

async function record(
  { recorder }: AcceptParts,
  sql: Sql,
  kind: ReadKind,
  prepared: readonly Prepared[],
  hasEvent: boolean,
  offers: DisposableStack,
): Promise<MessageOutcome[]> {
  if (prepared.length === 0) return [];
  const messages = await Promise.all(
    prepared.map(async ({ message }) => {
      const data = message.writeData();
      return {
        ...message,
        data,
        content: await packContent(message.rawId === null ? message.raw : null, data),
      };
    }),
  );
  const direction = kind === 'sent' ? 'outgoing' : 'incoming';
  const recorded = await recorder.recordFromMailbox(sql, messages, { direction, hasEvent }, offers);
  return recorded.map((one, n) => {
    const message = (prepared[n] as Prepared).message;
    if (one.outcome !== 'recorded') throw new MailboxGone();
    return { message, recorded: one, outcome: one.outcome, id: message.id };
  });
}

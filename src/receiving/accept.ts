/**
 * Takes a message: examined first, then one transaction for all its recipients writes a message, an event and its deliveries
 * for each identity. Guarantee: what is answered as taken is committed, once; nothing is half stored.
 */
import { createHash } from 'node:crypto';
import { type Message, summarize } from '../contract/message.ts';
import { storeData } from '../contract/payload.ts';
import { type Sql, transaction } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { chunkBytes, findThread, type NewMessage, type Recorded, recordMessage } from '../store/messages.ts';
import { composeMessage } from './compose.ts';
import type { Examination, Examiner } from './examine.ts';
import type { Routed } from './route.ts';
import { messageKey, readThread, repeatKey } from './thread.ts';

export interface IncomingMail {
  source: 'smtp' | 'api';
  /** The bytes as the client meant them. */
  raw: Buffer;
  envelope: Omit<Message['envelope'], 'rcptTo'>;
  recipients: readonly Routed[];
}

export interface AcceptParts {
  sql: Sql;
  examiner: Examiner;
  /** Up to this size the raw message is part of the event. */
  inlineRawBytes: number;
  acceptUnverified: boolean;
}

/** Parsed and authenticated, and ready to be recorded: a message for each identity. */
export async function examineMail(parts: AcceptParts, mail: IncomingMail): Promise<NewMessage[]> {
  return compose(parts, mail, await parts.examiner.examine(mail.raw, mail.envelope));
}

/**
 * The transaction, or a part of the caller's. Returns the ids of the messages, those that were known already included; none
 * where every identity is gone meanwhile. When there are deliveries, wake the delivery loop after the commit.
 */
export async function recordMail(
  sql: Sql,
  messages: readonly NewMessage[],
  options: { acceptUnverified: boolean },
): Promise<{ messageIds: string[]; goneIdentityIds: string[]; deliveries: number }> {
  const record = async (sql: Sql) => {
    const recorded: Recorded[] = [];
    for (const message of messages) recorded.push(await recordMessage(sql, message, options));
    return recorded;
  };
  const [first] = messages;
  // One statement is a transaction by itself.
  const isOneStatement = messages.length === 1 && first && first.raw.length <= chunkBytes;
  const recorded = isOneStatement ? await record(sql) : await transaction(sql, record);
  return {
    messageIds: recorded.map(({ id }) => id).filter((id) => id !== null),
    goneIdentityIds: messages.filter((_, n) => recorded[n]?.id === null).map(({ identityId }) => identityId),
    deliveries: recorded.reduce((sum, { deliveries }) => sum + deliveries, 0),
  };
}

function compose(parts: AcceptParts, mail: IncomingMail, examined: Examination): Promise<NewMessage[]> {
  const sha256 = createHash('sha256').update(mail.raw).digest();
  const receivedAt = new Date();
  /** The first message of each owner gives the bytes their id. */
  const rawIds = new Map<string, string>();
  const groups = [...Map.groupBy(mail.recipients, ({ identity }) => identity.id).values()];
  // In one order everywhere, so that two transactions with the same identities cannot wait for each other.
  groups.sort(([one], [other]) => ((one?.identity.id ?? '') < (other?.identity.id ?? '') ? -1 : 1));

  return Promise.all(
    groups.map(async (recipients) => {
      const [{ identity, tag }] = recipients as [Routed];
      const id = newId();
      const rawId = rawIds.get(identity.ownerId) ?? id;
      rawIds.set(identity.ownerId, rawId);
      const envelope = { ...mail.envelope, rcptTo: recipients.map(({ address }) => address) };
      const { parsed, authentication } = examined;
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

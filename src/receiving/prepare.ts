/** Makes examined mail ready to be recorded, whatever its source: the message of one identity, its thread and its keys. */
import { summarize } from '../contract/message.ts';
import { makeStoreData } from '../contract/payload.ts';
import { messageKey, readThread } from '../contract/thread.ts';
import type { Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import { countJsonBytes } from '../lib/json-bytes.ts';
import type { ReadMail } from '../mailwork/jobs.ts';
import { findThread, type NewMessage } from '../store/messages.ts';
import { wordKeysOf } from '../store/words.ts';
import { composeMessage, type MessageParts } from './compose.ts';

/** Without its content, which is made when it is recorded: that of a hundred recipients would not fit into memory. */
export interface PreparedMessage extends Omit<NewMessage, 'data' | 'content'> {
  recipients: readonly string[];
  writeData(): string;
}

/** What the messages of several identities share, because they have the same bytes. */
interface MeasuredMail extends Pick<NewMessage, 'raw' | 'sha256' | 'inline' | 'inlineBytes'> {
  writeData: ReturnType<typeof makeStoreData>;
}

/** `inlineRawBytes`: a raw message up to this size is part of the event. */
export function measureMail({ parsed, facts }: ReadMail, raw: Buffer, inlineRawBytes: number): MeasuredMail {
  const sha256 = Buffer.from(facts.sha256, 'hex');
  const inline = raw.length <= inlineRawBytes;
  const inlineBytes = inline ? countInlineBytes(raw, facts.isUtf8) : 0;
  return { raw, sha256, inline, inlineBytes, writeData: makeStoreData(parsed, facts) };
}

/** As `completeData` writes them: as text or, if they are not UTF-8, as base64. */
function countInlineBytes(raw: Buffer, isUtf8: boolean): number {
  return isUtf8 ? countJsonBytes(raw) : Math.ceil(raw.length / 3) * 4;
}

type GivenMessage = Omit<MessageParts, 'threadId' | 'size'> &
  Pick<NewMessage, 'rawId' | 'isVouched' | 'repeatKey'>;

export async function prepareMessage(
  sql: Sql,
  { writeData, ...measured }: MeasuredMail,
  given: GivenMessage,
): Promise<PreparedMessage> {
  const { id, identity, parsed, envelope, rawId, isVouched, repeatKey } = given;
  const { ownerId } = identity;
  const { threadId, ancestors } = readThread(identity.id, id, parsed, given);
  const found = ancestors.length > 0 ? await findThread(sql, ownerId, identity.id, ancestors) : undefined;
  const message = composeMessage({ ...given, threadId: found ?? threadId, size: measured.raw.length });
  const summary = summarize(message);
  return {
    ...{ ...measured, id, ownerId, identityId: identity.id, eventId: newId(), rawId, isVouched, repeatKey },
    threadId: message.threadId,
    recipients: envelope.rcptTo,
    summary: JSON.stringify(summary),
    words: wordKeysOf(ownerId, summary),
    writeData: () => writeData(message),
    messageKey: parsed.messageId === null ? null : messageKey(parsed.messageId),
  };
}

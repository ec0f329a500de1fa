/**
 * Finds the conversation (thread) of a message within its identity, and makes the keys that detect repeats. The keys are hashes in
 * the form of a UUID, because a Message-ID may have any length.
 */
import { hashId } from '../lib/ids.ts';

import type { ParsedMessage } from '../mime/parse.ts';
import type { Message } from './message.ts';

/** The root and the nearest ancestors: more are not needed to find the thread. */
const maxAncestors = 20;

type ThreadFields = 'messageId' | 'inReplyTo' | 'references' | 'autoSubmitted' | 'report' | 'returnedIds';

interface Origin {
  source: Message['source'];
  envelope: Pick<Message['envelope'], 'mailFrom'>;
}

/**
 * `ancestors`: keys of the messages that this one answers, or that a notification is about. If one of them is stored, the message
 * joins its thread. If not, it gets `threadId`, a hash of the root that all messages of the conversation name (RFC 5322 §3.6.4): any
 * of them may arrive first.
 */
export function readThread(
  identityId: string,
  id: string,
  parsed: Pick<ParsedMessage, ThreadFields>,
  origin: Origin,
): { threadId: string; ancestors: string[] } {
  const { messageId, inReplyTo, references, returnedIds } = parsed;
  const returned = isNotification(parsed, origin) ? returnedIds : [];
  const named = [...returned, ...references, ...(inReplyTo === null ? [] : [inReplyTo])];
  const root = named[0] ?? messageId;
  const threadId = root === null ? id : hashId('thread', identityId, root);
  const nearest = named.slice(1).slice(1 - maxAncestors);
  return { threadId, ancestors: [...named.slice(0, 1), ...nearest].map(messageKey) };
}

/**
 * Whether a program sent this about the message that it returns. People forward messages in the same form, and those begin a thread
 * of their own. Reports say what they are; other bounces have no sender in the envelope (RFC 5321 §4.5.5), or are automatic replies
 * (RFC 3834 §5). `POST /inbound` gets no envelope.
 */
function isNotification(
  { report, autoSubmitted }: Pick<ParsedMessage, ThreadFields>,
  { source, envelope }: Origin,
): boolean {
  const isWithoutSender = source === 'smtp' && envelope.mailFrom === null;
  return report !== null || autoSubmitted === 'auto-replied' || isWithoutSender;
}

export function messageKey(messageId: string): string {
  return hashId('message', messageId);
}

/** Equal if sender, recipients and bytes are equal. */
export function repeatKey(
  { mailFrom, rcptTo }: { mailFrom: string | null; rcptTo: readonly string[] },
  sha256: Buffer,
): string {
  return hashId('repeat', JSON.stringify([mailFrom, rcptTo]), sha256.toString('hex'));
}

/**
 * Which conversation a message belongs to, within its identity, and which messages are the same one sent twice. All by hashes
 * in the form of a UUID: what people write into a Message-ID may be of any length.
 */
import { createHash } from 'node:crypto';

interface Ids {
  messageId: string | null;
  inReplyTo: string | null;
  references: readonly string[];
}

/** More ancestors than these say nothing new: those nearest to the message, and the root. */
const maxAncestors = 20;

/**
 * The thread that a message begins or, where nothing of it is here yet, goes on: it follows from the root that all its
 * messages name (RFC 5322 §3.6.4), so that it is the same whichever of them comes first. `ancestors`: keys of the messages
 * whose thread it takes instead, where one is here.
 */
export function readThread(
  identityId: string,
  id: string,
  { messageId, inReplyTo, references }: Ids,
): { threadId: string; ancestors: string[] } {
  const named = [...references, ...(inReplyTo === null ? [] : [inReplyTo])];
  const root = named[0] ?? messageId;
  const threadId = root === null ? id : hashId('thread', identityId, root);
  const nearest = named.slice(1).slice(1 - maxAncestors);
  return { threadId, ancestors: [...named.slice(0, 1), ...nearest].map(messageKey) };
}

export function messageKey(messageId: string): string {
  return hashId('message', messageId);
}

/** The same for the same bytes between the same sender and recipients. */
export function repeatKey(
  { mailFrom, rcptTo }: { mailFrom: string | null; rcptTo: readonly string[] },
  sha256: Buffer,
): string {
  return hashId('repeat', JSON.stringify([mailFrom, rcptTo]), sha256.toString('hex'));
}

/** A UUID of version 8: made by a hash of our own (RFC 9562 §5.8). */
function hashId(...parts: string[]): string {
  const hex = createHash('sha256').update(parts.join('\n')).digest('hex');
  const variant = '89ab'[Number.parseInt(hex.slice(16, 17), 16) % 4];
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-${variant}${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}

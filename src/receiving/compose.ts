/** Builds the message of the public interface from the parsed and authenticated mail. */
import type { Message } from '../contract/message.ts';
import { placeLink } from '../contract/payload.ts';
import type { Authentication } from '../mailauth/authenticate.ts';
import type { ParsedMessage } from '../mime/parse.ts';
import type { Receiver } from '../store/receivers.ts';

export interface MessageParts
  extends Pick<Message, 'id' | 'threadId' | 'source' | 'size' | 'tag' | 'envelope'> {
  receivedAt: Date;
  identity: Receiver;
  parsed: ParsedMessage;
  authentication: Authentication;
}

export function composeMessage(parts: MessageParts): Message {
  const { identity, envelope, authentication } = parts;
  const { returnedIds, ...parsed } = parts.parsed;
  return {
    id: parts.id,
    identity: {
      id: identity.id,
      publicId: identity.publicId,
      kind: identity.kind,
      value: identity.value,
    },
    mailbox: isSpam(authentication)
      ? { id: identity.spamId, kind: 'spam' }
      : { id: identity.inboxId, kind: 'inbox' },
    source: parts.source,
    direction: 'incoming',
    sending: null,
    threadId: parts.threadId,
    receivedAt: parts.receivedAt.toISOString(),
    size: parts.size,
    recipient: envelope.rcptTo[0] ?? null,
    tag: parts.tag,
    ...parsed,
    attachments: parsed.attachments.map((attachment, n) => ({ ...attachment, url: placeLink(n) })),
    envelope,
    authentication,
  };
}

/** The domain of an author asks to keep mail that is not authenticated out of the inbox. */
function isSpam({ dmarc }: Authentication): boolean {
  const isAuthentic = dmarc.result !== 'fail' && dmarc.result !== 'permerror';
  return !isAuthentic && (dmarc.policy === 'reject' || dmarc.policy === 'quarantine');
}

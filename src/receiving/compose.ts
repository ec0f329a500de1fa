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
  /** Null for a message from a Sent folder. */
  authentication: Authentication | null;
  /** The folder that the message is in elsewhere. Default: by its authentication. */
  mailbox?: Message['mailbox'];
}

export function composeMessage(parts: MessageParts): Message {
  const { identity, envelope, authentication } = parts;
  const { returnedIds, ...parsed } = parts.parsed;
  const mailbox = parts.mailbox ?? chooseMailbox(identity, authentication);
  const isSent = mailbox.kind === 'sent';
  return {
    id: parts.id,
    identity: {
      id: identity.id,
      publicId: identity.publicId,
      kind: identity.kind,
      value: identity.value,
    },
    mailbox,
    source: parts.source,
    direction: isSent ? 'outgoing' : 'incoming',
    sending: null,
    threadId: parts.threadId,
    receivedAt: parts.receivedAt.toISOString(),
    size: parts.size,
    recipient: isSent ? null : (envelope.rcptTo[0] ?? null),
    tag: parts.tag,
    ...parsed,
    attachments: parsed.attachments.map((attachment, n) => ({ ...attachment, url: placeLink(n) })),
    envelope,
    authentication,
  };
}

function chooseMailbox(identity: Receiver, authentication: Authentication | null): Message['mailbox'] {
  return authentication && isSpam(authentication)
    ? { id: identity.spamId, kind: 'spam' }
    : { id: identity.inboxId, kind: 'inbox' };
}

/** The domain of an author asks to keep mail that is not authenticated out of the inbox. */
function isSpam({ dmarc }: Authentication): boolean {
  const isAuthentic = dmarc.result !== 'fail' && dmarc.result !== 'permerror';
  return !isAuthentic && (dmarc.policy === 'reject' || dmarc.policy === 'quarantine');
}

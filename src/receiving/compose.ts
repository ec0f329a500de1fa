/** Puts a message together, as the interface shows it, from what was parsed and authenticated. */
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
  const { identity, envelope, parsed, authentication } = parts;
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
    messageId: parsed.messageId,
    inReplyTo: parsed.inReplyTo,
    references: parsed.references,
    threadId: parts.threadId,
    date: parsed.date,
    receivedAt: parts.receivedAt.toISOString(),
    size: parts.size,
    from: parsed.from,
    sender: parsed.sender,
    replyTo: parsed.replyTo,
    to: parsed.to,
    cc: parsed.cc,
    bcc: parsed.bcc,
    recipient: envelope.rcptTo[0] ?? null,
    tag: parts.tag,
    subject: parsed.subject,
    text: parsed.text,
    html: parsed.html,
    preview: parsed.preview,
    headers: parsed.headers,
    envelope: {
      mailFrom: envelope.mailFrom,
      rcptTo: envelope.rcptTo,
      remoteIp: envelope.remoteIp,
      helo: envelope.helo,
      tls: envelope.tls,
    },
    authentication: {
      spf: authentication.spf,
      // No check gives a reason yet.
      dkim: authentication.dkim.map((signature) => ({ ...signature, reason: null })),
      dmarc: { ...authentication.dmarc, reason: null },
      arc: authentication.arc,
    },
    autoSubmitted: parsed.autoSubmitted,
    attachments: parsed.attachments.map((attachment, n) => ({ ...attachment, url: placeLink(n) })),
    truncated: parsed.truncated,
  };
}

/** The sender's own domain asks that such mail be kept out. */
function isSpam({ dmarc }: Authentication): boolean {
  return dmarc.result === 'fail' && (dmarc.policy === 'reject' || dmarc.policy === 'quarantine');
}

/** A message as the interface shows it: every key always present, `null` or `[]` when absent. */

import type { Authentication } from '../mailauth/authenticate.ts';
import type { ParsedMessage } from '../mime/parse.ts';
import type { Receiver } from '../store/receivers.ts';
import { placeLink } from './payload.ts';

export interface Envelope {
  mailFrom: string | null;
  rcptTo: string[];
  remoteIp: string | null;
  helo: string | null;
  tls: { version: string; cipher: string } | null;
}

export interface MessageParts {
  id: string;
  threadId: string;
  source: 'smtp' | 'api';
  receivedAt: Date;
  size: number;
  identity: Receiver;
  tag: string | null;
  envelope: Envelope;
  parsed: ParsedMessage;
  authentication: Authentication;
}

export type Message = ReturnType<typeof composeMessage>;

export function composeMessage({
  id,
  threadId,
  identity,
  envelope,
  parsed,
  authentication,
  ...rest
}: MessageParts) {
  const mailbox = isSpam(authentication)
    ? { id: identity.spamId, kind: 'spam' }
    : { id: identity.inboxId, kind: 'inbox' };
  return {
    id,
    identity: {
      id: identity.id,
      publicId: identity.publicId,
      kind: identity.kind,
      value: identity.value,
    },
    mailbox,
    source: rest.source,
    messageId: parsed.messageId,
    inReplyTo: parsed.inReplyTo,
    references: parsed.references,
    threadId,
    date: parsed.date,
    receivedAt: rest.receivedAt.toISOString(),
    size: rest.size,
    from: parsed.from,
    sender: parsed.sender,
    replyTo: parsed.replyTo,
    to: parsed.to,
    cc: parsed.cc,
    bcc: parsed.bcc,
    recipient: envelope.rcptTo[0] ?? null,
    tag: rest.tag,
    subject: parsed.subject,
    text: parsed.text,
    html: parsed.html,
    preview: parsed.preview,
    headers: parsed.headers,
    envelope,
    authentication,
    autoSubmitted: parsed.autoSubmitted,
    attachments: parsed.attachments.map((attachment, n) => ({ ...attachment, url: placeLink(n) })),
    truncated: parsed.truncated,
  };
}

/** The sender's own domain asks that such mail be kept out. */
function isSpam({ dmarc }: Authentication): boolean {
  return dmarc.result === 'fail' && (dmarc.policy === 'reject' || dmarc.policy === 'quarantine');
}

/** As lists show it. */
export function summarize({ text, html, headers, ...light }: Message) {
  return light;
}

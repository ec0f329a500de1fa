/**
 * A message in events and responses, and its summary in lists. The type, the documentation and the checked sample come from
 * this schema. Every key is always present: `null` or `[]` if there is no value.
 */
import { type Static, Type } from 'typebox';
import { identityKinds, mailboxKinds } from '../store/identities.ts';
import { directions } from '../store/message-lists.ts';
import { closed, describe, NullableBoolean, NullableString, oneOf, Timestamp, Uuid } from './schemas.ts';
import { Sending } from './sending.ts';

const Address = closed({
  name: NullableString,
  address: describe(NullableString, 'Null if the header has a name without a valid address.'),
});
const NullableAddress = Type.Union([Address, Type.Null()]);

const MessageIdentity = closed({
  id: Uuid,
  publicId: Type.String(),
  kind: oneOf(identityKinds),
  value: Type.String(),
});

const SmtpEnvelope = closed({
  mailFrom: NullableString,
  rcptTo: Type.Array(Type.String(), {
    description: 'Only the recipients of this identity. If outgoing: all recipients.',
  }),
  remoteIp: NullableString,
  helo: NullableString,
  tls: Type.Union([closed({ version: Type.String(), cipher: Type.String() }), Type.Null()]),
});

const Authentication = closed({
  spf: closed({ result: Type.String(), domain: NullableString }),
  dkim: Type.Array(
    closed({
      result: Type.String(),
      domain: NullableString,
      selector: NullableString,
      aligned: Type.Boolean(),
      reason: NullableString,
    }),
  ),
  dmarc: closed({
    result: Type.String(),
    policy: NullableString,
    aligned: NullableBoolean,
    reason: NullableString,
  }),
  arc: closed({ result: Type.String() }),
});

const Attachment = closed({
  id: Type.String(),
  filename: NullableString,
  contentType: Type.String(),
  size: Type.Integer(),
  disposition: NullableString,
  contentId: NullableString,
  sha256: Type.String(),
  url: Type.String({ description: 'A signed link that needs no API key.' }),
});

const Report = closed({
  type: oneOf(['delivery-status', 'feedback', 'disposition']),
  original: describe(
    Type.Union([closed({ messageId: NullableString, subject: NullableString }), Type.Null()]),
    'The message that the report is about.',
  ),
  recipients: Type.Array(
    closed({
      address: NullableString,
      action: describe(
        NullableString,
        'Such as `failed`. Of a feedback report its type, such as `abuse`; of a disposition notification the disposition, such as `displayed`.',
      ),
      status: describe(NullableString, 'Such as `5.1.1` (RFC 3463).'),
      diagnostic: describe(NullableString, 'What the mail server of the recipient answered.'),
      remoteMta: NullableString,
    }),
  ),
});

export const Message = closed({
  id: Uuid,
  identity: MessageIdentity,
  mailbox: closed({ id: Uuid, kind: oneOf(mailboxKinds) }),
  source: oneOf(['smtp', 'imap', 'provider', 'api', 'submission']),
  direction: oneOf(directions),
  sending: describe(
    Type.Union([Sending, Type.Null()]),
    'Of a message that was sent from here: the state of its recipients. Null on other mail.',
  ),
  messageId: describe(NullableString, 'With its angle brackets.'),
  inReplyTo: NullableString,
  references: Type.Array(Type.String()),
  threadId: Type.String({ description: 'The same for all messages of a conversation.' }),
  date: describe(NullableString, 'From the `Date` header.'),
  receivedAt: Timestamp,
  size: Type.Integer({ description: 'Bytes of the raw message.' }),
  from: NullableAddress,
  sender: NullableAddress,
  replyTo: Type.Array(Address),
  to: Type.Array(Address),
  cc: Type.Array(Address),
  bcc: describe(Type.Array(Address), 'Of an outgoing message: shown to you, and never sent.'),
  recipient: describe(NullableString, 'The address that the message was sent to. Null if outgoing.'),
  tag: describe(NullableString, 'The part after `+` in the recipient.'),
  subject: NullableString,
  text: NullableString,
  html: NullableString,
  preview: describe(NullableString, 'Up to 200 characters of the text.'),
  headers: Type.Array(closed({ name: Type.String(), value: Type.String() }), {
    description: 'In their original order, not decoded.',
  }),
  envelope: SmtpEnvelope,
  authentication: describe(Type.Union([Authentication, Type.Null()]), 'Null if outgoing.'),
  autoSubmitted: describe(NullableString, 'The keyword of the `Auto-Submitted` header.'),
  report: describe(
    Type.Union([Report, Type.Null()]),
    'Of a report about mail that was sent: a bounce, a complaint or a read receipt. Null on other mail.',
  ),
  attachments: Type.Array(Attachment),
  truncated: Type.Array(Type.String(), {
    description: 'What was left out, wholly or in part: names of these fields, or `body`.',
  }),
});
export type Message = Static<typeof Message>;

export const MessageSummary = Type.Omit(Message, ['text', 'html', 'headers']);
export type MessageSummary = Static<typeof MessageSummary>;

/** Without the long texts, and cut: a stranger wrote most of it, and a list has many messages. */
export function summarize({ text, html, headers, ...summary }: Message): MessageSummary {
  return cutSummary(summary);
}

const maxValueBytes = 1024;
const maxValues = 50;

/** Cuts every text and every list in the summary. Summaries that older versions stored are not cut yet. */
export function cutSummary(summary: MessageSummary): MessageSummary {
  return cut(summary) as MessageSummary;
}

function cut(value: unknown): unknown {
  if (typeof value === 'string') return cutText(value);
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.slice(0, maxValues).map(cut);
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, cut(inner)]));
}

export function cutText(text: string): string {
  // A character of UTF-16 has at most three bytes of UTF-8.
  if (text.length * 3 <= maxValueBytes) return text;
  const bytes = Buffer.from(text);
  if (bytes.length <= maxValueBytes) return text;
  let end = maxValueBytes;
  // The bytes of a character after its first begin with the bits 10: none is left without its first.
  while (((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return bytes.toString('utf8', 0, end);
}

/**
 * A message in events and responses, and its summary in lists. The type, the documentation and the checked sample come from
 * this schema. Every key is always present: `null` or `[]` if there is no value.
 */
import { type Static, Type } from 'typebox';
import { identityKinds, mailboxKinds } from '../store/identities.ts';
import { directions } from '../store/message-lists.ts';
import { closed, describe, NullableBoolean, NullableString, oneOf, Timestamp, Uuid } from './schemas.ts';
import { Sending } from './sending.ts';

export const Address = closed({
  name: describe(NullableString, 'The display name. Null: none.'),
  address: describe(NullableString, 'Null if the header has a name without a valid address.'),
});
const NullableAddress = Type.Union([Address, Type.Null()]);

const MessageIdentity = closed({
  id: Uuid,
  publicId: Type.String(),
  kind: describe(oneOf(identityKinds), 'Whether `value` is an email address or a domain.'),
  value: Type.String({ description: 'The email address or the domain.' }),
});

const SmtpEnvelope = closed({
  mailFrom: describe(
    NullableString,
    'The sender that SMTP named. Null: the empty sender of bounces, or not known.',
  ),
  rcptTo: Type.Array(Type.String(), {
    description: 'Only the recipients of this identity. If outgoing: all recipients.',
  }),
  remoteIp: describe(NullableString, 'The address of the server that sent it. Null: not by SMTP.'),
  helo: describe(NullableString, 'The name that this server gave. Null: not by SMTP.'),
  tls: describe(
    Type.Union([closed({ version: Type.String(), cipher: Type.String() }), Type.Null()]),
    'Null: the connection was not encrypted, or there was none.',
  ),
});

const Authentication = closed({
  spf: closed({
    result: Type.String({ description: 'Such as `pass`, `fail` or `none` (RFC 7208).' }),
    domain: describe(NullableString, 'The domain of the sender, or of HELO if the sender is empty.'),
  }),
  dkim: Type.Array(
    closed({
      result: Type.String({ description: 'Such as `pass` or `fail` (RFC 8601).' }),
      domain: describe(NullableString, 'The domain that signed. Null: the signature names none.'),
      selector: describe(NullableString, 'The name of its key. Null: the signature names none.'),
      aligned: Type.Boolean({ description: 'Whether the domain that signed is the domain of the author.' }),
      reason: describe(NullableString, 'What is wrong, for people. Null: nothing.'),
    }),
    { description: 'One entry for each signature, in the order of the header.' },
  ),
  dmarc: closed({
    result: Type.String({ description: 'Such as `pass`, `fail` or `none` (RFC 7489).' }),
    policy: describe(
      NullableString,
      'What the domain of the author asks for mail that fails. Null: it asks nothing.',
    ),
    aligned: describe(
      NullableBoolean,
      'Whether SPF or DKIM passed for the domain of the author. Null: not decided.',
    ),
    reason: describe(NullableString, 'What is wrong, for people. Null: nothing.'),
  }),
  arc: closed({
    result: Type.String({ description: 'Of the chain of forwarders: `pass`, `fail` or `none` (RFC 8617).' }),
  }),
});

export const Attachment = closed({
  id: Type.String({
    description: 'The number of the attachment: `n` in `GET /messages/{id}/attachments/{n}`.',
  }),
  filename: describe(NullableString, 'As the sender wrote it. Null: none.'),
  contentType: Type.String(),
  size: Type.Integer({ description: 'Bytes, decoded.' }),
  disposition: describe(NullableString, 'Such as `attachment` or `inline`. Null: not given.'),
  contentId: describe(NullableString, 'What `cid:` links in the HTML name. Null: none.'),
  sha256: Type.String({ description: 'Of the decoded bytes, in hexadecimal.' }),
  url: Type.String({ description: 'A signed link that needs no API key.' }),
});

const Report = closed({
  type: describe(
    oneOf(['delivery-status', 'feedback', 'disposition']),
    '`delivery-status`: such as a bounce. `feedback`: a complaint. `disposition`: a read receipt.',
  ),
  original: describe(
    Type.Union([
      closed({
        messageId: describe(NullableString, 'Null: the report does not tell.'),
        subject: describe(NullableString, 'Null: the report does not tell.'),
      }),
      Type.Null(),
    ]),
    'The message that the report is about.',
  ),
  recipients: Type.Array(
    closed({
      address: describe(NullableString, 'Null: the report does not tell.'),
      action: describe(
        NullableString,
        'Such as `failed`. Of a feedback report its type, such as `abuse`; of a disposition notification the disposition, such as `displayed`.',
      ),
      status: describe(NullableString, 'Such as `5.1.1` (RFC 3463).'),
      diagnostic: describe(NullableString, 'What the mail server of the recipient answered.'),
      remoteMta: describe(
        NullableString,
        'The mail server of the recipient. Null: the report does not tell.',
      ),
    }),
  ),
});

export const Message = closed({
  id: Uuid,
  identity: MessageIdentity,
  mailbox: closed({ id: Uuid, kind: describe(oneOf(mailboxKinds), 'What the mailbox is for.') }),
  source: describe(
    oneOf(['smtp', 'imap', 'provider', 'api', 'submission']),
    'How it came here. `smtp`: from another mail server. `imap`: from the mailbox of an account. `provider`: from a provider. `api`: `POST /inbound` or `POST /messages`. `submission`: from a mail program of yours.',
  ),
  direction: describe(oneOf(directions), 'Whether it came to the identity or was sent by it.'),
  sending: describe(
    Type.Union([Sending, Type.Null()]),
    'Of a message that was sent from here: the state of its recipients. Null on other mail.',
  ),
  messageId: describe(NullableString, 'With its angle brackets.'),
  inReplyTo: describe(NullableString, 'The Message-ID of the message that it answers. Null: none.'),
  references: Type.Array(Type.String(), {
    description: 'The Message-IDs of the conversation, oldest first.',
  }),
  threadId: Type.String({ description: 'The same for all messages of a conversation.' }),
  date: describe(NullableString, 'From the `Date` header.'),
  receivedAt: describe(Timestamp, 'When Posthorn took the message.'),
  size: Type.Integer({ description: 'Bytes of the raw message.' }),
  from: describe(NullableAddress, 'The author, from the header. Null: the header names none.'),
  sender: describe(NullableAddress, 'From the `Sender` header. Null: it is missing.'),
  replyTo: Type.Array(Address),
  to: Type.Array(Address),
  cc: Type.Array(Address),
  bcc: describe(Type.Array(Address), 'Of an outgoing message: shown to you, and never sent.'),
  recipient: describe(NullableString, 'The address that the message was sent to. Null if outgoing.'),
  tag: describe(NullableString, 'The part after `+` in the recipient.'),
  subject: describe(NullableString, 'Decoded. Null: there is none.'),
  text: describe(NullableString, 'The plain text. Null: the message has none.'),
  html: describe(
    NullableString,
    'As the sender wrote it: never show it without a sandbox. Null: the message has none.',
  ),
  preview: describe(NullableString, 'Up to 200 characters of the text.'),
  headers: Type.Array(closed({ name: Type.String(), value: Type.String() }), {
    description: 'In their original order, not decoded.',
  }),
  envelope: describe(SmtpEnvelope, 'What SMTP said, whatever the header says.'),
  authentication: describe(Type.Union([Authentication, Type.Null()]), 'Null if outgoing.'),
  autoSubmitted: describe(NullableString, 'The keyword of the `Auto-Submitted` header.'),
  report: describe(
    Type.Union([Report, Type.Null()]),
    'Of a report about mail that was sent: a bounce, a complaint or a read receipt. Null on other mail.',
  ),
  attachments: Type.Array(Attachment),
  truncated: Type.Array(Type.String(), {
    description:
      'What was left out, wholly or in part: names of these fields, or `body`. `headers` can also mean that the end of a header over ' +
      '512 KiB or 20,000 fields was not read. What is only there, such as From or Subject, is then null or empty.',
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

/**
 * A message as it leaves the service: in events, by itself and, in short, in lists. The type, the validation, the documentation
 * and the checked sample come from this schema. Every key is always present: `null` or `[]` where there is nothing to say.
 */
import { type Static, type TProperties, Type } from 'typebox';
import { identityKinds, mailboxKinds } from '../store/identities.ts';
import { NullableBoolean, NullableString, oneOf, Timestamp, Uuid } from './schemas.ts';

function closed<Properties extends TProperties>(properties: Properties) {
  return Type.Object(properties, { additionalProperties: false });
}

const Address = closed({
  name: NullableString,
  address: Type.Unsafe<string | null>({
    ...NullableString,
    description: 'Null where there is a name and no usable address.',
  }),
});
const NullableAddress = Type.Union([Address, Type.Null()]);

const Identity = closed({
  id: Uuid,
  publicId: Type.String(),
  kind: oneOf(identityKinds),
  value: Type.String(),
});

const Envelope = closed({
  mailFrom: NullableString,
  rcptTo: Type.Array(Type.String()),
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
  url: Type.String(),
});

export const Message = closed({
  id: Uuid,
  identity: Identity,
  mailbox: closed({ id: Uuid, kind: oneOf(mailboxKinds) }),
  source: oneOf(['smtp', 'imap', 'provider', 'api', 'submission']),
  messageId: NullableString,
  inReplyTo: NullableString,
  references: Type.Array(Type.String()),
  threadId: Type.String(),
  date: NullableString,
  receivedAt: Timestamp,
  size: Type.Integer(),
  from: NullableAddress,
  sender: NullableAddress,
  replyTo: Type.Array(Address),
  to: Type.Array(Address),
  cc: Type.Array(Address),
  bcc: Type.Array(Address),
  recipient: NullableString,
  tag: NullableString,
  subject: NullableString,
  text: NullableString,
  html: NullableString,
  preview: NullableString,
  headers: Type.Array(closed({ name: Type.String(), value: Type.String() })),
  envelope: Envelope,
  authentication: Authentication,
  autoSubmitted: NullableString,
  attachments: Type.Array(Attachment),
  truncated: Type.Array(Type.String()),
});
export type Message = Static<typeof Message>;

/** As lists show it. */
export const MessageSummary = Type.Omit(Message, ['text', 'html', 'headers']);
export type MessageSummary = Static<typeof MessageSummary>;

export function summarize({ text, html, headers, ...summary }: Message): MessageSummary {
  return summary;
}

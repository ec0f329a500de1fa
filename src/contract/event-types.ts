/** The events there are, and the shape of what a webhook is sent for each. */
import { type TSchema, Type } from 'typebox';

export const eventNames = [
  'message.received',
  'message.sent',
  'message.delivered',
  'message.bounced',
] as const;
type EventName = (typeof eventNames)[number];

interface EventType {
  name: EventName;
  availability: 'supported' | 'coming_soon';
  description: string;
  /** JSON Schema of the body that is POSTed; null while the event is not there yet. */
  schema: TSchema | null;
}

function nullable(type: 'string' | 'boolean'): TSchema {
  return Type.Unsafe({ type: [type, 'null'] });
}

const closed = { additionalProperties: false };
const text = Type.String();
const mailAddress = Type.Object({ name: nullable('string'), address: text }, closed);
const verdict = { result: text, domain: nullable('string') };

export const messageSchema = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    identity: Type.Object(
      {
        id: Type.String({ format: 'uuid' }),
        publicId: text,
        kind: Type.Enum(['email', 'domain']),
        value: text,
      },
      closed,
    ),
    mailbox: Type.Object(
      { id: Type.String({ format: 'uuid' }), kind: Type.Enum(['inbox', 'sent', 'spam', 'trash']) },
      closed,
    ),
    source: Type.Enum(['smtp', 'imap', 'provider', 'api']),
    messageId: nullable('string'),
    inReplyTo: nullable('string'),
    references: Type.Array(text),
    threadId: text,
    date: nullable('string'),
    receivedAt: Type.String({ format: 'date-time' }),
    size: Type.Integer(),
    from: Type.Union([mailAddress, Type.Null()]),
    sender: Type.Union([mailAddress, Type.Null()]),
    replyTo: Type.Array(mailAddress),
    to: Type.Array(mailAddress),
    cc: Type.Array(mailAddress),
    bcc: Type.Array(mailAddress),
    recipient: text,
    tag: nullable('string'),
    subject: nullable('string'),
    text: nullable('string'),
    html: nullable('string'),
    preview: nullable('string'),
    headers: Type.Array(Type.Object({ name: text, value: text }, closed)),
    envelope: Type.Object(
      {
        mailFrom: nullable('string'),
        rcptTo: Type.Array(text),
        remoteIp: nullable('string'),
        helo: nullable('string'),
        tls: Type.Union([Type.Object({ version: text, cipher: text }, closed), Type.Null()]),
      },
      closed,
    ),
    authentication: Type.Object(
      {
        spf: Type.Object(verdict, closed),
        dkim: Type.Array(
          Type.Object({ ...verdict, selector: nullable('string'), aligned: nullable('boolean') }, closed),
        ),
        dmarc: Type.Object(
          { result: text, policy: nullable('string'), aligned: nullable('boolean') },
          closed,
        ),
        arc: Type.Object({ result: text }, closed),
      },
      closed,
    ),
    autoSubmitted: nullable('string'),
    attachments: Type.Array(
      Type.Object(
        {
          id: text,
          filename: nullable('string'),
          contentType: text,
          size: Type.Integer(),
          disposition: nullable('string'),
          contentId: nullable('string'),
          sha256: text,
          url: text,
        },
        closed,
      ),
    ),
    truncated: Type.Array(text),
  },
  closed,
);

const messageReceived = Type.Object(
  {
    event: Type.Literal('message.received'),
    data: Type.Object(
      {
        test: Type.Optional(Type.Literal(true, { description: 'Only in test events.' })),
        message: messageSchema,
        rawEmail: nullable('string'),
        rawEmailEncoding: Type.Enum(['utf-8', 'base64']),
        rawEmailSize: Type.Integer(),
        rawEmailSha256: text,
        rawEmailUrl: text,
      },
      closed,
    ),
  },
  closed,
);

export const eventTypes: readonly EventType[] = [
  {
    name: 'message.received',
    availability: 'supported',
    description: 'Mail has arrived for an identity.',
    schema: messageReceived,
  },
  {
    name: 'message.sent',
    availability: 'coming_soon',
    description: 'A message of an identity has been handed to the next mail server.',
    schema: null,
  },
  {
    name: 'message.delivered',
    availability: 'coming_soon',
    description: "A message of an identity has reached the recipient's mail server.",
    schema: null,
  },
  {
    name: 'message.bounced',
    availability: 'coming_soon',
    description: 'A message of an identity could not be delivered.',
    schema: null,
  },
];

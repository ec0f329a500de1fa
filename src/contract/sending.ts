/** The state of an outgoing message: its recipients, and the tries to send it. */
import { Type } from 'typebox';
import { recipientKinds, recipientStatuses, sendingStatuses, transports } from '../store/outgoing.ts';
import { suppressionReasons } from '../store/suppressions.ts';
import {
  closed,
  describe,
  NullableString,
  NullableTimestamp,
  NullableUuid,
  oneOf,
  Timestamp,
  Uuid,
} from './schemas.ts';

export const SmtpResponse = Type.Union([
  closed({
    code: Type.Unsafe<number | null>({
      type: ['integer', 'null'],
      description:
        'Such as 250 or 550. Null: it is not a reply, but from a report that names none, or the reason why the message was not sent to this server.',
    }),
    enhanced: describe(NullableString, 'Such as `5.1.1` (RFC 3463).'),
    text: Type.String({ description: 'The text of the reply, what the report says, or what to do.' }),
  }),
  Type.Null(),
]);

const Recipient = closed({
  address: Type.String(),
  kind: describe(oneOf(recipientKinds), 'The field that named the recipient.'),
  status: describe(
    oneOf(recipientStatuses),
    '`queued`: it is tried until it succeeds or the tries end. `sent`: the next mail server took it. `delivered`: the mail server of the recipient took it. `bounced`: it was refused for good. `suppressed`: the address is suppressed, so nothing was sent. `cancelled`: you cancelled it.',
  ),
  attemptCount: Type.Integer(),
  nextAttemptAt: describe(NullableTimestamp, 'Null if there is no next attempt.'),
  lastResponse: describe(SmtpResponse, 'What a server last replied, or what a report that came back says.'),
  updatedAt: Timestamp,
});

export const Sending = closed({
  status: describe(
    oneOf(sendingStatuses),
    'Of all recipients: `queued` while any is queued, then the status that they share, or `sent` with `sent` and `delivered`; else `mixed`. In an event, read `recipient.status`.',
  ),
  sendAt: describe(NullableTimestamp, 'Not before this time. Null: at once.'),
  // Not `Type.Record`, which @fastify/swagger rewrites: the document would not know the schemas with it by their names.
  metadata: Type.Unsafe<Record<string, string>>({
    type: 'object',
    additionalProperties: { type: 'string' },
    description: 'What was given with the message.',
  }),
  transport: describe(
    oneOf(transports),
    '`direct`: to the mail servers of the recipients. `relay`: through the relay of this installation. `account`, `provider`: through those of the identity. `capture`: nothing leaves this installation.',
  ),
  recipients: Type.Array(Recipient),
});

export const SendAttempt = closed({
  id: Uuid,
  startedAt: Timestamp,
  durationMs: Type.Integer(),
  recipients: Type.Array(Type.String()),
  host: describe(NullableString, 'The mail server. Null: none was found, or the report names none.'),
  address: describe(NullableString, 'Its IP address. Null: there was no connection.'),
  tls: describe(
    Type.Union([closed({ version: Type.String(), cipher: Type.String() }), Type.Null()]),
    'Null: the connection was not encrypted, or there was none.',
  ),
  response: describe(SmtpResponse, 'What the server replied last. Null: nothing.'),
  error: describe(
    NullableString,
    'Why there is no reply that counts. `needs_8bitmime`, `needs_smtputf8`, `message_too_large`: the server cannot take this message, and `response.text` says what to do. `reported`: this is not a try, but a report that came back later and changed the recipient; `response` is what the report says.',
  ),
});

export const Suppression = closed({
  address: Type.String(),
  reason: describe(oneOf(suppressionReasons), 'Why the address is suppressed.'),
  messageId: describe(NullableUuid, 'The message that bounced or that was complained about.'),
  createdAt: Timestamp,
});

/**
 * The bodies of events. The message stores the parts that never change. Links expire and raw bytes are stored once
 * for all events, so both are added when the event is sent or read.
 */
import { isUtf8 } from 'node:buffer';
import { type Static, Type } from 'typebox';
import type { RawFacts } from '../mailwork/jobs.ts';
import type { StoredData } from '../store/events.ts';
import type { FoundMessage } from '../store/messages.ts';
import { recipientKinds, recipientStatuses } from '../store/outgoing.ts';
import { bounceSources, bounceTypes } from '../store/send-events.ts';
import type { Links, MessageLinks } from './links.ts';
import { Message, MessageSummary } from './message.ts';
import { closed, describe, NullableString, oneOf, Timestamp } from './schemas.ts';
import { SmtpResponse } from './sending.ts';

export const MessageReceived = Type.Object(
  {
    event: Type.Literal('message.received'),
    data: Type.Object(
      {
        test: Type.Optional(Type.Literal(true, { description: 'Only in test events.' })),
        message: Message,
        rawEmail: describe(NullableString, 'The raw message. Null if it is too large: use `rawEmailUrl`.'),
        rawEmailEncoding: describe(
          oneOf(['utf-8', 'base64']),
          'How `rawEmail` is written: `base64` if the message is not valid UTF-8.',
        ),
        rawEmailSize: Type.Integer({ description: 'Bytes of the raw message.' }),
        rawEmailSha256: Type.String({ description: 'Of the raw message, in hexadecimal.' }),
        rawEmailUrl: Type.String({ description: 'A signed link that needs no API key.' }),
      },
      { additionalProperties: false },
    ),
  },
  { additionalProperties: false },
);
const SentRecipient = closed({
  address: Type.String(),
  kind: describe(oneOf(recipientKinds), 'The field that named the recipient.'),
  status: describe(oneOf(recipientStatuses), 'After this event.'),
  at: describe(Timestamp, 'When it happened.'),
  host: describe(NullableString, 'The mail server that answered or reported.'),
  response: describe(
    SmtpResponse,
    'What the mail server replied, or what a report that came back says. Null: nothing.',
  ),
  bounce: describe(
    Type.Union([
      closed({
        type: describe(
          oneOf(bounceTypes),
          '`hard`: the address does not exist. `soft`: it may work later. `policy`: the server refuses the sender or the content.',
        ),
        source: describe(
          oneOf(bounceSources),
          'How it is known: `smtp`: a server refused the message. `dsn`: a bounce message came back. `provider`: the provider reported it. `suppression`: the address is suppressed. `expired`: the tries ended.',
        ),
      }),
      Type.Null(),
    ]),
    'Only of `message.bounced`.',
  ),
});

/** The body of an event of outgoing mail: one for each recipient. */
function sendEvent<const Name extends string>(event: Name) {
  return closed({
    event: Type.Literal(event),
    data: closed({
      test: Type.Optional(Type.Literal(true, { description: 'Only in test events.' })),
      message: MessageSummary,
      recipient: SentRecipient,
    }),
  });
}
export const MessageSent = sendEvent('message.sent');
export const MessageDelivered = sendEvent('message.delivered');
export const MessageBounced = sendEvent('message.bounced');
export const MessageComplained = sendEvent('message.complained');
export type SendEventData = Static<typeof MessageSent>['data'];

export type MessageReceivedData = Static<typeof MessageReceived>['data'];
type AddedLater = Pick<MessageReceivedData, 'rawEmail' | 'rawEmailUrl'>;

/** The placeholder of an attachment's link. Quotes inside a JSON string are escaped, so no other text can match. */
const linkPlaceholder = /"url":"attachment:(\d+)"/g;

export function placeLink(n: number): string {
  return `attachment:${n}`;
}

type LongTexts = Pick<Message, 'text' | 'html' | 'headers'>;
type ShownRawFacts = Omit<MessageReceivedData, keyof AddedLater | 'message' | 'test'>;

/**
 * Returns a function that writes the JSON text that a message stores. What is the same for all recipients of a mail is written
 * once: it can have 9 MiB, and a mail a hundred recipients.
 */
export function makeStoreData({ text, html, headers }: LongTexts, { size, sha256, isUtf8 }: RawFacts) {
  const texts = JSON.stringify({ text, html, headers } satisfies LongTexts).slice(1);
  const facts = JSON.stringify({
    rawEmailEncoding: isUtf8 ? 'utf-8' : 'base64',
    rawEmailSize: size,
    rawEmailSha256: sha256,
  } satisfies ShownRawFacts).slice(1);
  return ({ text, html, headers, ...message }: Message): string =>
    `{"message":${JSON.stringify(message).slice(0, -1)},${texts},${facts}`;
}

/**
 * Messages that older versions stored lack keys that came later. Quotes inside a JSON string are escaped, and a stranger chooses no
 * keys, so only a key can match.
 */
function addLaterKeys(data: string): string {
  const missing = ['"report":null', '"direction":"incoming","sending":null'].filter(
    (text) => !data.includes(text.slice(0, text.indexOf(':') + 1)),
  );
  return missing.length === 0 ? data : data.replace('{"message":{', `{"message":{${missing.join(',')},`);
}

/** Every message is stored with `"sending":null`: what it is now is added when it is shown. */
function addSending(json: string, sending: string | null): string {
  if (sending === null) return json;
  // Written again, without the blanks of PostgreSQL.
  const compact = JSON.stringify(JSON.parse(sending));
  return json.replace('"sending":null', () => `"sending":${compact}`);
}

/** Returns the JSON text of `data` to send now. Events without a message are sent as stored. */
export function completeData(stored: StoredData, links: Links, nowMs: number): string {
  const { data, messageId, raw, summary } = stored;
  if (messageId === null) return data;
  const link = links.to(messageId, nowMs);
  if (summary !== null) return completeSendData(data, summary, link);
  const added = { rawEmail: raw && writeRaw(raw), rawEmailUrl: link.raw } satisfies AddedLater;
  return `${addLinks(addLaterKeys(data), link).slice(0, -1)},${JSON.stringify(added).slice(1)}`;
}

/** The event stores `{"sending": …, "recipient": …}`, and the message its summary. */
function completeSendData(data: string, summary: string, link: MessageLinks): string {
  const { sending, recipient } = JSON.parse(data) as { sending: unknown; recipient: unknown };
  const message = addLinks(addSending(summary, JSON.stringify(sending)), link);
  return `{"message":${message},"recipient":${JSON.stringify(recipient)}}`;
}

/** Returns the JSON text of the message alone, from the data that it stores. */
export function writeMessage(stored: FoundMessage, messageId: string, links: Links, nowMs: number): string {
  const data = addSending(addLaterKeys(stored.data), stored.sending);
  // Only facts of ours follow the message, so the last match is where it ends, whatever the message contains.
  const message = data.slice('{"message":'.length, data.lastIndexOf(',"rawEmailEncoding":'));
  return addLinks(message, links.to(messageId, nowMs));
}

function addLinks(json: string, link: MessageLinks): string {
  return json.replace(linkPlaceholder, (_, n: string) => `"url":${JSON.stringify(link.attachment(n))}`);
}

function writeRaw(raw: Buffer): string {
  return raw.toString(isUtf8(raw) ? 'utf8' : 'base64');
}

/** Adds to a summary the links, the state of its sending (JSON text), and the keys that older versions did not store. */
export function completeSummary(
  message: MessageSummary,
  sending: string | null,
  links: Links,
  nowMs: number,
): MessageSummary {
  const link = links.to(message.id, nowMs);
  const attachments = message.attachments.map((attachment) => ({
    ...attachment,
    url: link.attachment(attachment.id),
  }));
  return {
    ...message,
    direction: message.direction ?? 'incoming',
    sending: sending === null ? null : JSON.parse(sending),
    report: message.report ?? null,
    attachments,
  };
}

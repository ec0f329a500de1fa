/**
 * The body of `message.received`. The message stores the parts that never change. Links expire and raw bytes are stored once
 * for all events, so both are added when the event is sent or read.
 */
import { isUtf8 } from 'node:buffer';
import { type Static, Type } from 'typebox';
import type { StoredData } from '../store/events.ts';
import type { Links, MessageLinks } from './links.ts';
import { Message, type MessageSummary } from './message.ts';
import { describe, NullableString, oneOf } from './schemas.ts';

export const MessageReceived = Type.Object(
  {
    event: Type.Literal('message.received'),
    data: Type.Object(
      {
        test: Type.Optional(Type.Literal(true, { description: 'Only in test events.' })),
        message: Message,
        rawEmail: describe(NullableString, 'The raw message. Null if it is too large: use `rawEmailUrl`.'),
        rawEmailEncoding: oneOf(['utf-8', 'base64']),
        rawEmailSize: Type.Integer(),
        rawEmailSha256: Type.String(),
        rawEmailUrl: Type.String({ description: 'A signed link that needs no API key.' }),
      },
      { additionalProperties: false },
    ),
  },
  { additionalProperties: false },
);
export type MessageReceivedData = Static<typeof MessageReceived>['data'];
type AddedLater = Pick<MessageReceivedData, 'rawEmail' | 'rawEmailUrl'>;

/** The placeholder of an attachment's link. Quotes inside a JSON string are escaped, so no other text can match. */
const linkPlaceholder = /"url":"attachment:(\d+)"/g;

export function placeLink(n: number): string {
  return `attachment:${n}`;
}

type LongTexts = Pick<Message, 'text' | 'html' | 'headers'>;
type RawFacts = Omit<MessageReceivedData, keyof AddedLater | 'message' | 'test'>;

/**
 * Returns a function that writes the JSON text that a message stores. What is the same for all recipients of a mail is written
 * once: it can have 9 MiB, and a mail a hundred recipients.
 */
export function makeStoreData({ text, html, headers }: LongTexts, raw: Buffer, sha256: Buffer) {
  const texts = JSON.stringify({ text, html, headers } satisfies LongTexts).slice(1);
  const facts = JSON.stringify({
    rawEmailEncoding: isUtf8(raw) ? 'utf-8' : 'base64',
    rawEmailSize: raw.length,
    rawEmailSha256: sha256.toString('hex'),
  } satisfies RawFacts).slice(1);
  return ({ text, html, headers, ...message }: Message): string =>
    `{"message":${JSON.stringify(message).slice(0, -1)},${texts},${facts}`;
}

/**
 * Messages that older versions stored have no `report`. Quotes inside a JSON string are escaped, and a stranger chooses no keys, so
 * only the key can match.
 */
function addReport(data: string): string {
  return data.includes('"report":') ? data : data.replace('{"message":{', '{"message":{"report":null,');
}

/** Returns the JSON text of `data` to send now. Events without a message are sent as stored. */
export function completeData({ data, messageId, raw }: StoredData, links: Links, nowMs: number): string {
  if (messageId === null) return data;
  const link = links.to(messageId, nowMs);
  const added = { rawEmail: raw && writeRaw(raw), rawEmailUrl: link.raw } satisfies AddedLater;
  return `${addLinks(addReport(data), link).slice(0, -1)},${JSON.stringify(added).slice(1)}`;
}

/** Returns the JSON text of the message alone, from the data that it stores. */
export function writeMessage(stored: string, messageId: string, links: Links, nowMs: number): string {
  const data = addReport(stored);
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

/** Adds the links to a message or a summary, and the keys that older versions did not store. */
export function completeMessage<Shown extends MessageSummary>(
  message: Shown,
  links: Links,
  nowMs: number,
): Shown {
  const link = links.to(message.id, nowMs);
  const attachments = message.attachments.map((attachment) => ({
    ...attachment,
    url: link.attachment(attachment.id),
  }));
  return { ...message, report: message.report ?? null, attachments };
}

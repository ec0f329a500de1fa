/**
 * What is POSTed for `message.received`. What never changes is stored with the event; the links, which expire, and the raw
 * bytes, which are kept once for all, are added when the event is sent or shown.
 */
import { isUtf8 } from 'node:buffer';
import { type Static, Type } from 'typebox';
import type { StoredData } from '../store/events.ts';
import type { Links } from './links.ts';
import { Message, type MessageSummary } from './message.ts';
import { NullableString, oneOf } from './schemas.ts';

export const MessageReceived = Type.Object(
  {
    event: Type.Literal('message.received'),
    data: Type.Object(
      {
        test: Type.Optional(Type.Literal(true, { description: 'Only in test events.' })),
        message: Message,
        rawEmail: NullableString,
        rawEmailEncoding: oneOf(['utf-8', 'base64']),
        rawEmailSize: Type.Integer(),
        rawEmailSha256: Type.String(),
        rawEmailUrl: Type.String(),
      },
      { additionalProperties: false },
    ),
  },
  { additionalProperties: false },
);
export type MessageReceivedData = Static<typeof MessageReceived>['data'];
type AddedLater = Pick<MessageReceivedData, 'rawEmail' | 'rawEmailUrl'>;

/** Stands where the link to an attachment will be. Inside a JSON string its quotes would be escaped, so no text is mistaken for it. */
const linkPlace = /"url":"attachment:(\d+)"/g;

export function placeLink(n: number): string {
  return `attachment:${n}`;
}

/** JSON text of what is stored: everything that is not added later. */
export function storeData(message: Message, raw: Buffer, sha256: Buffer): string {
  return JSON.stringify({
    message,
    rawEmailEncoding: isUtf8(raw) ? 'utf-8' : 'base64',
    rawEmailSize: raw.length,
    rawEmailSha256: sha256.toString('hex'),
  } satisfies Omit<MessageReceivedData, keyof AddedLater>);
}

/** JSON text of the data as it is sent now. Data of other events is sent as it is stored. */
export function completeData({ data, messageId, raw }: StoredData, links: Links, nowMs: number): string {
  if (messageId === null) return data;
  const link = links.to(messageId, nowMs);
  const linked = data.replace(linkPlace, (_, n: string) => `"url":${JSON.stringify(link.attachment(n))}`);
  const added = { rawEmail: raw && readRaw(raw), rawEmailUrl: link.raw } satisfies AddedLater;
  return `${linked.slice(0, -1)},${JSON.stringify(added).slice(1)}`;
}

function readRaw(base64: string): string {
  const bytes = Buffer.from(base64, 'base64');
  return bytes.toString(isUtf8(bytes) ? 'utf8' : 'base64');
}

/** The same for a message by itself, whole or as lists show it. */
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
  return { ...message, attachments };
}

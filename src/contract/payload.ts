/**
 * The `data` of `message.received`. What never changes is stored with the event; the links, which run out, and the raw bytes,
 * which are kept once for all, are put in when it is told.
 */
import { isUtf8 } from 'node:buffer';
import type { StoredData } from '../store/events.ts';
import type { Links } from './links.ts';
import type { Message } from './message.ts';

/** Stands where the link to an attachment will be. Within a JSON string its quotes would be escaped: so none is mistaken. */
const linkPlace = /"url":"attachment:(\d+)"/g;

export function placeLink(n: number): string {
  return `attachment:${n}`;
}

/** What is stored: all of it but `rawEmail` and `rawEmailUrl`. */
export function storeData(message: Message, raw: Buffer, sha256: Buffer): string {
  return JSON.stringify({
    message,
    rawEmailEncoding: isUtf8(raw) ? 'utf-8' : 'base64',
    rawEmailSize: raw.length,
    rawEmailSha256: sha256.toString('hex'),
  });
}

/** As it is told now. Data of other events is told as it is. */
export function completeData({ data, messageId, raw }: StoredData, links: Links, nowMs: number): string {
  if (messageId === null) return data;
  const link = links.to(messageId, nowMs);
  const linked = data.replace(linkPlace, (_, n: string) => `"url":${JSON.stringify(link.attachment(n))}`);
  const rest = { rawEmail: raw && readRaw(raw), rawEmailUrl: link.raw };
  return `${linked.slice(0, -1)},${JSON.stringify(rest).slice(1)}`;
}

function readRaw(base64: string): string {
  const bytes = Buffer.from(base64, 'base64');
  return bytes.toString(isUtf8(bytes) ? 'utf8' : 'base64');
}

/** The same for a message by itself, whole or as lists show it. */
export function completeMessage(
  message: Record<string, unknown>,
  id: string,
  links: Links,
  nowMs: number,
): Record<string, unknown> {
  const link = links.to(id, nowMs);
  const attachments = (message.attachments as { id: string }[]).map((attachment) => ({
    ...attachment,
    url: link.attachment(attachment.id),
  }));
  return { ...message, attachments };
}

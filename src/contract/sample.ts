/** The `data` of sample events: every field of a real event, and `"test": true`. */
import { createHash } from 'node:crypto';
import { newId } from '../lib/ids.ts';
import { summarize } from './message.ts';
import type { MessageReceivedData, SendEventData } from './payload.ts';

const rawEmail = [
  'From: Ada Lovelace <ada@example.com>',
  'To: test@example.net',
  'Subject: A test from Posthorn',
  'Date: Sat, 31 Jan 2026 12:00:00 +0000',
  'Message-ID: <test@example.com>',
  'Content-Type: text/plain; charset=utf-8',
  '',
  'If you can read this, your webhook works.',
  '',
].join('\r\n');

/** A sample for each event that `GET /event-types` calls supported. */
export const samples = {
  'message.received': sampleData,
  'message.sent': () => sampleSendData('sent'),
  'message.delivered': () => sampleSendData('delivered'),
  'message.bounced': () => sampleSendData('bounced'),
  'message.complained': () => sampleSendData('delivered'),
};
export type SampledEvent = keyof typeof samples;
export const sampledEvents = Object.keys(samples) as SampledEvent[];

export function sampleData(): MessageReceivedData {
  const id = newId();
  const text = 'If you can read this, your webhook works.\n';
  const [head = ''] = rawEmail.split('\r\n\r\n', 1);
  return {
    test: true,
    message: {
      id,
      identity: { id: newId(), publicId: 'sampleSAMP', kind: 'email', value: 'test@example.net' },
      mailbox: { id: newId(), kind: 'inbox' },
      source: 'api',
      direction: 'incoming',
      sending: null,
      messageId: '<test@example.com>',
      inReplyTo: null,
      references: [],
      threadId: id,
      date: '2026-01-31T12:00:00.000Z',
      receivedAt: new Date().toISOString(),
      size: rawEmail.length,
      from: { name: 'Ada Lovelace', address: 'ada@example.com' },
      sender: null,
      replyTo: [],
      to: [{ name: null, address: 'test@example.net' }],
      cc: [],
      bcc: [],
      recipient: 'test@example.net',
      tag: null,
      subject: 'A test from Posthorn',
      text,
      html: null,
      preview: text.trim(),
      headers: head.split('\r\n').map((line) => {
        const colon = line.indexOf(':');
        return { name: line.slice(0, colon), value: line.slice(colon + 2) };
      }),
      envelope: {
        mailFrom: 'ada@example.com',
        rcptTo: ['test@example.net'],
        remoteIp: null,
        helo: null,
        tls: null,
      },
      authentication: {
        spf: { result: 'none', domain: null },
        dkim: [],
        dmarc: { result: 'none', policy: null, aligned: null, reason: null },
        arc: { result: 'none' },
      },
      autoSubmitted: null,
      report: null,
      attachments: [],
      truncated: [],
    },
    rawEmail,
    rawEmailEncoding: 'utf-8',
    rawEmailSize: rawEmail.length,
    rawEmailSha256: createHash('sha256').update(rawEmail).digest('hex'),
    // The sample message is not stored, so there is nothing to link to.
    rawEmailUrl: 'https://posthorn.invalid/test-event',
  };
}

function sampleSendData(status: 'sent' | 'delivered' | 'bounced'): SendEventData {
  const { message } = sampleData();
  const recipient = { address: 'ada@example.com', kind: 'to', status } as const;
  const at = message.receivedAt;
  const isBounced = status === 'bounced';
  const response = isBounced
    ? { code: 550, enhanced: '5.1.1', text: 'There is no such mailbox' }
    : { code: 250, enhanced: '2.0.0', text: 'Taken' };
  return {
    test: true,
    message: summarize({
      ...message,
      mailbox: { ...message.mailbox, kind: 'sent' },
      direction: 'outgoing',
      sending: {
        ...{ status, sendAt: null, metadata: {}, transport: 'direct' },
        recipients: [
          { ...recipient, attemptCount: 1, nextAttemptAt: null, lastResponse: response, updatedAt: at },
        ],
      },
      from: { name: null, address: 'test@example.net' },
      to: [{ name: 'Ada Lovelace', address: 'ada@example.com' }],
      recipient: null,
      envelope: { ...message.envelope, mailFrom: null, rcptTo: ['ada@example.com'] },
      authentication: null,
    }),
    recipient: {
      ...{ ...recipient, at, host: 'mx.example.com', response },
      bounce: isBounced ? { type: 'hard', source: 'smtp' } : null,
    },
  };
}

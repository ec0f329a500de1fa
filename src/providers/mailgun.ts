/** Calls of Mailgun: the HMAC-SHA256 of timestamp and token, under the webhook signing key, is the proof. */
import { createHmac } from 'node:crypto';
import { areEqualSecrets } from '../lib/equal-secrets.ts';
import { hashId } from '../lib/ids.ts';
import type { MailgunCredentials } from '../store/providers.ts';
import type { BounceType } from '../store/send-events.ts';
import type { ProviderReport } from '../store/send-reports.ts';
import { fieldOf, formBytesOf, type HookCall, isFresh, type ReadCall, senderOf, textOf } from './hook.ts';
import { byMessageId, makeReport } from './report.ts';

export function readMailgunCall({ signingKey }: MailgunCredentials, call: HookCall): ReadCall {
  return call.path === 'inbound' ? readInbound(signingKey, call) : readEvent(signingKey, call);
}

/** Of a field that is no mail: the recipients have most. */
const maxTextBytes = 64 * 1024;

/** The key of the call; null: not signed with this key, or too old. */
function checkSignature(
  signingKey: string,
  given: Record<'timestamp' | 'token' | 'signature', string>,
  nowMs: number,
): string | null {
  const { timestamp, token, signature } = given;
  const expected = createHmac('sha256', signingKey).update(`${timestamp}${token}`).digest('hex');
  const isSigned = areEqualSecrets(signature.toLowerCase(), expected);
  // Only digits, and a token: otherwise a part of the timestamp could move into the token and make another call of the same one.
  if (!isSigned || !/^\d{1,12}$/.test(timestamp) || !/^[0-9a-z]{20,}$/i.test(token)) return null;
  return isFresh(Number(timestamp) * 1000, nowMs) ? hashId('mailgun', `${timestamp}${token}`) : null;
}

function readInbound(signingKey: string, { body, nowMs }: HookCall): ReadCall {
  const text = (name: string) => formBytesOf(body, name)?.toString('utf8', 0, maxTextBytes) ?? '';
  const signed = { timestamp: text('timestamp'), token: text('token'), signature: text('signature') };
  const callKey = checkSignature(signingKey, signed, nowMs);
  if (callKey === null) return 'refused';
  const raw = formBytesOf(body, 'body-mime');
  if (!raw)
    return { fault: 'The form has no "body-mime". The URL of the route at Mailgun must end with "/mime".' };
  const recipients = text('recipient')
    .split(',')
    .map((address) => address.trim())
    .filter((address) => address !== '');
  return {
    content: { callKey, mail: { raw, mailFrom: senderOf(text('sender') || null), recipients }, reports: [] },
  };
}

const bounceReasons = new Map<string | null, BounceType>([
  ['bounce', 'hard'],
  ['suppress-bounce', 'hard'],
  ['old', 'soft'],
]);

function readEvent(signingKey: string, { body, nowMs }: HookCall): ReadCall {
  const given = body.json;
  const text = (name: string) => String(fieldOf(given, 'signature', name) ?? '');
  const signed = { timestamp: text('timestamp'), token: text('token'), signature: text('signature') };
  const callKey = checkSignature(signingKey, signed, nowMs);
  if (callKey === null) return 'refused';
  const data = fieldOf(given, 'event-data');
  const event = textOf(data, 'event');
  // A failure that is not permanent is tried again by Mailgun.
  const isLost = event === 'failed' && textOf(data, 'severity') === 'permanent';
  const outcomes = new Map<string | null, ProviderReport['outcome'] | null>([
    ['delivered', 'delivered'],
    ['complained', 'complained'],
    ['failed', isLost ? 'bounced' : null],
  ]);
  const status = fieldOf(data, 'delivery-status');
  const reason = textOf(status, 'message') ?? textOf(status, 'description');
  const code = fieldOf(status, 'code');
  const hasCode = reason !== null && /^[2-5]\d\d\b/.test(reason);
  const reports = makeReport({
    message: byMessageId(textOf(data, 'message', 'headers', 'message-id')),
    ...{ address: textOf(data, 'recipient'), outcome: outcomes.get(event) ?? null, action: event },
    status: textOf(status, 'enhanced-code'),
    diagnostic: hasCode || typeof code !== 'number' ? reason : `${code} ${reason ?? ''}`,
    remoteMta: textOf(status, 'mx-host'),
    bounceType: isLost ? (bounceReasons.get(textOf(data, 'reason')) ?? null) : null,
  });
  return { content: { callKey, mail: null, reports } };
}

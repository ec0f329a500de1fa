/** Calls of SendGrid: an ECDSA signature (P-256, SHA-256) of the timestamp and the body is the proof. */
import { createHash, verify } from 'node:crypto';
import { promisify } from 'node:util';
import { hashId } from '../lib/ids.ts';
import { readHookJson } from '../mailwork/hook-body.ts';
import type { SendgridCredentials } from '../store/providers.ts';
import type { BounceType } from '../store/send-events.ts';
import type { ProviderReport } from '../store/send-reports.ts';
import { readVerificationKey } from './credentials.ts';
import { formBytesOf, type HookCall, isFresh, listOf, type ReadCall, senderOf, textOf } from './hook.ts';
import { byMessageId, makeReport } from './report.ts';

/** On a thread of libuv: to hash 36 MB takes long. */
const verifyElsewhere = promisify(verify);
/** An envelope has the addresses of one message. */
const maxEnvelopeBytes = 64 * 1024;

export async function readSendgridCall(credentials: SendgridCredentials, call: HookCall): Promise<ReadCall> {
  const { verificationKey, inboundVerificationKey = verificationKey } = credentials;
  const isInbound = call.path === 'inbound';
  const timestamp = call.header('x-twilio-email-event-webhook-timestamp') ?? '';
  const signature = call.header('x-twilio-email-event-webhook-signature') ?? '';
  const key = readVerificationKey(isInbound ? inboundVerificationKey : verificationKey);
  const signed = Buffer.concat([Buffer.from(timestamp), call.raw]);
  if (
    !key ||
    !/^\d{1,12}$/.test(timestamp) ||
    !(await verifyElsewhere('sha256', signed, key, Buffer.from(signature, 'base64')))
  )
    return 'refused';
  if (!isFresh(Number(timestamp) * 1000, call.nowMs)) return 'refused';
  // Not of the signature: two signatures of the same bytes differ.
  const callKey = hashId('sendgrid', createHash('sha256').update(signed).digest('hex'));
  return isInbound ? readInbound(callKey, call) : readEvents(callKey, call);
}

function readInbound(callKey: string, { body }: HookCall): ReadCall {
  const raw = formBytesOf(body, 'email');
  const given = formBytesOf(body, 'envelope');
  const envelope = given && given.length <= maxEnvelopeBytes ? readHookJson(given) : undefined;
  const recipients = listOf(envelope, 'to').filter((one) => typeof one === 'string');
  if (!raw)
    return {
      fault:
        'The form has no "email". In the Inbound Parse settings, check "POST the raw, full MIME message".',
    };
  return {
    content: {
      callKey,
      mail: { raw, mailFrom: senderOf(textOf(envelope, 'from')), recipients },
      reports: [],
    },
  };
}

/** A server that blocks the message does not say that the address is wrong. */
const bounceTypes = new Map<string | null, BounceType>([
  ['bounce', 'hard'],
  ['blocked', 'policy'],
]);
const outcomes = new Map<string | null, ProviderReport['outcome']>([
  ['delivered', 'delivered'],
  ['bounce', 'bounced'],
  ['dropped', 'bounced'],
  ['spamreport', 'complained'],
]);

function readEvents(callKey: string, { body }: HookCall): ReadCall {
  const events = body.json;
  if (!Array.isArray(events)) return { fault: 'The body is no list of events of SendGrid.' };
  const reports = events.flatMap((event) => {
    const type = textOf(event, 'event');
    const reason = textOf(event, 'reason') ?? textOf(event, 'response');
    return makeReport({
      message: byMessageId(textOf(event, 'smtp-id')),
      ...{ address: textOf(event, 'email'), outcome: outcomes.get(type) ?? null, action: type },
      ...{ status: textOf(event, 'status'), diagnostic: reason },
      bounceType: type === 'bounce' ? (bounceTypes.get(textOf(event, 'type')) ?? null) : null,
    });
  });
  return { content: { callKey, mail: null, reports } };
}

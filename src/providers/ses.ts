/** Calls of Amazon SES, which come through Amazon SNS: the signature of SNS for the owner's topic is the proof (`sns.ts`). */
import { hashId } from '../lib/ids.ts';
import { readHookJson } from '../mailwork/hook-body.ts';
import type { SesCredentials } from '../store/providers.ts';
import type { BounceType } from '../store/send-events.ts';
import type { ProviderReport } from '../store/send-reports.ts';
import { type HookCall, type HookContent, listOf, type ReadCall, senderOf, textOf } from './hook.ts';
import { byMessageId, makeReport } from './report.ts';
import type { Sns } from './sns.ts';

/** Both paths take all that comes: every subscription of a topic gets all of its messages. */
export async function readSesCall(credentials: SesCredentials, call: HookCall, sns: Sns): Promise<ReadCall> {
  const message = await sns.read(call.body.json, credentials, call.nowMs);
  if (typeof message === 'string') return message;
  const nothing: HookContent = { callKey: hashId('ses', message.messageId), mail: null, reports: [] };
  if (message.type !== 'Notification') return { content: nothing };
  const given = readHookJson(Buffer.from(message.text));
  const type = textOf(given, 'notificationType') ?? textOf(given, 'eventType');
  if (type === 'Received') return readReceived(nothing, given);
  return { content: { ...nothing, reports: readReports(type, given) } };
}

function readReceived(nothing: HookContent, given: unknown): ReadCall {
  const content = textOf(given, 'content');
  if (content === null)
    return {
      fault:
        'The notification has no "content". Use an SNS action in the receipt rule: other actions do not send the message along.',
    };
  const isBase64 = textOf(given, 'receipt', 'action', 'encoding')?.toUpperCase() === 'BASE64';
  const mail = {
    raw: Buffer.from(content, isBase64 ? 'base64' : 'utf8'),
    mailFrom: senderOf(textOf(given, 'mail', 'source')),
    recipients: listOf(given, 'receipt', 'recipients').filter((one) => typeof one === 'string'),
  };
  return { content: { ...nothing, mail } };
}

const bounceTypes = new Map<string | null, BounceType>([
  ['Permanent', 'hard'],
  ['Transient', 'soft'],
]);

function readReports(type: string | null, given: unknown): ProviderReport[] {
  const message = byMessageId(findMessageId(given));
  if (type === 'Delivery') {
    return listOf(given, 'delivery', 'recipients').flatMap((address) =>
      makeReport({
        ...{
          message,
          address: typeof address === 'string' ? address : null,
          outcome: 'delivered',
          action: type,
        },
        diagnostic: textOf(given, 'delivery', 'smtpResponse'),
      }),
    );
  }
  if (type === 'Bounce') {
    const bounceType = bounceTypes.get(textOf(given, 'bounce', 'bounceType')) ?? null;
    return listOf(given, 'bounce', 'bouncedRecipients').flatMap((one) =>
      makeReport({
        ...{ message, address: textOf(one, 'emailAddress'), outcome: 'bounced', bounceType },
        action: textOf(given, 'bounce', 'bounceSubType') ?? type,
        ...{ status: textOf(one, 'status'), diagnostic: textOf(one, 'diagnosticCode') },
      }),
    );
  }
  // `not-spam` is a recipient who took the complaint back.
  if (type !== 'Complaint' || textOf(given, 'complaint', 'complaintFeedbackType') === 'not-spam') return [];
  return listOf(given, 'complaint', 'complainedRecipients').flatMap((one) =>
    makeReport({ message, address: textOf(one, 'emailAddress'), outcome: 'complained', action: type }),
  );
}

/** SES gives each message a Message-ID of its own, and repeats ours among the original headers. */
function findMessageId(given: unknown): string | null {
  const field = listOf(given, 'mail', 'headers').find((one) =>
    /^message-id$/i.test(textOf(one, 'name') ?? ''),
  );
  const ours = textOf(field, 'value') ?? textOf(given, 'mail', 'commonHeaders', 'messageId');
  return ours;
}

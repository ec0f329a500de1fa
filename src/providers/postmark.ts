/** Calls of Postmark. Nothing signs them: the secret in the URL is the proof, and basic auth where the owner set it. */
import { areEqualSecrets } from '../lib/equal-secrets.ts';
import { hashId, isUuid } from '../lib/ids.ts';
import type { PostmarkCredentials } from '../store/providers.ts';
import type { BounceType } from '../store/send-events.ts';
import type { ProviderReport } from '../store/send-reports.ts';
import { bytesOf, fieldOf, type HookCall, listOf, type ReadCall, senderOf, textOf } from './hook.ts';
import { makeReport } from './report.ts';

export function readPostmarkCall({ basicAuth }: PostmarkCredentials, call: HookCall): ReadCall {
  if (basicAuth && !hasLogin(call, basicAuth)) return 'refused';
  const { json } = call.body;
  return call.path === 'inbound' ? readInbound(json) : readEvent(json);
}

function hasLogin(call: HookCall, { username, password }: { username: string; password: string }): boolean {
  const expected = `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`;
  return areEqualSecrets(call.header('authorization') ?? '', expected);
}

function readInbound(body: unknown): ReadCall {
  const id = textOf(body, 'MessageID');
  const raw = bytesOf(body, 'RawEmail');
  const recipient = textOf(body, 'OriginalRecipient');
  if (id === null || recipient === null)
    return {
      fault: 'The body is no inbound message of Postmark: "MessageID" or "OriginalRecipient" is missing.',
    };
  if (raw === null)
    return {
      fault:
        'The body has no "RawEmail". In the settings of the inbound stream, tick "Include raw email content in JSON payload".',
    };
  const returnPath = listOf(body, 'Headers').find((one) => /^return-path$/i.test(textOf(one, 'Name') ?? ''));
  const mail = {
    raw,
    mailFrom: senderOf(textOf(returnPath, 'Value')),
    recipients: [recipient],
  };
  return { content: { callKey: hashId('postmark inbound', id, recipient), mail, reports: [] } };
}

/** Whether the message was lost, and how Postmark calls it. Other types, such as `AutoResponder`, are no bounces. */
const bounceTypes = new Map<string | null, BounceType>([
  ['HardBounce', 'hard'],
  ['BadEmailAddress', 'hard'],
  ['ManuallyDeactivated', 'unknown'],
  ['SoftBounce', 'soft'],
  ['DnsError', 'soft'],
  ['Blocked', 'policy'],
  ['SpamNotification', 'policy'],
  ['DMARCPolicy', 'policy'],
  ['SMTPApiError', 'unknown'],
  ['Undeliverable', 'unknown'],
]);

function readEvent(body: unknown): ReadCall {
  const type = textOf(body, 'RecordType');
  if (type === null) return { fault: 'The body is no event of Postmark: "RecordType" is missing.' };
  const address = textOf(body, 'Recipient') ?? textOf(body, 'Email');
  const bounce = textOf(body, 'Type');
  const bounceType = type === 'Bounce' ? (bounceTypes.get(bounce) ?? null) : null;
  const outcomes = new Map<string, ProviderReport['outcome'] | null>([
    ['Delivery', 'delivered'],
    ['SpamComplaint', 'complained'],
    ['Bounce', bounceType && 'bounced'],
  ]);
  const id = textOf(body, 'Metadata', 'posthorn');
  const reports = makeReport({
    message: id !== null && isUuid(id) ? { id: id.toLowerCase() } : null,
    ...{ address, outcome: outcomes.get(type) ?? null, action: bounce ?? type, bounceType },
    diagnostic: textOf(body, 'Details'),
  });
  const parts = ['ID', 'MessageID', 'DeliveredAt', 'BouncedAt'].map((name) => String(fieldOf(body, name)));
  return { content: { callKey: hashId('postmark', type, address ?? '', ...parts), mail: null, reports } };
}

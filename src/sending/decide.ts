/** What becomes of a recipient after a try. Pure: randomness is an argument. */
import type { MailHosts } from '../net/mx.ts';
import { nextWaitSeconds } from '../queue/schedule.ts';
import type { BounceType } from '../store/send-events.ts';
import { decideBounceType } from './bounce-type.ts';
import { earlyPhases, type NotTried, type SendErrorCode, type TryReply } from './try-reply.ts';

export type Outcome =
  /** `isDelivered`: the server that took the message is the recipient's own. */
  | { kind: 'sent'; isDelivered: boolean }
  | { kind: 'bounced'; type: BounceType }
  | { kind: 'deferred'; waitSeconds: number }
  /** Given up after the last try of the schedule. */
  | { kind: 'expired'; type: 'soft' };

/** A try, or the look-up of the mail servers where it gave none. */
export type Tried = TryReply | NotTried | Exclude<MailHosts, { kind: 'hosts' }>;

export type Way = 'direct' | 'relay' | 'account' | 'provider' | 'capture';

/** There the recipient's own server takes the message, or stands in for it. */
const lastWays: readonly Way[] = ['direct', 'capture'];

const [minute, hour, day] = [60, 3600, 86_400];

/** After 1, 5, 15, 30 minutes, 1, 2, 4, 8 hours, then every 12 hours as long as that is within four days. */
export const standardSchedule: readonly number[] = makeSchedule();

function makeSchedule(): number[] {
  const waits = [minute, 5 * minute, 15 * minute, 30 * minute, hour, 2 * hour, 4 * hour, 8 * hour];
  let total = waits.reduce((sum, wait) => sum + wait, 0);
  for (; total + 12 * hour <= 4 * day; total += 12 * hour) waits.push(12 * hour);
  return waits;
}

export function decide(
  tried: Tried,
  /** Tries since the schedule began, without this one. */
  recipient: { tries: number; way: Way },
  scheduleSeconds: readonly number[],
  random: () => number,
): Outcome {
  if (tried.kind === 'accepted') return { kind: 'sent', isDelivered: lastWays.includes(recipient.way) };
  const type = findPermanent(tried, recipient.way);
  if (type) return { kind: 'bounced', type };
  const waitSeconds = nextWaitSeconds(scheduleSeconds, recipient.tries, random);
  return waitSeconds === null ? { kind: 'expired', type: 'soft' } : { kind: 'deferred', waitSeconds };
}

/** Failures that another try cannot change. */
const finalErrors: Partial<Record<SendErrorCode, BounceType>> = {
  message_too_large: 'soft',
  needs_8bitmime: 'unknown',
  needs_smtputf8: 'unknown',
  invalid_address: 'hard',
  message_malformed: 'unknown',
};
/** On the direct way the recipient's domain is at fault, for a relay the operator's setting. 5.4.4 in RFC 3463. */
const unreachableErrors: readonly SendErrorCode[] = ['no_such_host', 'target_refused'];

/** Null: try again later. */
function findPermanent(tried: Exclude<Tried, { kind: 'accepted' }>, way: Way): BounceType | null {
  if (tried.kind === 'temporary') return null;
  if (tried.kind === 'permanent') return tried.code === 'no_mail_server' ? 'soft' : 'hard';
  const { response, phase, error } = tried as TryReply;
  if (error) {
    if (way === 'direct' && unreachableErrors.includes(error)) return 'soft';
    return finalErrors[error] ?? null;
  }
  if (!response || response.code < 500) return null;
  // After a refusal before MAIL, another host or a later try may succeed. RFC 7504 §3: a host that greets with 521 never takes mail.
  if (earlyPhases.includes(phase)) return response.code === 521 && way === 'direct' ? 'hard' : null;
  return decideBounceType('smtp', response);
}

/** What a bounce means. Pure. */
import type { BounceSource, BounceType } from '../store/send-events.ts';

export interface BounceReply {
  code: number | null;
  /** RFC 3463. */
  enhanced: string | null;
}

export function decideBounceType(source: BounceSource, reply: BounceReply | null): BounceType {
  if (isGivenUp(source, reply)) return 'soft';
  const enhanced = reply?.enhanced ?? '';
  if (enhanced.startsWith('5.1.') || enhanced === '5.2.1') return 'hard';
  if (enhanced.startsWith('5.7.')) return 'policy';
  return enhanced === '5.2.2' || /^5\.[34]\./.test(enhanced) ? 'soft' : 'unknown';
}

/** The address does not exist or is out of use: who sends to it again is taken for a spammer. */
const suppressing = new Set(['5.1.1', '5.1.2', '5.1.3', '5.1.6', '5.1.10', '5.2.1']);

/** Never on a bare 550: servers also send it for reasons that lie with the message or its sender. */
export function isSuppressing(source: BounceSource, reply: BounceReply | null): boolean {
  return !isGivenUp(source, reply) && suppressing.has(reply?.enhanced ?? '');
}

/** A relay gives up as we do: its report says `failed`, with the temporary status of its last try, Exchange's "550 4.4.7". */
function isGivenUp(source: BounceSource, reply: BounceReply | null): boolean {
  if (source === 'expired' || reply?.enhanced?.startsWith('4.')) return true;
  return Math.trunc((reply?.code ?? 0) / 100) === 4;
}

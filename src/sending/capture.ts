/** The way out in development: nothing leaves the machine. Some domains behave like servers that are full, slow or unwilling. */
import { setTimeout as wait } from 'node:timers/promises';
import type { SmtpResponse, TryReply } from './try-reply.ts';

const accepted: SmtpResponse = { code: 250, enhanced: '2.0.0', text: 'Captured; nothing was sent' };
const replies: Record<string, SmtpResponse | undefined> = {
  'bounce.test': { code: 550, enhanced: '5.1.1', text: 'There is no such mailbox (captured)' },
  'defer.test': { code: 451, enhanced: '4.7.1', text: 'Please try again later (captured)' },
};

export async function captureMail(
  rcptTo: string,
  options: { signal: AbortSignal; slowMs?: number },
): Promise<TryReply> {
  const { signal, slowMs = 30_000 } = options;
  const domain = rcptTo.slice(rcptTo.lastIndexOf('@') + 1).toLowerCase();
  const place = { uncertain: false, host: 'capture', address: null, tls: null };
  if (domain === 'slow.test') await wait(slowMs, null, { signal }).catch(() => {});
  if (signal.aborted) {
    const detail = 'Posthorn is shutting down';
    return { kind: 'failed', phase: 'connect', response: null, error: 'stopped', detail, ...place };
  }
  const refusal = replies[domain];
  return refusal
    ? { kind: 'refused', phase: 'rcpt', response: refusal, error: null, detail: null, ...place }
    : { kind: 'accepted', phase: 'end-of-data', response: accepted, error: null, detail: null, ...place };
}

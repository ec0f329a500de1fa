/** What a report means for the recipient whose bounce address it came to. Pure. */
import type { FoundReport } from '../mime/reports.ts';
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import type { ReportDecision } from '../store/send-reports.ts';
import { decideBounceType, isSuppressing } from './bounce-type.ts';

const outcomes: Record<string, ReportDecision['outcome'] | undefined> = {
  failed: 'bounced',
  delivered: 'delivered',
  expanded: 'delivered',
};

const nothing = {
  status: null,
  diagnostic: null,
  remoteMta: null,
  response: null,
  bounceType: null,
  suppresses: false,
};

export function decideReport(found: FoundReport | null, address: string): ReportDecision {
  if (found?.report.type === 'feedback') {
    return {
      ...nothing,
      outcome: isComplaint(found) ? 'complained' : 'noted',
      action: found.evidence.feedbackType ?? 'feedback',
    };
  }
  if (found?.report.type !== 'delivery-status') return { ...nothing, outcome: 'noted', action: 'unknown' };
  const named = findEntry(found, address);
  const n = named ?? 0;
  const [shown, reply] = [found.report.recipients[n], found.evidence.recipients[n]];
  if (!shown?.action) return { ...nothing, outcome: 'noted', action: 'unknown' };
  const { action, diagnostic, remoteMta } = shown;
  const outcome = outcomes[action] ?? 'noted';
  const status = reply?.enhanced ?? shown.status;
  const answer = { code: reply?.code ?? null, enhanced: status };
  return {
    ...{ outcome, action, status, diagnostic, remoteMta },
    response: describeReply(answer, diagnostic),
    bounceType: outcome === 'bounced' ? decideBounceType('dsn', answer) : null,
    // What is wrong with another address says nothing about ours.
    suppresses: named !== null && outcome === 'bounced' && isSuppressing('dsn', answer),
  };
}

/** Null: the report says neither what the server replied nor why. */
export function describeReply(
  { code, enhanced }: { code: number | null; enhanced: string | null },
  diagnostic: string | null,
): ReportDecision['response'] {
  if (code === null && enhanced === null && diagnostic === null) return null;
  return { code, enhanced, text: diagnostic ?? '' };
}

/** RFC 6430 and RFC 6591: "not-spam" and "auth-failure" are no complaints. */
export function isComplaint({ report, evidence }: FoundReport): boolean {
  return report.type === 'feedback' && !['not-spam', 'auth-failure'].includes(evidence.feedbackType ?? '');
}

export function namesRecipient(found: FoundReport, address: string): boolean {
  return findEntry(found, address) !== null;
}

/** A server that forwards the message may report about several addresses. Null: no entry names our recipient. */
function findEntry({ report, evidence }: FoundReport, address: string): number | null {
  const wanted = keyOf(address);
  const named = report.recipients.findIndex((entry, n) =>
    [entry.address, evidence.recipients[n]?.originalAddress].some((one) => one && keyOf(one) === wanted),
  );
  return named === -1 ? null : named;
}

function keyOf(address: string): string {
  const read = readAddressOrDomain(address);
  return 'fault' in read ? address.toLowerCase() : read.key;
}

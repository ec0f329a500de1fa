/**
 * Reports that a provider sends to its hook, about mail that left through it. Guarantees: a report changes only recipients of the owner
 * whose message left by a provider; all reports of a call are recorded in one transaction, together with the key of the call.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { messageKey } from '../contract/thread.ts';
import { type Sql, transaction } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import { lockOutgoing } from '../store/outgoing.ts';
import {
  findReportedRecipient,
  type ProviderReport,
  type ReportDecision,
  type ReportedRecipient,
  recordReport,
} from '../store/send-reports.ts';
import { decideBounceType, isSuppressing } from './bounce-type.ts';
import { describeReply } from './report-decision.ts';

export interface ProviderReportParts {
  sql: Sql;
  log: Log;
  /** Call it after the commit of events. */
  wakeAfterEvents(): void;
  /** How long a report waits for the outcome of the try that it is about. */
  outcomeMs?: number;
}

const standardOutcomeMs = 5000;
const againMs = 50;

/**
 * When it resolves with `applied`, all is committed. `early`: the outcome of a try is not recorded yet, and the call must come again.
 * `recordCall` returns false for a call that was taken before: then nothing is changed.
 */
export async function applyProviderReports(
  parts: ProviderReportParts,
  ownerId: string,
  reports: readonly ProviderReport[],
  recordCall: (sql: Sql) => Promise<boolean>,
): Promise<'applied' | 'early'> {
  const end = performance.now() + (parts.outcomeMs ?? standardOutcomeMs);
  const found: { recipient: ReportedRecipient; report: ProviderReport }[] = [];
  for (const report of reports) {
    const recipient = await findSettled(parts.sql, ownerId, report, end);
    if (recipient?.isBeingTried) return 'early';
    if (recipient) found.push({ recipient, report });
  }
  const outcomes = await transaction(parts.sql, async (sql) => {
    if (!(await recordCall(sql))) return [];
    await lockOutgoing(
      sql,
      found.map(({ recipient }) => recipient.messageId),
    );
    const recorded: unknown[] = [];
    for (const { recipient, report } of found) {
      const decision = decideProviderReport(report);
      const { messageId, n } = recipient;
      recorded.push(
        await recordReport(sql, { messageId, n, ...decision, content: null, source: 'provider' }),
      );
    }
    return recorded;
  });
  for (const { recipient, report } of found) {
    const { messageId, n } = recipient;
    parts.log.info(
      { messageId, n, action: report.action, status: report.reply.enhanced },
      'a provider reported',
    );
  }
  if (outcomes.some((outcome) => outcome !== null)) parts.wakeAfterEvents();
  return 'applied';
}

/** A provider can report within milliseconds: before the outcome of the try that it reports about is committed. */
async function findSettled(sql: Sql, ownerId: string, report: ProviderReport, end: number) {
  const { message } = report;
  const read = readAddressOrDomain(report.address);
  if ('fault' in read) return undefined;
  const by = 'id' in message ? message : { key: messageKey(message.messageId) };
  for (;;) {
    const found = await findReportedRecipient(sql, ownerId, by, read.key);
    if (!found?.isBeingTried || performance.now() > end) return found;
    await delay(againMs);
  }
}

/** The reply of the recipient's server decides, as for other bounces; what the provider calls it counts where the reply says nothing. */
function decideProviderReport(report: ProviderReport): ReportDecision {
  const { outcome, action, reply, diagnostic, remoteMta } = report;
  const isBounced = outcome === 'bounced';
  const decided = decideBounceType('provider', reply);
  const type = decided === 'unknown' ? (report.bounceType ?? 'unknown') : decided;
  return {
    ...{ outcome, action, status: reply.enhanced, diagnostic, remoteMta },
    response: describeReply(reply, diagnostic),
    bounceType: isBounced ? type : null,
    suppresses: isBounced && isSuppressing('provider', reply),
  };
}

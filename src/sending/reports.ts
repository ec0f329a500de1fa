/**
 * Reports that come back to bounce addresses: `bounces+<token>@<bounce domain>`. Guarantee: only a token that we signed changes a
 * recipient, except of mail that left through an SMTP account (`applyStatus`). Mail to a bounce address is never shown as a message.
 */
import type { KeyObject } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { messageKey } from '../contract/thread.ts';
import type { Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import type { FoundReport } from '../mime/reports.ts';
import { compress } from '../store/content.ts';
import {
  findSentRecipient,
  listOpenRecipients,
  type ReportDecision,
  recordReport,
} from '../store/send-reports.ts';
import { isBounceAddress, readBounceAddress } from './bounce-address.ts';
import { decideReport, isComplaint, namesRecipient } from './report-decision.ts';

export interface ReportParts {
  sql: Sql;
  bounceKeys: readonly KeyObject[];
  bounceDomain: string;
  read(raw: Buffer, ownerId: string): Promise<FoundReport | null>;
  log: Log;
  /** Call it after the commit of events. */
  wakeAfterEvents(): void;
  /** How long a report waits for the outcome of the try that it is about. */
  outcomeMs?: number;
}

export interface SentRecipient {
  messageId: string;
  /** Its place among the recipients of the message. */
  recipient: number;
}

/** Of a report that cannot be read, for the operator. */
const keptBytes = 64 * 1024;
const standardOutcomeMs = 5000;
const againMs = 50;

/** Null: not a bounce address of ours. */
export function findBounce(
  { bounceKeys, bounceDomain }: Pick<ReportParts, 'bounceKeys' | 'bounceDomain'>,
  address: string,
  nowMs: number,
): ReturnType<typeof readBounceAddress> | null {
  const at = address.lastIndexOf('@');
  const local = address.slice(0, at);
  if (address.slice(at + 1).toLowerCase() !== bounceDomain.toLowerCase() || !isBounceAddress(local))
    return null;
  return readBounceAddress(bounceKeys, local, nowMs);
}

/**
 * Applies mail that came to the bounce address of a recipient. When it resolves with true, the outcome is committed. False: the outcome
 * of the try is not recorded yet, and the report must come again.
 */
export async function applyReport(
  parts: ReportParts,
  { messageId, recipient: n }: SentRecipient,
  raw: Buffer,
): Promise<boolean> {
  const sent = await findSettled(parts, messageId, n);
  if (sent?.isBeingTried) return false;
  if (!sent) {
    parts.log.info({ messageId, n }, 'a report came for a message that was deleted');
    return true;
  }
  const found = await parts.read(raw, sent.ownerId);
  await apply(parts, { messageId, n }, decideReport(found, sent.address), found ? null : raw);
  return true;
}

/** A server can report within milliseconds: before the outcome of the try that it reports about is committed. */
async function findSettled(
  { sql, outcomeMs = standardOutcomeMs }: ReportParts,
  messageId: string,
  n: number,
) {
  const end = performance.now() + outcomeMs;
  for (;;) {
    const found = await findSentRecipient(sql, messageId, n);
    if (!found?.isBeingTried || performance.now() > end) return found;
    await delay(againMs);
  }
}

/** Applies a report that came as mail to an identity of the owner. The mail is shown as a message all the same. */
export async function applyReceivedReport(
  parts: ReportParts,
  raw: Buffer,
  ownerId: string,
  type: string,
): Promise<void> {
  if (type === 'feedback') await applyComplaint(parts, raw, ownerId);
  if (type === 'delivery-status') await applyStatus(parts, raw, ownerId);
}

/**
 * Servers report about mail that left through an account to the address of the account. Every recipient knows the Message-ID and can
 * write such a report, so it moves only a recipient of whom nothing more is known than that the message was sent, and suppresses
 * nobody.
 */
async function applyStatus(parts: ReportParts, raw: Buffer, ownerId: string): Promise<void> {
  const found = await parts.read(raw, ownerId);
  const original = found?.report.original?.messageId ?? null;
  if (!found || original === null) return;
  for (const { messageId, n, address } of await listOpenRecipients(
    parts.sql,
    ownerId,
    messageKey(original),
  )) {
    if (!namesRecipient(found, address)) continue;
    const decision = decideReport(found, address);
    if (decision.outcome === 'noted') continue;
    await apply(parts, { messageId, n }, { ...decision, suppresses: false, onlySent: true }, null);
  }
}

/** A complaint in mail to anybody counts if it returns a token of ours: only the recipient's own server has the token. */
async function applyComplaint(parts: ReportParts, raw: Buffer, ownerId: string): Promise<void> {
  const found = await parts.read(raw, ownerId);
  if (!found || !isComplaint(found)) return;
  const { mailFrom, returnAddresses } = found.evidence;
  for (const word of [mailFrom ?? '', ...returnAddresses]) {
    const bounce = findBounce(parts, word.replace(/^<|>$/g, ''), Date.now());
    if (bounce === null || typeof bounce === 'string') continue;
    const recipient = { messageId: bounce.messageId, n: bounce.recipient };
    return apply(parts, recipient, decideReport(found, ''), null);
  }
}

async function apply(
  parts: ReportParts,
  recipient: { messageId: string; n: number },
  decision: ReportDecision,
  unreadable: Buffer | null,
): Promise<void> {
  const content = unreadable && (await compress(unreadable.subarray(0, keptBytes)));
  const outcome = await recordReport(parts.sql, { ...recipient, ...decision, content });
  const { action, status } = decision;
  parts.log.info({ ...recipient, action, status, outcome }, 'a report about sent mail came back');
  if (outcome) parts.wakeAfterEvents();
}

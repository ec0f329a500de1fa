/**
 * Decides and saves the result of a check, for the identity that was checked and for the holder that loses the domain to it.
 * Runs in the transaction that locks the domain. Guarantee: a takeover is one transaction, and never has two verified holders.
 */

import type { DnsRecord } from '../contract/identity.ts';
import type { Sql } from '../db/client.ts';
import { type ChangedAddress, failConfirmedByOthers } from '../store/confirmations.ts';
import { retireDkimKeys } from '../store/dkim-keys.ts';
import {
  type ChangedAddresses,
  cancelTakeovers,
  checkClaimantsNow,
  type DomainIdentity,
  findDomainIdentity,
  type LockedIdentity,
  type StoredState,
  saveState,
} from '../store/verification.ts';
import {
  type Decision,
  decideLoss,
  decideStatus,
  isAbsent,
  noteDecision,
  restartSchedule,
} from './decide.ts';
import { questionKey, type RecordAnswer, type RecordAnswers } from './dns-record.ts';
import { compareTokens, confirmOwnershipAbsent, hasToken, ownershipQuestion } from './ownership.ts';
import { decideRecords, parseRecords, questionsFor } from './records.ts';

interface Check {
  answers: RecordAnswers;
  /** The answers of each name server about the ownership record; empty if only one answer was needed. */
  serverAnswers: readonly RecordAnswer[];
  /** By `POST …/verify` or `posthorn identities verify`. */
  requested: boolean;
  startedAt: Date;
}

/** A log line, to be written after the commit: about one identity, or about many addresses. */
interface StatusChange {
  identityId?: string;
  ownerId: string;
  domain: string;
  address?: string;
  from?: string;
  to: string;
  addresses?: number;
  message: string;
}

export function describeAddressChanges(
  { count, each }: ChangedAddresses,
  change: { ownerId: string; domain: string; to: string },
  reason: string,
): StatusChange[] {
  const { domain, to } = change;
  if (each.length < count) {
    const message = `${count} addresses of ${domain} are now ${to}, like their domain: ${reason}`;
    return [{ ...change, addresses: count, message }];
  }
  return each.map(({ id, value, from }) => {
    const message = `an address is now ${to}, like its domain: ${reason}`;
    return { identityId: id, address: value, from, ...change, message };
  });
}

export function describeAddressChange(changed: ChangedAddress, reason: string): StatusChange {
  const { id: identityId, ...change } = changed;
  return { identityId, ...change, message: `an address is now ${change.to}: ${reason}` };
}

export async function saveCheck(
  mailHost: string,
  sql: Sql,
  { now, identity, state, holder }: LockedIdentity,
  check: Check,
): Promise<StatusChange[]> {
  const { serverAnswers, startedAt } = check;
  // Then `holder`, the holder among the other identities, is undefined.
  const isHolder = state.status === 'verified';
  const answers = isHolder ? confirmOwnershipAbsent(check.answers, serverAnswers, identity) : check.answers;
  const publishedKey = findPublishedKey(mailHost, identity, answers, now);
  const dkimKeys = publishedKey ? [publishedKey] : identity.dkimKeys;
  const setup = { ...identity, dkimKeys, mailHost };
  const records = decideRecords(setup, answers, now);
  const ownership = answers.get(questionKey(ownershipQuestion(identity.domain)));
  const comparison = holder && {
    ...{ id: holder.id, comparedAt: startedAt },
    tokens: compareTokens(ownership, serverAnswers, { claimant: identity.token, holder: holder.token }),
  };
  const before = check.requested ? restartSchedule(state, now) : state;
  const decision = decideStatus(before, records, comparison ?? null, { now, random: Math.random });
  // The former holder is saved first: a unique index allows one verified identity for each domain.
  const lost =
    holder && decision.takesOver
      ? await failFormerHolder(mailHost, sql, holder, answers, now, startedAt)
      : [];
  // Before the owner's own addresses are verified, for the same reason.
  const failed = decision.status === 'verified' ? await failConfirmedByOthers(sql, identity) : [];
  // The identity changed during the check, and a record that is now expected was not asked for: check again at once.
  const isComplete = questionsFor(setup).every((question) => answers.has(questionKey(question)));
  const waitSeconds = isComplete ? decision.waitSeconds : 0;
  const changes = await save(sql, state, identity.domain, records, { ...decision, waitSeconds }, startedAt);
  if (isHolder) {
    const becameAbsent = records[0] !== undefined && isAbsent(records[0]) && !isOwnershipAbsent(state);
    if (decision.status === 'failed' || becameAbsent) {
      await checkClaimantsNow(sql, identity.domain, identity.id);
    }
    if ([ownership, ...serverAnswers].some((one) => hasToken(one, identity.token))) {
      await cancelTakeovers(sql, identity);
    }
  }
  if (publishedKey) await retireDkimKeys(sql, identity, publishedKey.selector);
  const reason = 'Another user is verified for its domain.';
  return [...lost, ...failed.map((one) => describeAddressChange(one, reason)), ...changes];
}

/** The newest of several DKIM keys, if it is in DNS: it then replaces the others. */
function findPublishedKey(mailHost: string, identity: DomainIdentity, answers: RecordAnswers, now: Date) {
  const newest = identity.dkimKeys.at(-1);
  if (!newest || identity.dkimKeys.length === 1) return undefined;
  const setup = { ...identity, dkimKeys: [newest], mailHost };
  const record = decideRecords(setup, answers, now).find(({ purpose }) => purpose === 'dkim');
  return record?.status === 'valid' ? newest : undefined;
}

/** The former holder's records show what the claimant's check saw. */
async function failFormerHolder(
  mailHost: string,
  sql: Sql,
  holder: StoredState,
  answers: RecordAnswers,
  now: Date,
  startedAt: Date,
): Promise<StatusChange[]> {
  const identity = await findDomainIdentity(sql, holder.ownerId, holder.id);
  if (!identity) return [];
  const decision = decideLoss(holder, { now, random: Math.random });
  // The note of a record in its grace period is about a verified identity, and this identity is no longer verified.
  const outsideGrace = parseRecords(holder.dnsRecords).filter(({ graceUntil }) => graceUntil === undefined);
  const records = keepChecked(decideRecords({ ...identity, mailHost }, answers, now), outsideGrace);
  return save(sql, holder, identity.domain, records, decision, startedAt);
}

/** Records that this check did not ask for stay as an earlier check left them. */
export function keepChecked(records: readonly DnsRecord[], before: readonly DnsRecord[]): DnsRecord[] {
  return records.map((record) => {
    const { type, name, purpose, checkedAt } = record;
    const known = before.find((one) => one.type === type && one.name === name && one.purpose === purpose);
    return checkedAt === null ? (known ?? record) : record;
  });
}

async function save(
  sql: Sql,
  before: StoredState,
  domain: string,
  records: DnsRecord[],
  decision: Decision,
  checkStartedAt: Date,
): Promise<StatusChange[]> {
  const { id, ownerId } = before;
  const { status, reason } = decision;
  const noted = noteDecision(records, decision);
  const changed =
    status !== before.status || visiblePart(noted) !== visiblePart(parseRecords(before.dnsRecords));
  const dnsRecords = JSON.stringify(noted);
  const addresses = await saveState(sql, before, { ...decision, dnsRecords, changed, checkStartedAt });
  const change = { ownerId, domain, to: status };
  const addressChanges = describeAddressChanges(addresses, change, reason);
  if (status === before.status) return addressChanges;
  const message = `identity ${domain} is now ${status}: ${reason}`;
  return [{ identityId: id, from: before.status, ...change, message }, ...addressChanges];
}

/** All but the time of the check, which does not change `updated_at`. */
function visiblePart(records: DnsRecord[]): string {
  return JSON.stringify(records.map(({ checkedAt, ...rest }) => rest));
}

/** `decideRecords` puts the ownership record first. */
export function isOwnershipAbsent({ dnsRecords }: StoredState): boolean {
  const [ownership] = parseRecords(dnsRecords);
  return ownership !== undefined && isAbsent(ownership);
}

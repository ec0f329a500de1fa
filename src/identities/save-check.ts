/**
 * Decides what comes of a check and saves it, for the identity that was checked and for the one that loses the domain to it,
 * inside the transaction that locks the domain. Guarantee: a takeover is one transaction, and the one who loses goes first.
 */

import type { DnsRecord } from '../contract/identity.ts';
import type { Sql } from '../db/client.ts';
import { retireDkimKeys } from '../store/dkim-keys.ts';
import {
  type DomainIdentity,
  dropTakeovers,
  type Followers,
  findDomainIdentity,
  type Held,
  type Stored,
  saveStanding,
  wakeRivals,
} from '../store/verification.ts';
import { beginAgain, type Decision, decideLoss, decideStatus, isGone, markRecords } from './decide.ts';
import { type Answer, type Answers, questionKey } from './dns-record.ts';
import { confirmOwnershipGone, findHolderToken, hasToken, ownershipQuestion } from './ownership.ts';
import { decideRecords, questionsFor, type Wanted } from './records.ts';

export function wantedOf(identity: DomainIdentity, mailHost: string): Wanted {
  const { domain, token, incomingDomain, dkimKeys } = identity;
  const newest = dkimKeys.length - 1;
  return {
    ...{ domain, token, incomingDomain, mailHost },
    dkimKeys: dkimKeys.map((key, n) => (newest > 0 && n === newest ? { ...key, isNew: true } : key)),
  };
}

/** What a check saw, and whether a person asked for it. */
interface Check {
  answers: Answers;
  /** What each server says of the ownership record, where that was needed. */
  everywhere: readonly Answer[];
  asked: boolean;
  lookedAt: Date;
}

/** What is logged once it is committed: of an identity, or of many addresses in one line. */
interface Change {
  identityId?: string;
  ownerId: string;
  domain: string;
  from?: string;
  to: string;
  addresses?: number;
  message: string;
}

/** The addresses that changed with their domain, and why. */
export function describeFollowers(
  { count, each }: Followers,
  about: { ownerId: string; domain: string; to: string },
  reason: string,
): Change[] {
  if (each.length < count) {
    const message = `${count} addresses of ${about.domain} are ${about.to} with it: ${reason}`;
    return [{ ...about, addresses: count, message }];
  }
  return each.map(({ id, value, from }) => {
    const message = `identity ${value} is ${about.to} with its domain: ${reason}`;
    return { identityId: id, from, ...about, message };
  });
}

/** Returns what is to be logged once it is committed. */
export async function saveCheck(
  mailHost: string,
  sql: Sql,
  { now, identity, mine, holder }: Held,
  { answers: seen, everywhere, asked, lookedAt }: Check,
): Promise<Change[]> {
  const answers = mine.status === 'verified' ? confirmOwnershipGone(seen, everywhere, identity) : seen;
  const seenKey = findReplacement(mailHost, identity, answers, now);
  const wanted = wantedOf(seenKey ? { ...identity, dkimKeys: [seenKey] } : identity, mailHost);
  const records = decideRecords(wanted, answers, now);
  const ownership = answers.get(questionKey(ownershipQuestion(identity.domain)));
  const theirs = holder && {
    ...{ id: holder.id, seenAt: lookedAt },
    token: findHolderToken(ownership, everywhere, { own: identity.token, holder: holder.token }),
  };
  const standing = asked ? beginAgain(mine, now) : mine;
  const decision = decideStatus(standing, records, theirs ?? null, now, Math.random);
  // The one who loses it goes first: at no moment do two hold it.
  const lost =
    holder && decision.takesOver ? await demote(mailHost, sql, holder, answers, now, lookedAt) : [];
  // What is wanted has changed since the question was put: another check, at once, asks for that too.
  const isWhole = questionsFor(wanted).every((question) => answers.has(questionKey(question)));
  const waitSeconds = isWhole ? decision.waitSeconds : 0;
  const marked = markRecords(records, decision);
  const changes = await save(sql, mine, identity.domain, marked, { ...decision, waitSeconds }, lookedAt);
  if (mine.status === 'verified') {
    const isGoneNow = records[0] !== undefined && isGone(records[0]) && !isOwnershipGone(mine);
    if (decision.status === 'failed' || isGoneNow) await wakeRivals(sql, identity.domain, identity.id);
    // Whoever is about to take it over saw it otherwise, and begins anew.
    const stands = [ownership, ...everywhere].some((one) => hasToken(one, identity.token));
    if (stands) await dropTakeovers(sql, identity);
  }
  if (seenKey) await retireDkimKeys(sql, identity, seenKey.selector);
  return [...lost, ...changes];
}

/** The key that takes the place of the others, once it is seen in DNS. */
function findReplacement(mailHost: string, identity: DomainIdentity, answers: Answers, now: Date) {
  const newest = identity.dkimKeys.at(-1);
  if (!newest || identity.dkimKeys.length === 1) return undefined;
  const wanted = wantedOf({ ...identity, dkimKeys: [newest] }, mailHost);
  const record = decideRecords(wanted, answers, now).find(({ purpose }) => purpose === 'dkim');
  return record?.status === 'valid' ? newest : undefined;
}

/** The holder's records show what the other's check saw: that the ownership record is gone. */
async function demote(
  mailHost: string,
  sql: Sql,
  holder: Stored,
  answers: Answers,
  now: Date,
  lookedAt: Date,
): Promise<Change[]> {
  const identity = await findDomainIdentity(sql, holder.ownerId, holder.id);
  if (!identity) return [];
  const decision = decideLoss(holder, now, Math.random);
  const steady = readStored(holder.dnsRecords).filter(({ graceUntil }) => graceUntil === undefined);
  const records = keepSeen(decideRecords(wantedOf(identity, mailHost), answers, now), steady);
  return save(sql, holder, identity.domain, markRecords(records, decision), decision, lookedAt);
}

/** Those that were not looked at are told as they were before, where they were. */
export function keepSeen(records: readonly DnsRecord[], before: readonly DnsRecord[]): DnsRecord[] {
  return records.map((record) => {
    const { type, name, purpose, checkedAt } = record;
    const known = before.find((one) => one.type === type && one.name === name && one.purpose === purpose);
    return checkedAt === null ? (known ?? record) : record;
  });
}

async function save(
  sql: Sql,
  before: Stored,
  domain: string,
  records: DnsRecord[],
  decision: Decision,
  lookedAt: Date,
): Promise<Change[]> {
  const { id, ownerId } = before;
  const changed =
    decision.status !== before.status || visiblePart(records) !== visiblePart(readStored(before.dnsRecords));
  const dnsRecords = JSON.stringify(records);
  const followers = await saveStanding(sql, before, { ...decision, dnsRecords, changed, lookedAt });
  const about = { ownerId, domain, to: decision.status };
  const followed = describeFollowers(followers, about, decision.reason);
  if (decision.status === before.status) return followed;
  const message = `identity ${domain} is ${decision.status}: ${decision.reason}`;
  return [{ identityId: id, from: before.status, ...about, message }, ...followed];
}

/** What a reader of the records would notice: all but the time of the check. */
function visiblePart(records: DnsRecord[]): string {
  return JSON.stringify(records.map(({ checkedAt, ...rest }) => rest));
}

export function isOwnershipGone({ dnsRecords }: Stored): boolean {
  const [ownership] = readStored(dnsRecords);
  return ownership !== undefined && isGone(ownership);
}

/** The ownership record is the first. */
export function readStored(dnsRecords: string): DnsRecord[] {
  return JSON.parse(dnsRecords) ?? [];
}

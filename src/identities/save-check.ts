/**
 * What comes of a look: decided and written down, for the identity and for who loses the value to it, inside the transaction that
 * holds the value. Guarantee: a takeover is one transaction, and the one who loses goes first.
 */
import type { Sql } from '../db/client.ts';
import { retireDkimKeys } from '../store/dkim-keys.ts';
import {
  type Claim,
  dropTakeovers,
  type Followers,
  findClaim,
  type Held,
  type Stored,
  saveStanding,
  wakeRivals,
} from '../store/verification.ts';
import { beginAgain, decideLoss, decideStatus, isGone, markRecords, type Verdict } from './decide.ts';
import { type Answer, type Answers, type DnsRecord, questionKey } from './dns-record.ts';
import { hasToken, ownershipQuestion, settleOwnership, sightHolder } from './ownership.ts';
import { judgeRecords, questionsFor, type Wanted } from './records.ts';

export function wantedOf(claim: Claim, mailHost: string): Wanted {
  const { domain, token, incomingDomain, dkimKeys } = claim;
  const newest = dkimKeys.length - 1;
  return {
    ...{ domain, token, incomingDomain, mailHost },
    dkimKeys: dkimKeys.map((key, n) => (newest > 0 && n === newest ? { ...key, isNew: true } : key)),
  };
}

/** What a look saw, and for whom. */
interface Look {
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
export function tellFollowers(
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

/** Gives what is to be logged. */
export async function judgeLook(
  mailHost: string,
  sql: Sql,
  { now, claim, mine, holder }: Held,
  { answers: seen, everywhere, asked, lookedAt }: Look,
): Promise<Change[]> {
  const answers = mine.status === 'verified' ? settleOwnership(seen, everywhere, claim) : seen;
  const seenKey = findReplacement(mailHost, claim, answers, now);
  const wanted = wantedOf(seenKey ? { ...claim, dkimKeys: [seenKey] } : claim, mailHost);
  const records = judgeRecords(wanted, answers, now);
  const ownership = answers.get(questionKey(ownershipQuestion(claim.domain)));
  const sight = (token: string) => sightHolder(ownership, everywhere, { own: claim.token, holder: token });
  const theirs = holder ? { id: holder.id, seenAt: lookedAt, token: sight(holder.token) } : null;
  const standing = asked ? beginAgain(mine, now) : mine;
  const verdict = decideStatus(standing, records, theirs, now, Math.random);
  // The one who loses it goes first: at no moment do two hold it.
  const lost = holder && verdict.takesOver ? await demote(mailHost, sql, holder, answers, now, lookedAt) : [];
  // What is wanted has changed since the question was put: another look, at once, asks for that too.
  const isWhole = questionsFor(wanted).every((question) => answers.has(questionKey(question)));
  const waitSeconds = isWhole ? verdict.waitSeconds : 0;
  const marked = markRecords(records, verdict);
  const changes = await save(sql, mine, claim.domain, marked, { ...verdict, waitSeconds }, lookedAt);
  if (mine.status === 'verified') {
    const isGoneNow = records[0] !== undefined && isGone(records[0]) && !isOwnershipGone(mine);
    if (verdict.status === 'failed' || isGoneNow) await wakeRivals(sql, claim.domain, claim.id);
    // Whoever is about to take it over saw it otherwise, and begins anew.
    const stands = [ownership, ...everywhere].some((one) => hasToken(one, claim.token));
    if (stands) await dropTakeovers(sql, claim);
  }
  if (seenKey) await retireDkimKeys(sql, claim, seenKey.selector);
  return [...lost, ...changes];
}

/** The key that takes the place of the others, once it is seen in DNS. */
function findReplacement(mailHost: string, claim: Claim, answers: Answers, now: Date) {
  const newest = claim.dkimKeys.at(-1);
  if (!newest || claim.dkimKeys.length === 1) return undefined;
  const wanted = wantedOf({ ...claim, dkimKeys: [newest] }, mailHost);
  const record = judgeRecords(wanted, answers, now).find(({ purpose }) => purpose === 'dkim');
  return record?.status === 'valid' ? newest : undefined;
}

/** What the claimant's look saw is told to the holder too: that the ownership record is gone. */
async function demote(
  mailHost: string,
  sql: Sql,
  holder: Stored,
  answers: Answers,
  now: Date,
  lookedAt: Date,
): Promise<Change[]> {
  const claim = await findClaim(sql, holder.ownerId, holder.id);
  if (!claim) return [];
  const verdict = decideLoss(holder, now, Math.random);
  const steady = readStored(holder.dnsRecords).filter(({ graceUntil }) => graceUntil === undefined);
  const records = keepSeen(judgeRecords(wantedOf(claim, mailHost), answers, now), steady);
  return save(sql, holder, claim.domain, markRecords(records, verdict), verdict, lookedAt);
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
  verdict: Verdict,
  lookedAt: Date,
): Promise<Change[]> {
  const { id, ownerId } = before;
  const changed =
    verdict.status !== before.status || tellApart(records) !== tellApart(readStored(before.dnsRecords));
  const dnsRecords = JSON.stringify(records);
  const followers = await saveStanding(sql, before, { ...verdict, dnsRecords, changed, lookedAt });
  const about = { ownerId, domain, to: verdict.status };
  const followed = tellFollowers(followers, about, verdict.reason);
  if (verdict.status === before.status) return followed;
  const message = `identity ${domain} is ${verdict.status}: ${verdict.reason}`;
  return [{ identityId: id, from: before.status, ...about, message }, ...followed];
}

/** What a reader of the records would notice: all but the time of the look. */
function tellApart(records: DnsRecord[]): string {
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

/**
 * Proves domain identities: looks at their DNS, decides, and writes down how they stand. Guarantees: never two owners hold a
 * value verified; what could not be looked up takes nothing away; a takeover is one transaction.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { isUnavailable, type Pool, type Sql, transaction } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import { type Loop, startLoop } from '../lib/loop.ts';
import type { Sealer } from '../lib/secrets.ts';
import { Slots } from '../lib/slots.ts';
import { addDkimKey, dropUnseenDkimKeys, findRotationWait, type NewDkimKey } from '../store/dkim-keys.ts';
import {
  beginLook,
  type Claim,
  claimDue,
  findClaim,
  type Held,
  holdClaim,
  holdValue,
  makeDue,
  readRecords,
  type Stored,
  saveRecords,
  showPending,
  stopPending,
} from '../store/verification.ts';
import { firstCheckSeconds } from './decide.ts';
import { dkimContext, makeDkimKey } from './dkim.ts';
import { type Answers, questionKey } from './dns-record.ts';
import type { Lookup } from './lookup.ts';
import { hasToken, ownershipQuestion } from './ownership.ts';
import { judgeRecords, questionsFor } from './records.ts';
import { isOwnershipGone, judgeLook, keepSeen, readStored, wantedOf } from './save-check.ts';

/** Looks that people asked for, and RSA keys in the making: in all, and of one owner. Who comes beyond it waits. */
const looking = new Slots({ inAll: 100, perKey: 20 });
const keyMaking = new Slots({ inAll: 4, perKey: 2 });

export interface VerifyParts {
  sql: Pool;
  sealer: Sealer;
  lookup: Lookup;
  /** The MX that domains are to point to. */
  mailHost: string;
  log: Log;
}

/** What a new domain identity begins with: its token and key, and what must stand in DNS before anyone has looked. */
export async function prepareProof(
  { mailHost }: { mailHost: string },
  sealer: Sealer,
  given: { id: string; ownerId: string; domain: string; incomingDomain: boolean },
) {
  const token = randomBytes(24).toString('base64url');
  const dkimKey = await makeSealedDkimKey(sealer, given.ownerId, given.id);
  const wanted = wantedOf({ ...given, token, dkimKeys: [dkimKey] }, mailHost);
  const dnsRecords = JSON.stringify(judgeRecords(wanted, new Map(), new Date()));
  return { token, dnsRecords, dkimKey, firstCheckSeconds };
}

/** One look at a claim, and what comes of it; nothing does when `signal` cut it short. */
export async function checkClaim(
  parts: VerifyParts,
  claim: Claim,
  options: { asked: boolean; signal: AbortSignal },
): Promise<void> {
  const outcome = options.asked ? await lookInTurn(parts, claim, options) : await look(parts, claim, options);
  if (outcome === 'late') await makeDue(parts.sql, claim.ownerId, claim.id);
  if (outcome !== 'judged') await stopPending(parts.sql, claim);
}

/** For a look that a person asked for, and waits for: made again at once when it came too late. The loop has a bound of its own. */
async function lookInTurn(...[parts, claim, options]: Parameters<typeof look>): ReturnType<typeof look> {
  await showPending(parts.sql, claim);
  await looking.take(claim.ownerId);
  try {
    const outcome = await look(parts, claim, options);
    return outcome === 'late' ? await look(parts, claim, options) : outcome;
  } finally {
    looking.release(claim.ownerId);
  }
}

/** Late when a later look was judged first: what that saw stands. */
async function look(
  parts: VerifyParts,
  claim: Claim,
  { asked, signal }: { asked: boolean; signal: AbortSignal },
): Promise<'judged' | 'late' | 'given_up'> {
  const { lookedAt, holderId } = await beginLook(parts.sql, claim);
  const answers = await parts.lookup.ask(questionsFor(wantedOf(claim, parts.mailHost)), signal);
  const everywhere = isEveryServerNeeded(claim, holderId, answers)
    ? await parts.lookup.askEveryServer(ownershipQuestion(claim.domain), signal)
    : [];
  // What was not asked to the end is no outage of DNS.
  if (signal.aborted) return 'given_up';
  const changes = await transaction(parts.sql, async (sql) => {
    const held = await holdValue(sql, claim);
    if (!held) return 'given_up';
    if (isLate(held, lookedAt)) return 'late';
    return judgeLook(parts.mailHost, sql, held, { answers, everywhere, asked, lookedAt });
  });
  if (typeof changes === 'string') return changes;
  for (const { message, ...about } of changes) parts.log.info(about, message);
  return 'judged';
}

/** Before the holder loses it, or a claimant whose token stands may take it over. */
function isEveryServerNeeded(
  { id, domain, token }: Claim,
  holderId: string | null,
  answers: Answers,
): boolean {
  const answer = answers.get(questionKey(ownershipQuestion(domain)));
  if (holderId === null || answer === undefined || answer.kind === 'unknown') return false;
  return hasToken(answer, token) === (holderId !== id);
}

/** A later look of the holder's that saw its token gone says nothing else: who asks often delays nobody by it. */
function isLate({ mine, holder }: Held, lookedAt: Date): boolean {
  const isLater = (one: Stored) => one.lookedAt !== null && one.lookedAt > lookedAt;
  return isLater(mine) || (holder !== undefined && isLater(holder) && !isOwnershipGone(holder));
}

/** Takes a while: no transaction is to wait for it. A few at a time, the owners in turn. */
export async function makeSealedDkimKey(
  sealer: Sealer,
  ownerId: string,
  identityId: string,
): Promise<NewDkimKey> {
  await keyMaking.take(ownerId);
  const made = makeDkimKey(new Date()).finally(() => keyMaking.release(ownerId));
  const { selector, publicKey, privateKey } = await made;
  return { selector, publicKey, privateKey: sealer.seal(privateKey, dkimContext(identityId, selector)) };
}

/**
 * Adds a DKIM key; the one before stays until the new one is seen, and one that never was makes room, if it has had its time
 * (to be asked for by `findRotationWait` before a key is made). Gone when there is no such domain identity.
 */
export function rotateDkim(
  parts: { mailHost: string },
  sql: Sql,
  ownerId: string,
  id: string,
  key: NewDkimKey,
): Promise<'rotated' | 'gone' | { waitSeconds: number }> {
  return transaction(sql, async (sql) => {
    const claim = await holdClaim(sql, ownerId, id);
    if (!claim) return 'gone';
    const limited = await findRotationWait(sql, claim);
    if (limited) return limited;
    await dropUnseenDkimKeys(sql, claim);
    await addDkimKey(sql, claim, key);
    await restateRecords(parts, sql, ownerId, id);
    return 'rotated';
  });
}

/** What is wanted has changed: what was seen of the rest stays, and a look follows soon. */
async function restateRecords(
  { mailHost }: { mailHost: string },
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<void> {
  const claim = await findClaim(sql, ownerId, id);
  const stored = await readRecords(sql, ownerId, id);
  if (!claim || !stored) return;
  const before = readStored(stored.dnsRecords);
  const records = keepSeen(judgeRecords(wantedOf(claim, mailHost), new Map(), new Date()), before);
  await saveRecords(sql, claim, JSON.stringify(records));
}

const pollMs = 1000;
/**
 * Bounds what all the look-ups of a process ask of the world: each is some 15 questions where a domain has two servers, up to 100,
 * and up to 500 more where every server has to be asked.
 */
const checksPerSecond = 20;
/** A look may take 8 s, or twice that; those that do must not hold up the others, nor pile up. */
const maxUnderWay = 80;

/** Looks at what is due, a bounded number a second, the owners in turn. Any number of processes may run it. */
export function startVerification(parts: VerifyParts): Loop {
  const { sql, log } = parts;
  const stopping = new AbortController();
  const underWay = new Set<Promise<void>>();

  async function check(claim: Claim): Promise<void> {
    try {
      const whole = claim.dkimKeys.length > 0 ? claim : await giveKey(claim);
      if (whole) await checkClaim(parts, whole, { asked: false, signal: stopping.signal });
    } catch (err) {
      // It is due again in two minutes.
      const level = isUnavailable(err) || stopping.signal.aborted ? 'warn' : 'error';
      log[level]({ err, identityId: claim.id }, 'an identity could not be checked');
    }
  }

  /** One that was made before there were keys. */
  async function giveKey({ ownerId, id }: Claim): Promise<Claim | undefined> {
    await rotateDkim(parts, sql, ownerId, id, await makeSealedDkimKey(parts.sealer, ownerId, id));
    return findClaim(sql, ownerId, id);
  }

  function begin(claim: Claim): void {
    const checking = check(claim).finally(() => underWay.delete(checking));
    underWay.add(checking);
  }

  async function work(): Promise<boolean> {
    // Room for one of each of many owners: who has many that are slow does not keep the others out.
    while (underWay.size > maxUnderWay - checksPerSecond) await Promise.race(underWay);
    const due = stopping.signal.aborted ? [] : await claimDue(sql, checksPerSecond);
    for (const claim of due) {
      begin(claim);
      await pause(1000 / checksPerSecond, stopping.signal);
    }
    return due.length > 0;
  }

  const loop = startLoop({ name: 'checking identities', pollMs, log, isPassing: isUnavailable, work });
  return {
    wake: loop.wake,
    async stop() {
      stopping.abort();
      await loop.stop();
      await Promise.all(underWay);
    },
  };
}

function pause(ms: number, signal: AbortSignal): Promise<unknown> {
  return delay(ms, undefined, { signal }).catch(() => {});
}

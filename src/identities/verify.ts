/**
 * Proves domain identities: asks their DNS, decides, and saves how they stand. Guarantees: never two owners hold a value
 * verified; what could not be looked up takes nothing away; a takeover is one transaction.
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
  claimDue,
  type DomainIdentity,
  findDomainIdentity,
  type Held,
  holdDomainIdentity,
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
import { decideRecords, questionsFor } from './records.ts';
import { isOwnershipGone, keepSeen, readStored, saveCheck, wantedOf } from './save-check.ts';

/** Checks that people asked for, and RSA keys in the making: in all, and of one owner. Who comes beyond it waits. */
const checking = new Slots({ inAll: 100, perKey: 20 });
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
  const dnsRecords = JSON.stringify(decideRecords(wanted, new Map(), new Date()));
  return { token, dnsRecords, dkimKey, firstCheckSeconds };
}

/** One check of an identity, and what comes of it; nothing does when `signal` cut it short. */
export async function checkDomain(
  parts: VerifyParts,
  identity: DomainIdentity,
  options: { asked: boolean; signal: AbortSignal },
): Promise<void> {
  const outcome = await (options.asked ? checkInTurn : check)(parts, identity, options);
  if (outcome === 'late') await makeDue(parts.sql, identity.ownerId, identity.id);
  if (outcome !== 'decided') await stopPending(parts.sql, identity);
}

/** For a check that a person asked for, and waits for: made again at once when it came too late. The loop has a bound of its own. */
async function checkInTurn(
  ...[parts, identity, options]: Parameters<typeof check>
): ReturnType<typeof check> {
  await showPending(parts.sql, identity);
  await checking.take(identity.ownerId);
  try {
    const outcome = await check(parts, identity, options);
    return outcome === 'late' ? await check(parts, identity, options) : outcome;
  } finally {
    checking.release(identity.ownerId);
  }
}

/** Late when a later check was decided first: what that one saw counts. */
async function check(
  parts: VerifyParts,
  identity: DomainIdentity,
  { asked, signal }: { asked: boolean; signal: AbortSignal },
): Promise<'decided' | 'late' | 'given_up'> {
  const { lookedAt, holderId } = await beginLook(parts.sql, identity);
  const answers = await parts.lookup.ask(questionsFor(wantedOf(identity, parts.mailHost)), signal);
  const everywhere = isEveryServerNeeded(identity, holderId, answers)
    ? await parts.lookup.askEveryServer(ownershipQuestion(identity.domain), signal)
    : [];
  // What was not asked to the end is no outage of DNS.
  if (signal.aborted) return 'given_up';
  const changes = await transaction(parts.sql, async (sql) => {
    const held = await holdValue(sql, identity);
    if (!held) return 'given_up';
    if (isLate(held, lookedAt)) return 'late';
    return saveCheck(parts.mailHost, sql, held, { answers, everywhere, asked, lookedAt });
  });
  if (typeof changes === 'string') return changes;
  for (const { message, ...about } of changes) parts.log.info(about, message);
  return 'decided';
}

/** Before the holder loses the domain, or another whose token stands may take it over. */
function isEveryServerNeeded(
  { id, domain, token }: DomainIdentity,
  holderId: string | null,
  answers: Answers,
): boolean {
  const answer = answers.get(questionKey(ownershipQuestion(domain)));
  if (holderId === null || answer === undefined || answer.kind === 'unknown') return false;
  return hasToken(answer, token) === (holderId !== id);
}

/** A later check of the holder's that saw its token gone says nothing else: who asks often delays nobody by it. */
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
    const identity = await holdDomainIdentity(sql, ownerId, id);
    if (!identity) return 'gone';
    const limited = await findRotationWait(sql, identity);
    if (limited) return limited;
    await dropUnseenDkimKeys(sql, identity);
    await addDkimKey(sql, identity, key);
    await restateRecords(parts, sql, ownerId, id);
    return 'rotated';
  });
}

/** What is wanted has changed: what was seen of the rest stays, and a check follows soon. */
async function restateRecords(
  { mailHost }: { mailHost: string },
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<void> {
  const identity = await findDomainIdentity(sql, ownerId, id);
  const stored = await readRecords(sql, ownerId, id);
  if (!identity || !stored) return;
  const before = readStored(stored.dnsRecords);
  const records = keepSeen(decideRecords(wantedOf(identity, mailHost), new Map(), new Date()), before);
  await saveRecords(sql, identity, JSON.stringify(records));
}

const pollMs = 1000;
/**
 * Bounds what all the look-ups of a process ask of the world: each is some 15 questions where a domain has two servers, up to 100,
 * and up to 500 more where every server has to be asked.
 */
const checksPerSecond = 20;
/** A check may take 8 s, or twice that; those that do must not hold up the others, nor pile up. */
const maxUnderWay = 80;

/** Checks what is due, a bounded number a second, the owners in turn. Any number of processes may run it. */
export function startVerification(parts: VerifyParts): Loop {
  const { sql, log } = parts;
  const stopping = new AbortController();
  const underWay = new Set<Promise<void>>();

  async function checkDue(identity: DomainIdentity): Promise<void> {
    try {
      const whole = identity.dkimKeys.length > 0 ? identity : await giveKey(identity);
      if (whole) await checkDomain(parts, whole, { asked: false, signal: stopping.signal });
    } catch (err) {
      // It is due again in two minutes.
      const level = isUnavailable(err) || stopping.signal.aborted ? 'warn' : 'error';
      log[level]({ err, identityId: identity.id }, 'an identity could not be checked');
    }
  }

  /** One that was made before there were keys. */
  async function giveKey({ ownerId, id }: DomainIdentity): Promise<DomainIdentity | undefined> {
    await rotateDkim(parts, sql, ownerId, id, await makeSealedDkimKey(parts.sealer, ownerId, id));
    return findDomainIdentity(sql, ownerId, id);
  }

  function begin(identity: DomainIdentity): void {
    const started = checkDue(identity).finally(() => underWay.delete(started));
    underWay.add(started);
  }

  async function work(): Promise<boolean> {
    // Room for one of each of many owners: who has many that are slow does not keep the others out.
    while (underWay.size > maxUnderWay - checksPerSecond) await Promise.race(underWay);
    const due = stopping.signal.aborted ? [] : await claimDue(sql, checksPerSecond);
    for (const identity of due) {
      begin(identity);
      await pause(1000 / checksPerSecond, stopping.signal);
    }
    return due.length > 0;
  }

  const loop = startLoop({ name: 'checking identities', pollMs, log, isTransient: isUnavailable, work });
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

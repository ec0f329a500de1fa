/**
 * Verifies domain identities: asks DNS, decides, and saves the decision. Guarantees: a domain has at most one holder;
 * a failed DNS lookup takes nothing away; a takeover is one transaction.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { isUnavailable, type Pool, type Sql, transaction } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import { type Loop, startLoop } from '../lib/loop.ts';
import type { Sealer } from '../lib/secrets.ts';
import { Slots } from '../lib/slots.ts';
import {
  addDkimKey,
  dkimContext,
  dropUnseenDkimKeys,
  findRotationWait,
  type NewDkimKey,
} from '../store/dkim-keys.ts';
import {
  checkNow,
  claimDueChecks,
  clearPending,
  type DomainIdentity,
  findDnsRecords,
  findDomainIdentity,
  type LockedIdentity,
  lockDomainIdentity,
  lockForDecision,
  type StoredState,
  saveDnsRecords,
  showPending,
  startCheck,
} from '../store/verification.ts';
import { firstCheckSeconds } from './decide.ts';
import { type MakeKeyPair, makeDkimKey, makeRsaKeyPair } from './dkim.ts';
import { questionKey, type RecordAnswers } from './dns-record.ts';
import type { Lookup } from './lookup.ts';
import { hasToken, ownershipQuestion } from './ownership.ts';
import { decideRecords, parseRecords, questionsFor } from './records.ts';
import { isOwnershipAbsent, keepChecked, saveCheck } from './save-check.ts';

export interface VerifyParts {
  sql: Pool;
  sealer: Sealer;
  lookup: Lookup;
  /** The host that the MX records of domains name. */
  mailHost: string;
  log: Log;
  /** Called after a domain identity lost its verification, by failure or by a takeover. */
  onLost?: () => void;
  /** For checks that users requested. */
  checkSlots: Slots;
  /** For making RSA keys. Two at a time: Node has four threads for this work, and others read files and the DNS with them. */
  keySlots: Slots;
  makeKeyPair: MakeKeyPair;
}

export function makeVerifyParts(
  given: Omit<VerifyParts, 'checkSlots' | 'keySlots' | 'makeKeyPair'> & {
    makeKeyPair?: MakeKeyPair | undefined;
  },
): VerifyParts {
  return {
    ...given,
    makeKeyPair: given.makeKeyPair ?? makeRsaKeyPair,
    checkSlots: new Slots({ inAll: 100, perOwner: 20 }),
    keySlots: new Slots({ inAll: 2, perOwner: 1 }),
  };
}

/** For a new domain identity. */
export async function prepareProof(
  parts: Pick<VerifyParts, 'mailHost' | 'sealer' | 'keySlots' | 'makeKeyPair'>,
  {
    signal,
    ...given
  }: { id: string; ownerId: string; domain: string; incomingDomain: boolean; signal?: AbortSignal },
) {
  const token = randomBytes(24).toString('base64url');
  const dkimKey = await makeSealedDkimKey(parts, given.ownerId, given.id, signal);
  const setup = { ...given, token, dkimKeys: [dkimKey], mailHost: parts.mailHost };
  const dnsRecords = JSON.stringify(decideRecords(setup, new Map(), new Date()));
  return { token, dnsRecords, dkimKey, firstCheckSeconds };
}

/** Checks an identity and saves the result. A check that `signal` aborts changes nothing. */
export async function checkDomain(
  parts: VerifyParts,
  identity: DomainIdentity,
  options: { requested: boolean; signal: AbortSignal },
): Promise<void> {
  const outcome = await (options.requested ? checkOnRequest : check)(parts, identity, options);
  if (outcome === 'outdated') await checkNow(parts.sql, identity.ownerId, identity.id);
  if (outcome !== 'saved') await clearPending(parts.sql, identity);
}

/** A user waits for this check, so an outdated one is repeated at once. */
async function checkOnRequest(
  ...[parts, identity, options]: Parameters<typeof check>
): ReturnType<typeof check> {
  await showPending(parts.sql, identity);
  try {
    using _share = await parts.checkSlots.take(identity.ownerId, 1, options);
    const outcome = await check(parts, identity, options);
    return outcome === 'outdated' ? await check(parts, identity, options) : outcome;
  } catch (error) {
    if (options.signal.aborted) return 'dropped';
    throw error;
  }
}

async function check(
  parts: VerifyParts,
  identity: DomainIdentity,
  { requested, signal }: { requested: boolean; signal: AbortSignal },
): Promise<'saved' | 'outdated' | 'dropped'> {
  const { sql, lookup, mailHost } = parts;
  const { startedAt, verifiedId } = await startCheck(sql, identity);
  const answers = await lookup.ask(questionsFor({ ...identity, mailHost }), signal);
  const serverAnswers = isEveryServerNeeded(identity, verifiedId, answers)
    ? await lookup.askEveryServer(ownershipQuestion(identity.domain), signal)
    : [];
  // Questions that the abort cut off look like an outage of DNS.
  if (signal.aborted) return 'dropped';
  const changes = await transaction(sql, async (sql) => {
    const locked = await lockForDecision(sql, identity);
    if (!locked) return 'dropped';
    if (isOutdated(locked, startedAt)) return 'outdated';
    return saveCheck(mailHost, sql, locked, { answers, serverAnswers, requested, startedAt });
  });
  if (typeof changes === 'string') return changes;
  for (const { message, ...about } of changes) {
    parts.log.info(about, message);
    if (about.from === 'verified' && about.address === undefined) parts.onLost?.();
  }
  return 'saved';
}

/**
 * Every name server is asked before the holder can lose the domain: when a check of the holder did not find the holder's token, and
 * when a check of a claimant found the claimant's token.
 */
function isEveryServerNeeded(
  { id, domain, token }: DomainIdentity,
  verifiedId: string | null,
  answers: RecordAnswers,
): boolean {
  const answer = answers.get(questionKey(ownershipQuestion(domain)));
  if (verifiedId === null || answer === undefined || answer.kind === 'unknown') return false;
  const isFound = hasToken(answer, token);
  const isHolder = verifiedId === id;
  return isHolder ? !isFound : isFound;
}

/**
 * Another check that started later was already saved: of this identity, or of the holder. A check of the holder that did not find
 * the holder's token does not count: otherwise a holder could delay a takeover by requesting checks.
 */
function isOutdated({ state, holder }: LockedIdentity, startedAt: Date): boolean {
  const isNewer = ({ checkStartedAt }: StoredState) => checkStartedAt !== null && checkStartedAt > startedAt;
  return isNewer(state) || (holder !== undefined && isNewer(holder) && !isOwnershipAbsent(holder));
}

/** Slow: call it outside a transaction. */
export async function makeSealedDkimKey(
  { keySlots, makeKeyPair, sealer }: Pick<VerifyParts, 'keySlots' | 'makeKeyPair' | 'sealer'>,
  ownerId: string,
  identityId: string,
  signal?: AbortSignal,
): Promise<NewDkimKey> {
  using _share = await keySlots.take(ownerId, 1, { signal });
  const { selector, publicKey, privateKey } = await makeDkimKey(new Date(), makeKeyPair);
  return { selector, publicKey, privateKey: sealer.seal(privateKey, dkimContext(identityId, selector)) };
}

/**
 * Adds a DKIM key. The key in use stays until a check finds the new key in DNS; a new key that no check has found is replaced.
 * Call `findRotationWait` before making the key. Returns `not_found` if there is no such domain identity.
 */
export function rotateDkim(
  { mailHost }: { mailHost: string },
  sql: Sql,
  ownerId: string,
  id: string,
  key: NewDkimKey,
): Promise<'rotated' | 'not_found' | { waitSeconds: number }> {
  return transaction(sql, async (sql) => {
    const identity = await lockDomainIdentity(sql, ownerId, id);
    if (!identity) return 'not_found';
    const limited = await findRotationWait(sql, identity);
    if (limited) return limited;
    await dropUnseenDkimKeys(sql, identity);
    await addDkimKey(sql, identity, key);
    await addKeyRecord(mailHost, sql, ownerId, id);
    return 'rotated';
  });
}

/** Keeps what earlier checks found of the other records. */
async function addKeyRecord(mailHost: string, sql: Sql, ownerId: string, id: string): Promise<void> {
  const identity = await findDomainIdentity(sql, ownerId, id);
  const stored = await findDnsRecords(sql, ownerId, id);
  if (!identity || !stored) return;
  const records = decideRecords({ ...identity, mailHost }, new Map(), new Date());
  const dnsRecords = JSON.stringify(keepChecked(records, parseRecords(stored.dnsRecords)));
  await saveDnsRecords(sql, identity, dnsRecords);
}

const pollMs = 1000;
/** Limits DNS traffic: a check sends about 15 questions to a domain with two servers, up to 100, and up to 500 more to all servers. */
const checksPerSecond = 20;
/** A check may take 16 s. Slow checks must neither delay the others nor pile up. */
const maxRunning = 80;

/** Runs the checks that are due, taking turns between users. Several processes may run this loop. */
export function startVerification(parts: VerifyParts, { idleMs = pollMs } = {}): Loop {
  const { sql, log } = parts;
  const stopping = new AbortController();
  const running = new Set<Promise<void>>();

  async function runCheck(identity: DomainIdentity): Promise<void> {
    try {
      const complete = identity.dkimKeys.length > 0 ? identity : await addFirstKey(identity);
      if (complete) await checkDomain(parts, complete, { requested: false, signal: stopping.signal });
    } catch (err) {
      const level = isUnavailable(err) || stopping.signal.aborted ? 'warn' : 'error';
      log[level](
        { err, identityId: identity.id },
        'an identity could not be checked because of an error; its status is unchanged; next check in two minutes',
      );
    }
  }

  /** For identities older than DKIM keys. */
  async function addFirstKey({ ownerId, id }: DomainIdentity): Promise<DomainIdentity | undefined> {
    await rotateDkim(parts, sql, ownerId, id, await makeSealedDkimKey(parts, ownerId, id));
    return findDomainIdentity(sql, ownerId, id);
  }

  async function work(): Promise<boolean> {
    while (running.size > maxRunning - checksPerSecond) await Promise.race(running);
    const due = stopping.signal.aborted ? [] : await claimDueChecks(sql, checksPerSecond);
    for (const identity of due) {
      const started = runCheck(identity).finally(() => running.delete(started));
      running.add(started);
      await delay(1000 / checksPerSecond, undefined, { signal: stopping.signal }).catch(() => {});
    }
    return due.length > 0;
  }

  const loop = startLoop({
    name: 'checking identities',
    pollMs,
    idleMs,
    log,
    isTransient: isUnavailable,
    work,
  });
  return {
    wake: loop.wake,
    async stop() {
      stopping.abort();
      await loop.stop();
      await Promise.all(running);
    },
  };
}

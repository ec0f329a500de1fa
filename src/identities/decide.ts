/**
 * Decides the status of a domain identity after a check of its DNS, as docs/identity-states.md describes it. Pure: time and
 * randomness are arguments. Guarantee: a failed DNS lookup neither takes a domain from its holder nor gives it to a claimant.
 *
 * The holder of a domain is the identity that is verified for the domain. A claimant is an identity of another user for the same
 * domain. (The owner of an identity is the user whose row it is, verified or not.)
 */

import type { DnsRecord } from '../contract/identity.ts';
import type { VerificationState } from '../store/verification.ts';
import type { TokenComparison } from './ownership.ts';

export interface Decision extends VerificationState {
  reason: string;
  graceUntil: Date | null;
  /** Until the next check; null for none. */
  waitSeconds: number | null;
  /** The present holder loses the domain, in the same transaction. */
  takesOver: boolean;
}

/** For a check of a claimant: the holder, which is an identity of another user. A check of the holder itself has none. */
export interface Holder {
  id: string;
  tokens: TokenComparison;
  /** Start of the check that compared the tokens. */
  comparedAt: Date;
}

interface Moment {
  now: Date;
  /** For jitter: 0 to 1. */
  random: () => number;
}

const minute = 60;
const hour = 60 * minute;
const day = 24 * hour;
/** After this time an identity becomes failed if its ownership record was never found. */
const patienceSeconds = 72 * hour;
/** How long a verified identity stays verified after a required record became absent. */
const graceSeconds = 72 * hour;
/** The shortest time between the two checks of a takeover: the first begins the takeover, the second completes it. */
const takeoverSeconds = minute;

/** Ages at which an identity that is `unverified` or `pending` is checked, in seconds since `state.since`. */
const unprovenAges = [
  ...[10, 30, minute, 2 * minute, 5 * minute, 10 * minute, 30 * minute, hour, 2 * hour],
  ...Array.from({ length: 12 }, (_, index) => (index + 1) * 6 * hour),
  ...Array.from({ length: 7 }, (_, index) => patienceSeconds + (index + 1) * day),
];
/** The same for a `failed` identity, in seconds since its failure. */
const failedAges = Array.from({ length: 7 }, (_, index) => (index + 1) * day);

export const firstCheckSeconds = 10;

export function decideStatus(
  state: VerificationState,
  records: readonly DnsRecord[],
  holder: Holder | null,
  moment: Moment,
): Decision {
  const required = records.filter((record) => record.required);
  const isProven = required.length > 0 && required.every(({ status }) => status === 'valid');
  const step = isProven ? decideOwnership(state, holder) : null;
  if (step === 'verify' || step === 'take_over') {
    const reason = `All required records are valid${state.graceSince ? ' again' : ''}.`;
    const decision = makeDecision(state, 'verified', reason, jitter(6 * hour, moment));
    return { ...decision, takesOver: step === 'take_over' };
  }
  if (state.status === 'verified') return decideVerified(state, required, moment);
  if (holder && step === 'await_second_check') return awaitSecondCheck(state, holder, moment);
  if (state.status === 'failed') return decideFailed(state, holder, isProven, moment);
  if (isProven) {
    // The holder's token may disappear at any time, so a claimant always has a next check.
    const waitSeconds = nextWait(unprovenAges, state.since, moment) ?? jitter(day, moment);
    return makeDecision(state, 'pending', describeHolder(holder), waitSeconds);
  }
  return decideUnproven(state, records, moment);
}

/**
 * What an identity may do when all its required records are valid. A takeover needs two checks, because one check may have
 * asked name servers that are about to be replaced.
 */
export function decideOwnership(
  state: VerificationState,
  holder: Holder | null,
): 'verify' | 'take_over' | 'await_second_check' | 'wait' {
  if (holder === null || state.status === 'verified') return 'verify';
  if (holder.tokens !== 'only_claimant_found') return 'wait';
  return holder.comparedAt >= secondCheckFrom(state, holder) ? 'take_over' : 'await_second_check';
}

/** The earliest start of the check that completes the takeover. The takeover of an earlier holder does not count. */
function secondCheckFrom({ takeoverOf, takeoverSince }: VerificationState, { id, comparedAt }: Holder): Date {
  const since = takeoverOf === id ? takeoverSince : null;
  return addSeconds(since ?? comparedAt, takeoverSeconds);
}

function awaitSecondCheck(state: VerificationState, holder: Holder, moment: Moment): Decision {
  const from = secondCheckFrom(state, holder);
  const reason = `Another user is verified for this domain, but the ownership record of that user was removed. The domain becomes yours if a check after ${from.toISOString()} finds the same on every name server that answers. That check runs by itself.`;
  const leftSeconds = Math.max(0, (from.getTime() - moment.now.getTime()) / 1000);
  const status = state.status === 'failed' ? 'failed' : 'pending';
  return {
    ...makeDecision(state, status, reason, leftSeconds + 1 + 5 * moment.random()),
    takeoverOf: holder.id,
    takeoverSince: addSeconds(from, -takeoverSeconds),
  };
}

function decideVerified(state: VerificationState, required: readonly DnsRecord[], moment: Moment): Decision {
  const absent = required.filter(isAbsent);
  const uncertain = `${nameRecords(required.filter(isUnknown))} could not be checked with certainty.`;
  const graceSince = state.graceSince ?? (absent.length > 0 ? moment.now : null);
  if (graceSince === null) {
    return makeDecision(
      state,
      'verified',
      `${uncertain} The identity stays verified.`,
      jitter(6 * hour, moment),
    );
  }
  const graceUntil = addSeconds(graceSince, graceSeconds);
  // A grace period ends in failure only when this check saw that the record is absent: DNS may be down at that moment.
  if (absent.length > 0 && moment.now >= graceUntil) {
    return fail(state, `${nameRecords(absent)} did not become valid again within 72 hours.`, moment);
  }
  const reason =
    absent.length > 0
      ? `${nameRecords(absent)} must be valid by ${graceUntil.toISOString()}, or this identity becomes failed.`
      : `${uncertain} The grace period continues.`;
  const leftSeconds = (graceUntil.getTime() - moment.now.getTime()) / 1000;
  const waitSeconds = leftSeconds > 0 ? Math.min(jitter(hour, moment), leftSeconds) : jitter(hour, moment);
  return { ...makeDecision(state, 'verified', reason, waitSeconds), graceSince, graceUntil };
}

/** A failed identity keeps its reason. Exception: all its records are valid, and only the holder prevents verification. */
function decideFailed(
  state: VerificationState,
  holder: Holder | null,
  isProven: boolean,
  moment: Moment,
): Decision {
  const reason = isProven ? describeHolder(holder) : (state.reason ?? 'The required records are not valid.');
  return makeDecision(state, 'failed', reason, nextWait(failedAges, state.since, moment));
}

function decideUnproven(state: VerificationState, records: readonly DnsRecord[], moment: Moment): Decision {
  const waitSeconds = nextWait(unprovenAges, state.since, moment);
  const ownership = records.find(({ purpose }) => purpose === 'ownership')?.status ?? 'unknown';
  const isLate = moment.now >= addSeconds(state.since, patienceSeconds);
  if (isLate && (ownership === 'missing' || ownership === 'mismatch')) {
    return fail(state, 'The ownership record was not found within 72 hours.', moment);
  }
  if (waitSeconds === null && ownership === 'unknown') {
    return fail(state, 'The ownership record could not be looked up for ten days.', moment);
  }
  // Any DMARC record is valid, so a valid one may be older than the identity.
  const ours = records.filter(({ purpose }) => purpose !== 'dmarc');
  const found = ours.filter(({ status }) => status === 'valid');
  if (found.length > 0) {
    const reason = `Valid so far: ${listPurposes(found)}. Not all required records are valid yet.`;
    return makeDecision(state, 'pending', reason, waitSeconds);
  }
  const unknown = ours.filter(isUnknown);
  if (unknown.length === 0) {
    return makeDecision(state, 'unverified', 'None of the records is valid yet.', waitSeconds);
  }
  const others = unknown.length < ours.length ? ', and no other record is valid yet' : '';
  const status = state.status === 'pending' ? 'pending' : 'unverified';
  return makeDecision(state, status, `${nameRecords(unknown)} could not be looked up${others}.`, waitSeconds);
}

function fail(state: VerificationState, reason: string, moment: Moment): Decision {
  const waitSeconds = nextWait(failedAges, moment.now, moment);
  return { ...makeDecision(state, 'failed', reason, waitSeconds), since: moment.now };
}

function makeDecision(
  { since }: VerificationState,
  status: VerificationState['status'],
  reason: string,
  waitSeconds: number | null,
): Decision {
  const noGrace = { graceSince: null, graceUntil: null };
  const noTakeover = { takeoverOf: null, takeoverSince: null, takesOver: false };
  return { ...noGrace, ...noTakeover, status, since, reason, waitSeconds };
}

/** For the holder whose domain a claimant takes over. */
export function decideLoss(state: VerificationState, moment: Moment): Decision {
  const reason =
    'Another user took over the domain: the ownership record of that user is published, and the ownership record of this identity was removed. To take the domain back, publish this record and remove the other one.';
  // Soon, in case the claimant's checks saw an old copy of the zone.
  return { ...fail(state, reason, moment), waitSeconds: jitter(5 * minute, moment) };
}

/** After `POST …/verify` an identity that is not verified is treated like a new one. */
export function restartSchedule(state: VerificationState, now: Date): VerificationState {
  if (state.status === 'verified') return state;
  const status = state.status === 'failed' ? 'unverified' : state.status;
  return { ...state, status, since: now, graceSince: null, reason: 'A check was requested.' };
}

/** Adds the decision to the notes: the end of a grace period, the reason of a failure, what a claimant waits for. */
export function noteDecision(records: readonly DnsRecord[], decision: Decision): DnsRecord[] {
  const { status, graceUntil, reason } = decision;
  const first = records.find((record) => record.required && record.status !== 'valid') ?? records[0];
  const isExplained = status === 'failed' || (status === 'pending' && first?.status === 'valid');
  return records.map((record) => {
    if (graceUntil && record.required && record.status !== 'valid') {
      return { ...addReason(record, reason), graceUntil: graceUntil.toISOString() };
    }
    return isExplained && record === first ? addReason(record, reason) : record;
  });
}

function addReason(record: DnsRecord, reason: string): DnsRecord {
  return { ...record, note: record.note === undefined ? reason : `${record.note} ${reason}` };
}

/** DNS answered, and does not have the record: there is no record at the name (`missing`), or only others (`mismatch`). */
export function isAbsent({ status }: DnsRecord): boolean {
  return status === 'missing' || status === 'mismatch';
}

function isUnknown({ status }: DnsRecord): boolean {
  return status === 'unknown';
}

function describeHolder(holder: Holder | null): string {
  const verified = 'Another user is verified for this domain';
  switch (holder?.tokens) {
    case 'holder_found':
      return `${verified}. To take the domain over, remove the ownership record of that user, a TXT record at the same name, from every name server.`;
    case 'claimant_incomplete':
      return `${verified}, and some name servers do not have your ownership record yet. Publish your record on every name server to take the domain over.`;
    default:
      return `${verified}, and it could not be checked whether the ownership record of that user was removed. The next check tries again.`;
  }
}

function nameRecords(records: readonly DnsRecord[]): string {
  return `The ${listPurposes(records)} record${records.length > 1 ? 's' : ''}`;
}

function listPurposes(records: readonly DnsRecord[]): string {
  const names = records.map(({ purpose }) => (purpose === 'ownership' ? purpose : purpose.toUpperCase()));
  return new Intl.ListFormat('en').format(new Set(names));
}

/** Up to 10 % late, so that identities created together are not checked together for ever. */
function nextWait(ages: readonly number[], since: Date, { now, random }: Moment): number | null {
  const age = (now.getTime() - since.getTime()) / 1000;
  const next = ages.find((seconds) => seconds >= age + 5);
  return next === undefined ? null : (next - age) * (1 + 0.1 * random());
}

function jitter(seconds: number, { random }: Moment): number {
  return seconds * (0.9 + 0.2 * random());
}

function addSeconds(time: Date, seconds: number): Date {
  return new Date(time.getTime() + seconds * 1000);
}

/**
 * What becomes of a domain identity after a check of its DNS. Pure: time and chance come in as arguments.
 * docs/identity-states.md draws it. Guarantee: what could not be looked up never takes anything away from a verified
 * identity, and never hands one over.
 */

import type { DnsRecord } from '../contract/identity.ts';
import type { Standing } from '../store/verification.ts';
import type { HolderToken } from './ownership.ts';

export interface Decision extends Standing {
  reason: string;
  graceUntil: Date | null;
  /** Until the next look; null when there is none. */
  waitSeconds: number | null;
  /** Another owner held the value verified and loses it, in the same transaction. */
  takesOver: boolean;
}

/** Another owner who holds the value verified. */
export interface Holder {
  id: string;
  token: HolderToken;
  /** When the look began that saw the token so. */
  seenAt: Date;
}

const minute = 60;
const hour = 60 * minute;
const day = 24 * hour;
const patienceSeconds = 72 * hour;
const graceSeconds = 72 * hour;
/** Between the look that sees that a value may be taken over and the one that does it. */
const confirmSeconds = minute;

/** When one that is not proven is looked at, by its age: soon, every 6 h until 72 h, then daily for a week. */
const unprovenAges = [
  ...[10, 30, minute, 2 * minute, 5 * minute, 10 * minute, 30 * minute, hour, 2 * hour],
  ...Array.from({ length: 12 }, (_, index) => (index + 1) * 6 * hour),
  ...Array.from({ length: 7 }, (_, index) => patienceSeconds + (index + 1) * day),
];
/** By the time since it failed. */
const failedAges = Array.from({ length: 7 }, (_, index) => (index + 1) * day);

export const firstCheckSeconds = 10;

export function decideStatus(
  standing: Standing,
  records: readonly DnsRecord[],
  /** Null when nobody else holds the value verified. */
  holder: Holder | null,
  now: Date,
  random: () => number,
): Decision {
  const required = records.filter((record) => record.required);
  const stands = required.length > 0 && required.every(({ status }) => status === 'valid');
  const ownership = stands ? decideOwnership(standing, holder) : null;
  if (ownership === 'verify' || ownership === 'take_over') {
    const reason = standing.graceSince ? 'The required records are back.' : 'The required records stand.';
    const waitSeconds = aroundSixHours(random);
    return { ...decided(standing, 'verified', reason, waitSeconds), takesOver: ownership === 'take_over' };
  }
  if (standing.status === 'verified') return decideVerified(standing, required, now, random);
  if (holder && ownership === 'confirm') return awaitConfirmation(standing, holder, now, random);
  if (standing.status === 'failed') return decideFailed(standing, holder, stands, now, random);
  if (stands) {
    // Theirs once the holder's is gone, whenever that is: so there is always a next look.
    const waitSeconds = nextWait(unprovenAges, standing.since, now, random) ?? jitter(day, random);
    return decided(standing, 'pending', describeHolder(holder), waitSeconds);
  }
  return decideUnproven(standing, records, now, random);
}

/**
 * What an identity may do whose required records are all valid. A check that could not tell whether the holder's token is gone
 * changes nothing. One check alone that could tell takes nothing either: it may have met servers that are about to be replaced.
 */
export function decideOwnership(
  standing: Standing,
  holder: Holder | null,
): 'verify' | 'take_over' | 'confirm' | 'wait' {
  if (holder === null || standing.status === 'verified') return 'verify';
  if (holder.token !== 'gone') return 'wait';
  return holder.seenAt >= confirmedFrom(standing, holder) ? 'take_over' : 'confirm';
}

/** From when on a look that sees the same again confirms it. */
function confirmedFrom({ takeoverOf, takeoverSince }: Standing, { id, seenAt }: Holder): Date {
  const since = takeoverOf === id ? takeoverSince : null;
  return addSeconds(since ?? seenAt, confirmSeconds);
}

function awaitConfirmation(standing: Standing, holder: Holder, now: Date, random: () => number): Decision {
  const from = confirmedFrom(standing, holder);
  const reason = `Another owner holds the domain verified, and that ownership record is gone: the domain is yours when a look after ${from.toISOString()} sees the same on all name servers that answer.`;
  const leftSeconds = Math.max(0, (from.getTime() - now.getTime()) / 1000);
  const status = standing.status === 'failed' ? 'failed' : 'pending';
  return {
    ...decided(standing, status, reason, leftSeconds + 1 + 5 * random()),
    takeoverOf: holder.id,
    takeoverSince: addSeconds(from, -confirmSeconds),
  };
}

function decideVerified(
  standing: Standing,
  required: readonly DnsRecord[],
  now: Date,
  random: () => number,
): Decision {
  const gone = required.filter(isGone);
  const graceSince = standing.graceSince ?? (gone.length > 0 ? now : null);
  if (graceSince === null) {
    const reason = `${nameRecords(required.filter(isUnknown))} could not be looked up for certain, which changes nothing.`;
    return decided(standing, 'verified', reason, aroundSixHours(random));
  }
  const graceUntil = addSeconds(graceSince, graceSeconds);
  // The end, too, has to be seen: an outage at that moment is not a record that is gone.
  if (gone.length > 0 && now >= graceUntil) {
    return fail(standing, `${nameRecords(gone)} did not come back within 72 hours.`, now, random);
  }
  const reason =
    gone.length > 0
      ? `${nameRecords(gone)} went missing: the identity fails at ${graceUntil.toISOString()} unless what is required stands again by then.`
      : `${nameRecords(required.filter(isUnknown))} could not be looked up for certain; the grace goes on.`;
  const leftSeconds = (graceUntil.getTime() - now.getTime()) / 1000;
  const waitSeconds = leftSeconds > 0 ? Math.min(jitter(hour, random), leftSeconds) : jitter(hour, random);
  return { ...decided(standing, 'verified', reason, waitSeconds), graceSince, graceUntil };
}

/** Why it failed goes on being told, whatever the later looks say. */
function decideFailed(
  standing: Standing,
  holder: Holder | null,
  stands: boolean,
  now: Date,
  random: () => number,
): Decision {
  const reason = stands ? describeHolder(holder) : (standing.reason ?? 'The required records do not stand.');
  return decided(standing, 'failed', reason, nextWait(failedAges, standing.since, now, random));
}

function decideUnproven(
  standing: Standing,
  records: readonly DnsRecord[],
  now: Date,
  random: () => number,
): Decision {
  const waitSeconds = nextWait(unprovenAges, standing.since, now, random);
  const ownership = records.find(({ purpose }) => purpose === 'ownership')?.status ?? 'unknown';
  const isLate = now >= addSeconds(standing.since, patienceSeconds);
  if (isLate && (ownership === 'missing' || ownership === 'mismatch')) {
    return fail(standing, 'The ownership record was not found within 72 hours.', now, random);
  }
  if (waitSeconds === null && ownership === 'unknown') {
    return fail(standing, 'The ownership record could not be looked up for ten days.', now, random);
  }
  // Any DMARC record is a good one, so it may well have been there before us.
  const ours = records.filter(({ purpose }) => purpose !== 'dmarc');
  const found = ours.filter(({ status }) => status === 'valid');
  if (found.length > 0) {
    return decided(
      standing,
      'pending',
      `${nameRecords(found)} found, not yet all that is required.`,
      waitSeconds,
    );
  }
  const unknown = ours.filter(isUnknown);
  if (unknown.length === 0) {
    return decided(standing, 'unverified', 'None of the records was found.', waitSeconds);
  }
  const others = unknown.length < ours.length ? ', and no other was found' : '';
  const status = standing.status === 'pending' ? 'pending' : 'unverified';
  return decided(standing, status, `${nameRecords(unknown)} could not be looked up${others}.`, waitSeconds);
}

function fail(standing: Standing, reason: string, now: Date, random: () => number): Decision {
  const waitSeconds = nextWait(failedAges, now, now, random);
  return { ...decided(standing, 'failed', reason, waitSeconds), since: now };
}

function decided(
  standing: Standing,
  status: Standing['status'],
  reason: string,
  waitSeconds: number | null,
): Decision {
  const { since } = standing;
  const steady = {
    graceSince: null,
    graceUntil: null,
    takeoverOf: null,
    takeoverSince: null,
    takesOver: false,
  };
  return { ...steady, status, since, reason, waitSeconds };
}

/** What becomes of the holder when another takes the value over. */
export function decideLoss(standing: Standing, now: Date, random: () => number): Decision {
  const reason =
    'Another owner has proven that the domain is theirs, and the ownership record of this identity is gone.';
  // Soon: should the look that took it have seen an old copy of the zone, it is theirs again.
  return { ...fail(standing, reason, now, random), waitSeconds: jitter(5 * minute, random) };
}

/** A person asks for a look: what is not verified begins anew. */
export function beginAgain(standing: Standing, now: Date): Standing {
  if (standing.status === 'verified') return standing;
  const status = standing.status === 'failed' ? 'unverified' : standing.status;
  return { ...standing, status, since: now, graceSince: null, reason: 'A check was asked for.' };
}

/**
 * The records as they are kept and shown: the end of a grace at those that do not stand, also while they cannot be looked up,
 * and the reason where a person looks for it.
 */
export function markRecords(records: readonly DnsRecord[], decision: Decision): DnsRecord[] {
  const { status, graceUntil, reason } = decision;
  const told = records.find((record) => record.required && record.status !== 'valid') ?? records[0];
  const tells = status === 'failed' || (status === 'pending' && told?.status === 'valid');
  return records.map((record) => {
    if (graceUntil && record.required && record.status !== 'valid') {
      return { ...withReason(record, reason), graceUntil: graceUntil.toISOString() };
    }
    return tells && record === told ? withReason(record, reason) : record;
  });
}

function withReason(record: DnsRecord, reason: string): DnsRecord {
  return { ...record, note: record.note === undefined ? reason : `${record.note} ${reason}` };
}

export function isGone({ status }: DnsRecord): boolean {
  return status === 'missing' || status === 'mismatch';
}

function isUnknown({ status }: DnsRecord): boolean {
  return status === 'unknown';
}

function describeHolder(holder: Holder | null): string {
  const held = 'Another owner holds the domain verified';
  switch (holder?.token) {
    case 'valid':
      return `${held}: remove the other record that stands at the same name, on every name server, and it is yours.`;
    case 'not_everywhere':
      return `${held}, and not all name servers have your record yet: it is yours once all that answer have it.`;
    default:
      return `${held}, and whether that ownership record is gone could not be seen.`;
  }
}

function nameRecords(records: readonly DnsRecord[]): string {
  const names = [
    ...new Set(records.map(({ purpose }) => (purpose === 'ownership' ? purpose : purpose.toUpperCase()))),
  ];
  return `The ${new Intl.ListFormat('en').format(names)} record${records.length > 1 ? 's' : ''}`;
}

/** To the first of the ages that is not just now; up to 10 % late, so that what began together does not stay together. */
function nextWait(ages: readonly number[], since: Date, now: Date, random: () => number): number | null {
  const age = (now.getTime() - since.getTime()) / 1000;
  const next = ages.find((seconds) => seconds >= age + 5);
  return next === undefined ? null : (next - age) * (1 + 0.1 * random());
}

function aroundSixHours(random: () => number): number {
  return jitter(6 * hour, random);
}

function jitter(seconds: number, random: () => number): number {
  return seconds * (0.9 + 0.2 * random());
}

function addSeconds(time: Date, seconds: number): Date {
  return new Date(time.getTime() + seconds * 1000);
}

/** Decisions of the synchronisation, as pure functions: where reading starts, which mail is new, and when to try again. */
import { createHash } from 'node:crypto';
import { backoff } from '../lib/backoff.ts';
import { hashId } from '../lib/ids.ts';
import type { Position, SyncRules } from '../store/mailbox-sync.ts';

/** What the server says when a folder is opened. */
export interface FolderState {
  uidValidity: number;
  /** Null: the server does not say. */
  uidNext: number | null;
  total: number;
}

export type NewPosition = Pick<Position, 'uidValidity' | 'nextUid' | 'older' | 'scan'>;

/**
 * Where reading starts anew. Null: it goes on where it ended. At first, and when the server numbers the folder anew (another
 * UIDVALIDITY, or a UIDNEXT that went back), what is in the folder is older mail, which is read too: the INTERNALDATE says what came
 * after the connection, and the ledger what is not new.
 */
export function startPosition(
  position: Position,
  { uidValidity, uidNext }: FolderState,
  scan: number,
): NewPosition | null {
  // At first the position has no UIDVALIDITY.
  const isRenumbered =
    position.uidValidity !== uidValidity || (uidNext !== null && uidNext < position.nextUid);
  if (!isRenumbered && position.scan === scan) return null;
  // Without a UIDNEXT everything is read as new mail, and the INTERNALDATE decides what is new.
  const nextUid = isRenumbered ? (uidNext ?? 1) : position.nextUid;
  return { uidValidity, nextUid, older: allBefore(nextUid), scan };
}

function allBefore(end: number): Position['older'] {
  return end > 1 ? { uid: 1, end } : null;
}

export interface MessageFacts {
  uid: number;
  /** The INTERNALDATE. Null: it cannot be read, or the server gave none. */
  receivedAt: Date | null;
  size: number;
  /** All bytes of the header. */
  header: Buffer;
}

/** imapflow gives a date that it cannot read as text. */
export function readInternalDate(given: Date | string | undefined): Date | null {
  const date = new Date(given ?? Number.NaN);
  return Number.isNaN(date.getTime()) ? null : date;
}

export function fingerprintOf({ receivedAt, size, header }: MessageFacts): string {
  const hash = createHash('sha256').update(header).digest('hex');
  return hashId('fingerprint', receivedAt?.toISOString() ?? '', String(size), hash);
}

export type Choice =
  | { kind: 'skip'; why: 'known' | 'old' | 'too_large' }
  /** A copy of a message that was sent from here: it is noted as seen, and not recorded. */
  | { kind: 'own_copy' }
  | { kind: 'record'; hasEvent: boolean };

/** Of a message without a date, its place says whether it is new mail. `isNew`: it came after the connection, by its UID. */
export function chooseMessage(
  { receivedAt, size }: Pick<MessageFacts, 'receivedAt' | 'size'>,
  { isKnown, isOwnCopy, isNew }: { isKnown: boolean; isOwnCopy: boolean; isNew: boolean },
  { importSince, eventsSince }: Pick<SyncRules, 'importSince' | 'eventsSince'>,
  maxBytes: number,
): Choice {
  if (isKnown) return { kind: 'skip', why: 'known' };
  if (receivedAt && receivedAt < importSince) return { kind: 'skip', why: 'old' };
  if (isOwnCopy) return { kind: 'own_copy' };
  if (size > maxBytes) return { kind: 'skip', why: 'too_large' };
  return { kind: 'record', hasEvent: receivedAt ? receivedAt >= eventsSince : isNew };
}

/** Gmail and the services of Microsoft put mail that is sent through them into the Sent folder by themselves. */
export function keepsSentMail(host: string, hasGmailExtension: boolean): boolean {
  return hasGmailExtension || /(^|\.)(office365|outlook|hotmail)\.[a-z]+$/.test(host);
}

const firstRetrySeconds = 5;
const maxRetrySeconds = 15 * 60;
/** After a connection by which the mailbox was read: mail is not much later than with a server that announces none. */
const maxRetrySecondsAfterRead = 60;

/** `random`: from 0 to 1. Half of the time is random, so that accounts on one server do not come back all at once. */
export function backoffSeconds(failures: number, random: number, wasRead: boolean): number {
  const seconds = backoff(failures, firstRetrySeconds, wasRead ? maxRetrySecondsAfterRead : maxRetrySeconds);
  return seconds * (0.5 + random / 2);
}

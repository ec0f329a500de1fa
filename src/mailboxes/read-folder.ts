/**
 * Reads the mail of one folder from its position on. Guarantee: messages, ledger and the new position are committed together, so that
 * a message is recorded once, wherever the reading ends.
 */
import { errorCode, type Sql, transaction } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import {
  findKnown,
  findSentKeys,
  keepIdentity,
  movePosition,
  noteSeen,
  type Position,
  PositionLost,
  type ReadKind,
  type SeenMessage,
  type SyncedIdentity,
  type SyncRules,
} from '../store/mailbox-sync.ts';
import { chooseMessage, type NewPosition } from './decide.ts';
import type { KnownFacts } from './imap-messages.ts';
import { type AnswerMemory, type FoundUids, type MailboxClient, nothingFound } from './mailbox-client.ts';

interface FoundMail {
  raw: Buffer;
  receivedAt: Date;
  hasEvent: boolean;
}

/** Records the mails, with what `alsoWrite` writes, in one transaction. */
export type RecordMails = (
  found: SyncedIdentity & { kind: ReadKind; mails: readonly FoundMail[] },
  alsoWrite: (sql: Sql) => Promise<void>,
) => Promise<void>;

export interface ReadParts {
  sql: Sql;
  log: Log;
  maxMessageBytes: number;
  memory: AnswerMemory;
  recordMails: RecordMails;
}

/** So many headers are read with one command. */
const chunkLength = 50;
/** Messages are recorded together up to this size. A larger one is recorded alone. */
const batchBytes = 1024 * 1024;
const dayMs = 24 * 60 * 60 * 1000;

type Range = 'new' | 'older';

export class FolderReader {
  readonly #parts: ReadParts;
  readonly #client: MailboxClient;
  readonly #identity: SyncedIdentity;
  #position: Position;
  /** Older mail that is still to be read. Null: the folder must be searched for it. */
  #foundOlder: FoundUids | null = null;

  constructor(parts: ReadParts, client: MailboxClient, identity: SyncedIdentity, position: Position) {
    this.#parts = parts;
    this.#client = client;
    this.#identity = identity;
    this.#position = position;
  }

  get position(): Position {
    return this.#position;
  }

  /** Stores where reading starts anew, after the folder was opened. */
  async start(to: NewPosition, total: number): Promise<void> {
    const { sql } = this.#parts;
    this.#foundOlder = null;
    const progress = { total, backlog: 0 };
    this.#position = await movePosition(sql, this.#identity.ownerId, this.#position, to, progress);
  }

  /** Reads all new mail. The folder is open. Returns how many messages were recorded or noted. */
  async readNew(rules: SyncRules): Promise<number> {
    let count = 0;
    for (let isDone = false; !isDone; ) {
      const { uids, more } = await this.#client.searchFrom(this.#position.nextUid);
      for (let at = 0; at < uids.length; at += chunkLength)
        count += await this.#readChunk('new', [...uids.subarray(at, at + chunkLength)], rules);
      isDone = more === 0;
    }
    return count;
  }

  /** Reads some older mail. The folder must be open. While the position has `older`, there is more. */
  async readOlder(rules: SyncRules): Promise<void> {
    const { older } = this.#position;
    if (!older) return;
    const { uids, more } = this.#foundOlder ?? (await this.#searchOlder(older, rules));
    // After a failure, such as an unavailable database, the folder is searched again from the position on.
    this.#foundOlder = null;
    const left = uids.subarray(chunkLength);
    if (uids.length > 0)
      await this.#readChunk('older', [...uids.subarray(0, chunkLength)], rules, left.length + more);
    if (left.length > 0) this.#foundOlder = { uids: left, more };
    else if (more === 0) await this.#move({ older: null });
  }

  async #searchOlder(
    { uid, end }: { uid: number; end: number },
    { importSince }: SyncRules,
  ): Promise<FoundUids> {
    // SEARCH compares dates without their time zone (RFC 3501 §6.4.4).
    const since = new Date(importSince.getTime() - dayMs);
    if (uid >= end) return nothingFound;
    const found = await this.#client.searchRange(uid, end - 1, since);
    await this.#move({}, found.uids.length + found.more);
    return found;
  }

  /** `backlog`: how much older mail is left after it. */
  async #readChunk(
    range: Range,
    uids: readonly number[],
    rules: SyncRules,
    backlog?: number,
  ): Promise<number> {
    const { maxMessageBytes } = this.#parts;
    const wantsKeys = this.#position.kind === 'sent';
    const facts = await this.#client.readHeaders(uids, { maxMessageBytes, wantsKeys });
    const chosen = await this.#choose(range, facts, rules);
    for (const batch of splitBatches(chosen)) await this.#recordBatch(range, batch);
    const to = this.#after(range, uids.at(-1) ?? 0);
    if (range === 'older') await this.#move(to, backlog);
    else if (to.nextUid !== this.#position.nextUid) await this.#move(to);
    return chosen.length;
  }

  /** The messages that are to be recorded or noted, lowest UID first. */
  async #choose(range: Range, facts: readonly KnownFacts[], rules: SyncRules): Promise<ChosenMessage[]> {
    const { sql, log, maxMessageBytes } = this.#parts;
    const { identityId, ownerId } = this.#identity;
    const prints = facts.map(({ fingerprint }) => fingerprint);
    const known = await findKnown(sql, identityId, prints);
    const keys = facts.map(({ key }) => key).filter((key) => key !== null);
    const sent = await findSentKeys(sql, ownerId, keys);
    return facts.flatMap((one): ChosenMessage[] => {
      const { fingerprint, key } = one;
      const isOwnCopy = key !== null && sent.has(key);
      const about = { isKnown: known.has(fingerprint), isOwnCopy, isNew: range === 'new' };
      const choice = chooseMessage(one, about, rules, maxMessageBytes);
      if (choice.kind === 'skip') {
        if (choice.why === 'too_large')
          log.warn(
            { identityId, uid: one.uid, size: one.size },
            'a message in a mailbox is too large, and was not read',
          );
        return [];
      }
      // A folder can have the same message twice.
      known.add(fingerprint);
      const { uid, size, receivedAt } = one;
      return [
        { uid, size, receivedAt, fingerprint, hasEvent: choice.kind === 'record' ? choice.hasEvent : null },
      ];
    });
  }

  async #recordBatch(range: Range, batch: readonly ChosenMessage[]): Promise<void> {
    const { recordMails } = this.#parts;
    const wanted = batch.filter(({ hasEvent }) => hasEvent !== null);
    const bytes = wanted.reduce((sum, { size }) => sum + size, 0);
    const { found: raws, memory } = await this.#client.readMessages(
      wanted.map(({ uid }) => uid),
      bytes,
    );
    using _memory = memory;
    const mails = wanted.flatMap(({ uid, receivedAt, hasEvent }): FoundMail[] => {
      const raw = raws.get(uid);
      // It was deleted meanwhile.
      return raw ? [{ raw, receivedAt: receivedAt ?? new Date(), hasEvent: hasEvent ?? false }] : [];
    });
    const seen = batch.filter(({ uid, hasEvent }) => hasEvent === null || raws.has(uid));
    const to = { ...this.#position, ...this.#after(range, batch.at(-1)?.uid ?? 0) };
    const alsoWrite = (sql: Sql) => this.#write(sql, to, seen);
    if (mails.length === 0) await transaction(this.#parts.sql, alsoWrite);
    else {
      const { kind } = this.#position;
      await recordMails({ ...this.#identity, kind, mails }, alsoWrite).catch(throwLost);
    }
    this.#position = to;
  }

  async #write(sql: Sql, to: Position, seen: readonly SeenMessage[]): Promise<void> {
    await keepIdentity(sql, this.#identity);
    await movePosition(sql, this.#identity.ownerId, this.#position, to);
    await noteSeen(sql, this.#identity, this.#position, seen);
  }

  #after(range: Range, uid: number): Partial<Position> {
    const { older } = this.#position;
    return range === 'new' ? { nextUid: uid + 1 } : { older: older && { uid: uid + 1, end: older.end } };
  }

  async #move(change: Partial<Position>, backlog?: number): Promise<void> {
    const { sql } = this.#parts;
    const to = { ...this.#position, ...change };
    const progress = backlog === undefined ? {} : { backlog };
    this.#position = await movePosition(sql, this.#identity.ownerId, this.#position, to, progress);
  }
}

interface ChosenMessage extends SeenMessage {
  size: number;
  receivedAt: Date | null;
  /** Null: a copy of a message that was sent from here. */
  hasEvent: boolean | null;
}

function splitBatches(chosen: readonly ChosenMessage[]): ChosenMessage[][] {
  const batches: ChosenMessage[][] = [];
  let bytes = 0;
  for (const one of chosen) {
    const last = batches.at(-1);
    bytes += one.size;
    if (last && bytes <= batchBytes) last.push(one);
    else {
      batches.push([one]);
      bytes = one.size;
    }
  }
  return batches;
}

const uniqueViolation = '23505';

/** The ledger had a message of the batch already: another process recorded it since it was looked up. */
function throwLost(error: unknown): never {
  throw errorCode(error) === uniqueViolation ? new PositionLost() : error;
}

/**
 * What the synchronisation does on a connection to an IMAP server, which a thread holds. Guarantees: what fails is a `ServerFailure`, or a `ThreadFailure`;
 * memory of the owner is taken before a long answer is asked for, and owners take turns at the thread; a long answer comes in a
 * limited time.
 */
import type { Share } from '../lib/slots.ts';
import { describeServerError, type ServerErrorCode } from '../net/mail-server.ts';
import type { FoundFolder } from '../store/mailbox-sync.ts';
import {
  answerBytes,
  foldersMemory,
  searchBytes,
  searchedAtOnce,
  usualHeaderBytes,
} from './answer-limits.ts';
import type { FolderState } from './decide.ts';
import type { ConnectionEvents, ImapConnection } from './imap-connection.ts';
import type { KnownFacts, SearchQuery } from './imap-messages.ts';

/** So many UIDs of a folder are kept: there is no limit to how long older mail is read. */
const keptUids = 100_000;
/** By what the longest answers cost a thread: 10,000 folders take 1 s, a search 0.5 s, and mail is hardly parsed. */
const weights = { folders: 8, search: 4, mail: 1 };
/** For a long answer, whose turn others of the owner may wait for: a search in a large mailbox, and then 10 KB per second. */
const longestMs = (bytes: number) => 180_000 + bytes / 10;

/** The memory of one owner. */
export interface AnswerMemory {
  take(bytes: number): Promise<Share>;
  /** Into memory that was taken. `cut` aborts if the answer comes slowly and others need the memory. */
  read<T>(bytes: number, read: (cut: AbortSignal) => Promise<T>): Promise<T>;
}

/** The lowest UIDs that were found, lowest first, and how many more there are. */
export interface FoundUids {
  uids: Uint32Array;
  more: number;
}

export const nothingFound: FoundUids = { uids: new Uint32Array(), more: 0 };

export class MailboxClient {
  readonly #connection: ImapConnection;
  readonly #memory: AnswerMemory;

  constructor(connection: ImapConnection, memory: AnswerMemory, on: ConnectionEvents) {
    this.#connection = connection;
    this.#memory = memory;
    connection.listen(on);
  }

  /** Of a server of Gmail. */
  get hasGmailExtension(): boolean {
    return this.#connection.hasGmailExtension;
  }

  /** How many messages the open folder had at the last answer; null: no folder is open. */
  get total(): number | null {
    return this.#connection.total;
  }

  /** Inbox, and sent, spam and trash as the server marks them (RFC 6154), or else by well-known names. */
  listFolders(): Promise<FoundFolder[]> {
    return this.#askLong(foldersMemory, weights.folders, () => this.#connection.ask('listFolders', []));
  }

  examine(path: string): Promise<FolderState> {
    return this.#connection.ask('examine', [path]);
  }

  /** Of a folder that need not be open. */
  readState(path: string): Promise<FolderState> {
    return this.#connection.ask('readState', [path]);
  }

  /** UIDs of the open folder from this one on. */
  async searchFrom(from: number): Promise<FoundUids> {
    const query = { uid: `${from}:*` };
    if ((this.total ?? 0) > searchedAtOnce) return this.#searchParts(query, from, true);
    // `*` is the last message, also if its UID is lower.
    return addLower(
      nothingFound,
      (await this.#search(query)).filter((uid) => uid >= from),
    );
  }

  /** UIDs of the open folder in this range, of mail with this date of arrival or a later one. */
  searchRange(from: number, to: number, since: Date): Promise<FoundUids> {
    return this.#searchParts({ uid: `${from}:${to}`, since }, from, false);
  }

  /**
   * A large folder is searched in parts, the newest mail first: when a message is deleted meanwhile, those above it move down, and
   * none is missed. `isNew`: the mail is the newest of the folder.
   */
  async #searchParts(query: SearchQuery, from: number, isNew: boolean): Promise<FoundUids> {
    let found = nothingFound;
    let end = this.total ?? 0;
    // More mail may have come since the last answer.
    let last = '*';
    while (end > 0) {
      const start = Math.max(1, end - searchedAtOnce + 1);
      const part = (await this.#search({ seq: `${start}:${last}`, ...query })).filter((uid) => uid >= from);
      if (isNew && part.length === 0) break;
      found = addLower(found, part);
      end = Math.min(start - 1, this.total ?? 0);
      last = String(end);
    }
    return found;
  }

  #search(query: SearchQuery): Promise<Uint32Array> {
    return this.#askLong(searchBytes, weights.search, () => this.#connection.ask('search', [query]));
  }

  /** What the messages are known by, lowest UID first, without those that were deleted meanwhile. */
  async readHeaders(
    uids: readonly number[],
    options: { maxMessageBytes: number; wantsKeys: boolean },
  ): Promise<KnownFacts[]> {
    const { known, long } = await this.#askLong(answerBytes(usualHeaderBytes), weights.mail, () =>
      this.#connection.ask('readHeaders', [uids, options]),
    );
    for (const facts of long) {
      const one = await this.#askLong(answerBytes(facts.size), weights.mail, () =>
        this.#connection.ask('readLongHeader', [facts, options]),
      );
      if (one) known.push(one);
    }
    return known.sort((one, other) => one.uid - other.uid);
  }

  /** `bytes`: how long they are together, as the server said. The caller releases `memory` when the messages are not needed any more. */
  async readMessages(
    uids: readonly number[],
    bytes: number,
  ): Promise<{ found: Map<number, Buffer>; memory: Share }> {
    using _turn = await this.#connection.takeTurn(weights.mail);
    const memory = await this.#memory.take(answerBytes(bytes));
    try {
      const read = () => this.#connection.ask('readMessages', [uids, bytes]);
      const mails = uids.length === 0 ? [] : await this.#readLong(answerBytes(bytes), read);
      return { found: new Map(mails.map(({ uid, raw }) => [uid, Buffer.from(raw.buffer)])), memory };
    } catch (error) {
      memory.release();
      throw error;
    }
  }

  /** As a message that was read. No folder is open afterwards. The caller has taken the memory of `raw`, and does not use it again. */
  append(path: string, raw: Buffer): Promise<void> {
    // Memory that something else is in cannot be transferred.
    const own = raw.length === raw.buffer.byteLength ? raw : new Uint8Array(raw);
    const transfer = own.buffer instanceof ArrayBuffer ? [own.buffer] : [];
    return this.#useMemory(raw.length, () => this.#connection.ask('append', [path, own], transfer));
  }

  /** The turn comes first: whoever waits for a turn has no memory that others need. */
  async #askLong<T>(maxBytes: number, weight: number, ask: () => Promise<T>): Promise<T> {
    using _turn = await this.#connection.takeTurn(weight);
    using _share = await this.#memory.take(maxBytes);
    return await this.#readLong(maxBytes, ask);
  }

  #readLong<T>(maxBytes: number, ask: () => Promise<T>): Promise<T> {
    return this.#useMemory(maxBytes, async () => {
      const timer = setTimeout(() => this.#closeFor('timeout'), longestMs(maxBytes));
      try {
        return await ask();
      } finally {
        clearTimeout(timer);
      }
    });
  }

  #useMemory<T>(bytes: number, work: () => Promise<T>): Promise<T> {
    return this.#memory.read(bytes, (cut) => {
      cut.addEventListener('abort', () => this.#closeFor('connection_failed', cut.reason.message));
      return work();
    });
  }

  #closeFor(code: ServerErrorCode, detail?: string): void {
    this.#connection.close(describeServerError(code, { detail: detail ?? null }));
  }

  /** The server tells of new mail in the open folder, until the next command. */
  startIdle(): void {
    if (this.#connection.hasIdle) this.#connection.startIdle();
  }

  close(): void {
    this.#connection.close();
  }
}

/** UIDs rise with the places of messages, so a part of older mail has lower ones. Others were found already, and have moved down. */
function addLower({ uids, more }: FoundUids, part: Uint32Array): FoundUids {
  const lowest = uids[0] ?? Number.POSITIVE_INFINITY;
  const lower = part.filter((uid) => uid < lowest);
  const kept = uids.subarray(0, Math.max(0, keptUids - lower.length));
  const all = new Uint32Array(lower.length + kept.length);
  all.set(lower);
  all.set(kept, lower.length);
  return { uids: all, more: more + uids.length - kept.length };
}

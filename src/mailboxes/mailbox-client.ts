/**
 * What the synchronisation does on a connection to an IMAP server. Guarantees: nothing is changed in the folders that are read
 * (EXAMINE, PEEK), except that copies are appended; bytes are those of the server; what fails is a `ServerFailure`; at any time
 * there is a limit to what the server can send, and memory of the owner is taken before a long answer is asked for.
 */
import type { Share } from '../lib/slots.ts';
import { describeServerError, type ServerError } from '../net/mail-server.ts';
import type { FoundFolder } from '../store/mailbox-sync.ts';
import { type FolderState, type MessageFacts, readInternalDate } from './decide.ts';
import {
  type AnswerLimit,
  answerBytes,
  askServer,
  describeImapError,
  type ImapFlow,
  limitAnswer,
  lineBytes,
  SearchRefused,
  ServerFailure,
  shortBytes,
  tooMuch,
} from './imap-client.ts';

/** imapflow makes a list of all UIDs of a search, whose short form is `1:4000000000`, and cuts it at the number of messages. */
const maxMessages = 2_000_000;
/** So many UIDs fit into `lineBytes`. */
const searchedAtOnce = 40_000;
/** The names of ten thousand folders. */
const foldersBytes = 2 * 1024 * 1024;
/** So much of a header is read with those of other messages. What is longer is read alone: anyone can send a mail that is all header. */
const usualHeaderBytes = 1024 * 1024;
/** While nothing is asked. Thousands of connections wait at the same time, so it is seldom. */
const restCheckMs = 500;

/** The memory of one owner. */
export interface AnswerMemory {
  take(bytes: number): Promise<Share>;
  /** Into memory that was taken. `cut` aborts if the answer comes slowly and others need the memory. */
  read<T>(bytes: number, read: (cut: AbortSignal) => Promise<T>): Promise<T>;
}

export class MailboxClient {
  readonly #flow: ImapFlow;
  readonly #memory: AnswerMemory;
  #isIdling = false;
  #isClosed = false;
  /** Of the answer that is being read, or of what comes while nothing is asked. */
  #limit: AnswerLimit;
  /** Why others had this connection closed. */
  #cutReason: Error | null = null;

  constructor(flow: ImapFlow, memory: AnswerMemory, on: { news(): void; closed(reason: Error): void }) {
    this.#flow = flow;
    this.#memory = memory;
    this.#limit = limitAnswer(flow, shortBytes, restCheckMs);
    flow.on('exists', ({ count }) => {
      if (count > maxMessages) flow.close();
      else on.news();
    });
    flow.on('close', () => {
      this.#isClosed = true;
      this.#limit[Symbol.dispose]();
      const reason = this.#cutReason ?? this.#limit.excess;
      on.closed(reason ?? new Error('The server closed the connection'));
    });
    // Without a listener the process would end. What fails is reported to whoever waits for it.
    flow.on('error', () => {});
  }

  get hasIdle(): boolean {
    return this.#flow.capabilities.has('IDLE');
  }

  /** Of a server of Gmail. */
  get hasGmailExtension(): boolean {
    return this.#flow.capabilities.has('X-GM-EXT-1');
  }

  /** How many messages the open folder has now; null: no folder is open. */
  get total(): number | null {
    return this.#flow.mailbox ? this.#flow.mailbox.exists : null;
  }

  /** Inbox, and sent, spam and trash as the server marks them (RFC 6154), or else by well-known names. */
  async listFolders(): Promise<FoundFolder[]> {
    const kinds = { '\\Inbox': 'inbox', '\\Sent': 'sent', '\\Junk': 'spam', '\\Trash': 'trash' } as const;
    const listed = await this.#askLong(foldersBytes, () => this.#flow.list());
    const folders = listed.flatMap(({ path, specialUse, flags }): FoundFolder[] => {
      const kind = kinds[specialUse as keyof typeof kinds];
      return kind && !flags.has('\\Noselect') ? [{ kind, path }] : [];
    });
    return folders.some(({ kind }) => kind === 'inbox')
      ? folders
      : [{ kind: 'inbox', path: 'INBOX' }, ...folders];
  }

  async examine(path: string): Promise<FolderState> {
    const opened = await this.#ask(() => this.#flow.mailboxOpen(path, { readOnly: true }));
    const { uidValidity, uidNext, exists } = opened;
    return checkState({ uidValidity: Number(uidValidity), uidNext: uidNext || null, total: exists });
  }

  /** Of a folder that need not be open. */
  async readState(path: string): Promise<FolderState> {
    const wanted = { messages: true, uidNext: true, uidValidity: true };
    const status = await this.#ask(() => this.#flow.status(path, wanted));
    const { uidValidity = 0, uidNext = null, messages = 0 } = status || {};
    return checkState({ uidValidity: Number(uidValidity), uidNext, total: messages });
  }

  /** UIDs of the open folder from this one, lowest first. */
  searchFrom(uid: number): Promise<number[]> {
    return this.#search({ uid: `${uid}:*` });
  }

  /**
   * UIDs of the open folder in this range, lowest first, of mail with this date of arrival or a later one. A large folder is
   * searched in parts, the newest mail first: when a message is deleted meanwhile, those above it move down, and none is missed.
   */
  async searchRange(from: number, to: number, since: Date): Promise<number[]> {
    const found = new Set<number>();
    const uid = `${from}:${to}`;
    let end = this.#requireOpenFolder().exists;
    while (end > 0) {
      const start = Math.max(1, end - searchedAtOnce + 1);
      for (const one of await this.#search({ seq: `${start}:${end}`, uid, since })) found.add(one);
      end = Math.min(start - 1, this.#requireOpenFolder().exists);
    }
    return [...found].sort((one, other) => one - other);
  }

  async #search(query: { uid: string; since?: Date; seq?: string }): Promise<number[]> {
    const found = await this.#askLong(2 * lineBytes, async () => {
      const answer = await this.#flow.search(query, { uid: true });
      this.#requireOpenFolder();
      if (!answer) throw new SearchRefused(notSearched);
      return answer;
    });
    return found.sort((one, other) => one - other);
  }

  /** Calls `note` for each message, in any order, except for those that were deleted meanwhile. */
  async readHeaders(
    uids: readonly number[],
    maxMessageBytes: number,
    note: (facts: MessageFacts) => void,
  ): Promise<void> {
    const wanted = new Set(uids);
    const long: Omit<MessageFacts, 'header'>[] = [];
    const part = { key: 'HEADER', start: 0, maxLength: usualHeaderBytes };
    const query = { uid: true, internalDate: true, size: true, bodyParts: [part] };
    await this.#askLong(answerBytes(usualHeaderBytes), async (limit) => {
      const fetched = this.#flow.fetch(uids.join(), query, { uid: true });
      for await (const { uid, internalDate, size = 0, headers } of fetched) {
        if (!wanted.delete(uid)) continue;
        limit.restart();
        const facts = { uid, receivedAt: readInternalDate(internalDate), size };
        const header = headers ?? Buffer.alloc(0);
        if (header.length >= usualHeaderBytes && size <= maxMessageBytes) long.push(facts);
        else note({ ...facts, header });
      }
      this.#requireOpenFolder();
    });
    for (const facts of long) {
      const { uid, size } = facts;
      await this.#askLong(answerBytes(size), async () => {
        const query = { uid: true, headers: true };
        const { headers } = (await this.#flow.fetchOne(String(uid), query, { uid: true })) || {};
        this.#requireOpenFolder();
        if (headers) note({ ...facts, header: headers });
      });
    }
  }

  /** `bytes`: how long they are together, as the server said. The caller has taken `answerBytes` of them. */
  async readMessages(uids: readonly number[], bytes: number): Promise<Map<number, Buffer>> {
    const found = new Map<number, Buffer>();
    if (uids.length === 0) return found;
    const maxBytes = answerBytes(bytes);
    await this.#readInto(maxBytes, async () => {
      let foundBytes = 0;
      const fetched = this.#flow.fetch(uids.join(), { uid: true, source: true }, { uid: true });
      for await (const { uid, source } of fetched) {
        if (!source || !uids.includes(uid)) continue;
        found.set(uid, source);
        foundBytes += source.length;
        // The limit of the answer is checked only from time to time.
        if (foundBytes > maxBytes) throw tooMuch();
      }
      this.#requireOpenFolder();
    });
    return found;
  }

  /** As a message that was read. No folder is open afterwards. The caller has taken the memory of `raw`. */
  append(path: string, raw: Buffer): Promise<void> {
    const append = async () => {
      // While a folder is open, imapflow sets only the flags that can be changed there: none, after EXAMINE.
      if (this.#flow.mailbox) await this.#flow.mailboxClose();
      const appended = await this.#flow.append(path, raw, ['\\Seen']);
      if (!appended) throw connectionEnded();
    };
    return this.#useMemory(raw.length, () => this.#ask(append));
  }

  /**
   * The open folder. Checked after each command in the folder: when the connection has ended, imapflow answers as if the folder had no
   * such mail, and mail that is missing counts as deleted.
   */
  #requireOpenFolder() {
    if (!this.#flow.mailbox) throw connectionEnded();
    return this.#flow.mailbox;
  }

  #ask<T>(commands: () => Promise<T>): Promise<T> {
    return this.#limitAnswer(shortBytes, commands);
  }

  async #askLong<T>(maxBytes: number, commands: (limit: AnswerLimit) => Promise<T>): Promise<T> {
    using _share = await this.#memory.take(maxBytes);
    return await this.#readInto(maxBytes, commands);
  }

  #readInto<T>(maxBytes: number, commands: (limit: AnswerLimit) => Promise<T>): Promise<T> {
    return this.#useMemory(maxBytes, () => this.#limitAnswer(maxBytes, commands));
  }

  #useMemory<T>(bytes: number, work: () => Promise<T>): Promise<T> {
    return this.#memory.read(bytes, (cut) => {
      cut.addEventListener('abort', () => {
        this.#cutReason = cut.reason;
        this.close();
      });
      return work();
    });
  }

  /** `maxBytes`: of all answers to these commands. */
  async #limitAnswer<T>(maxBytes: number, commands: (limit: AnswerLimit) => Promise<T>): Promise<T> {
    this.#limit[Symbol.dispose]();
    using limit = limitAnswer(this.#flow, maxBytes);
    this.#limit = limit;
    try {
      return await askServer(() => commands(limit));
    } finally {
      if (!this.#isClosed && !limit.excess) this.#limit = limitAnswer(this.#flow, shortBytes, restCheckMs);
    }
  }

  /** The server tells of new mail in the open folder, until the next command. */
  startIdle(): void {
    if (!this.hasIdle || this.#isIdling) return;
    this.#isIdling = true;
    const ended = () => {
      this.#isIdling = false;
    };
    this.#flow.idle().then(ended, ended);
  }

  close(): void {
    this.#flow.close();
  }
}

const notSearched: ServerError = {
  code: 'server_refused',
  response: null,
  message:
    'The server did not search the folder. Open the folder in another mail program; if that fails too, ask the operator of the server.',
};

/** Other numbers do not fit into the database, and that would look like a failure of our own. */
function checkState(state: FolderState): FolderState {
  const { uidValidity, total } = state;
  if (total > maxMessages) throw badFolder(`The folder has more than ${maxMessages} messages`);
  if (!Number.isSafeInteger(uidValidity)) throw badFolder('The server gives the folder no valid UIDVALIDITY');
  return state;
}

function badFolder(detail: string): ServerFailure {
  return new ServerFailure(describeImapError(new Error(detail)));
}

function connectionEnded(): ServerFailure {
  return new ServerFailure(describeServerError('connection_failed', { detail: 'The connection has ended' }));
}

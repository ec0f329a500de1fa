/**
 * What the synchronisation does on a connection to an IMAP server. Guarantees: nothing is changed in the folders that are read
 * (EXAMINE, PEEK), except that copies are appended; bytes are those of the server; what fails is a `ServerFailure`; an answer that
 * fills the memory ends the connection.
 */
import type { FoundFolder } from '../store/mailbox-sync.ts';
import type { FolderState, MessageFacts } from './decide.ts';
import {
  type AnswerLimit,
  askServer,
  describeImapError,
  headerBytes,
  type ImapFlow,
  limitAnswer,
  lineBytes,
  ServerFailure,
  shortBytes,
} from './imap-client.ts';

/** imapflow makes a list of all UIDs of a search, whose short form is `1:4000000000`, and cuts it at the number of messages. */
const maxMessages = 2_000_000;
/** So many UIDs fit into `lineBytes`. */
const searchedAtOnce = 40_000;

export class MailboxClient {
  readonly #flow: ImapFlow;
  #isIdling = false;
  #limit: AnswerLimit | null = null;

  constructor(flow: ImapFlow, on: { news(): void; closed(reason: Error): void }) {
    this.#flow = flow;
    flow.on('exists', ({ count }) => {
      if (count > maxMessages) flow.close();
      else on.news();
    });
    flow.on('close', () => on.closed(this.#limit?.excess ?? new Error('The server closed the connection')));
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

  /** Inbox, and sent, spam and trash as the server marks them (RFC 6154), or else by well-known names. */
  async listFolders(): Promise<FoundFolder[]> {
    const kinds = { '\\Inbox': 'inbox', '\\Sent': 'sent', '\\Junk': 'spam', '\\Trash': 'trash' } as const;
    const listed = await this.#ask(() => this.#flow.list());
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
    if (exists > maxMessages)
      throw new ServerFailure(
        describeImapError(new Error(`The folder has more than ${maxMessages} messages`)),
      );
    // Without a UIDNEXT everything is read, and the INTERNALDATE decides what is new.
    return { uidValidity: Number(uidValidity), uidNext: uidNext || 1, total: exists };
  }

  /** Of a folder that need not be open. */
  async readState(path: string): Promise<FolderState> {
    const wanted = { messages: true, uidNext: true, uidValidity: true };
    const status = await this.#ask(() => this.#flow.status(path, wanted));
    const { uidValidity = 0, uidNext = 1, messages = 0 } = status || {};
    return { uidValidity: Number(uidValidity), uidNext, total: messages };
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
    let end = this.#flow.mailbox ? this.#flow.mailbox.exists : 0;
    while (end > 0) {
      const start = Math.max(1, end - searchedAtOnce + 1);
      for (const one of await this.#search({ seq: `${start}:${end}`, uid, since })) found.add(one);
      end = Math.min(start - 1, this.#flow.mailbox ? this.#flow.mailbox.exists : 0);
    }
    return [...found].sort((one, other) => one - other);
  }

  async #search(query: { uid: string; since?: Date; seq?: string }): Promise<number[]> {
    const found = await this.#ask(async () => {
      const answer = await this.#flow.search(query, { uid: true });
      if (!answer) throw new Error('The server did not search the folder');
      return answer;
    }, 2 * lineBytes);
    return found.sort((one, other) => one - other);
  }

  /** One after the other, in the order of the server, and without messages that were deleted meanwhile. */
  async *readHeaders(uids: readonly number[]): AsyncGenerator<MessageFacts> {
    using limit = this.#limitAnswer(headerBytes);
    const wanted = new Set(uids);
    const query = { uid: true, internalDate: true, size: true, headers: true };
    const fetched = this.#flow.fetch(uids.join(), query, { uid: true });
    for await (const { uid, internalDate, size, headers } of askEach(fetched)) {
      if (!wanted.delete(uid)) continue;
      limit.restart();
      yield {
        uid,
        receivedAt: new Date(internalDate ?? 0),
        size: size ?? 0,
        header: headers ?? Buffer.alloc(0),
      };
    }
  }

  /** `bytes`: how long they are together, as the server said. */
  async readMessages(uids: readonly number[], bytes: number): Promise<Map<number, Buffer>> {
    const found = new Map<number, Buffer>();
    if (uids.length === 0) return found;
    using _limit = this.#limitAnswer(bytes + headerBytes);
    const fetched = this.#flow.fetch(uids.join(), { uid: true, source: true }, { uid: true });
    for await (const { uid, source } of askEach(fetched))
      if (source && uids.includes(uid)) found.set(uid, source);
    return found;
  }

  /** As a message that was read. No folder is open afterwards. */
  append(path: string, raw: Buffer): Promise<void> {
    return this.#ask(async () => {
      // While a folder is open, imapflow sets only the flags that can be changed there: none, after EXAMINE.
      if (this.#flow.mailbox) await this.#flow.mailboxClose();
      const appended = await this.#flow.append(path, raw, ['\\Seen']);
      if (!appended) throw new Error('The connection has ended');
    });
  }

  /** `maxBytes`: of all answers to these commands. */
  async #ask<T>(commands: () => Promise<T>, maxBytes = shortBytes): Promise<T> {
    using _limit = this.#limitAnswer(maxBytes);
    return await askServer(commands);
  }

  #limitAnswer(maxBytes: number): AnswerLimit {
    this.#limit = limitAnswer(this.#flow, maxBytes);
    return this.#limit;
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

async function* askEach<T>(items: AsyncIterable<T>): AsyncGenerator<T> {
  try {
    yield* items;
  } catch (error) {
    throw new ServerFailure(describeImapError(error as Error), error);
  }
}

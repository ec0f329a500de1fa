/**
 * What the synchronisation does on a connection to an IMAP server. Guarantees: nothing is changed in the folders that are read
 * (EXAMINE, PEEK); bytes are those of the server; an answer that fills the memory ends the connection.
 */
import type { FoundFolder } from '../store/mailbox-sync.ts';
import type { FolderState, MessageFacts } from './decide.ts';
import {
  type AnswerLimit,
  headerBytes,
  type ImapFlow,
  limitAnswer,
  lineBytes,
  shortBytes,
} from './imap-client.ts';

/** imapflow makes a list of all UIDs of a search, whose short form is `1:4000000000`, and cuts it at the number of messages. */
const maxMessages = 2_000_000;

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

  /** Inbox, and sent, spam and trash as the server marks them (RFC 6154), or else by well-known names. */
  async listFolders(): Promise<FoundFolder[]> {
    const kinds = { '\\Inbox': 'inbox', '\\Sent': 'sent', '\\Junk': 'spam', '\\Trash': 'trash' } as const;
    using _limit = this.#limitAnswer();
    const listed = await this.#flow.list();
    const folders = listed.flatMap(({ path, specialUse, flags }): FoundFolder[] => {
      const kind = kinds[specialUse as keyof typeof kinds];
      return kind && !flags.has('\\Noselect') ? [{ kind, path }] : [];
    });
    return folders.some(({ kind }) => kind === 'inbox')
      ? folders
      : [{ kind: 'inbox', path: 'INBOX' }, ...folders];
  }

  async examine(path: string): Promise<FolderState> {
    using _limit = this.#limitAnswer();
    const { uidValidity, uidNext, exists } = await this.#flow.mailboxOpen(path, { readOnly: true });
    if (exists > maxMessages) throw new Error(`The folder has more than ${maxMessages} messages`);
    // Without a UIDNEXT everything is read, and the INTERNALDATE decides what is new.
    return { uidValidity: Number(uidValidity), uidNext: uidNext || 1, total: exists };
  }

  /** Of a folder that need not be open. */
  async readState(path: string): Promise<FolderState> {
    using _limit = this.#limitAnswer();
    const status = await this.#flow.status(path, { messages: true, uidNext: true, uidValidity: true });
    const { uidValidity = 0, uidNext = 1, messages = 0 } = status || {};
    return { uidValidity: Number(uidValidity), uidNext, total: messages };
  }

  /** UIDs of the open folder, lowest first. `since`: only mail with this date of arrival or a later one. */
  async search(uids: string, since: Date | null): Promise<number[]> {
    using _limit = this.#limitAnswer(2 * lineBytes);
    const found = await this.#flow.search(since ? { uid: uids, since } : { uid: uids }, { uid: true });
    if (!found) throw new Error('The server did not search the folder');
    return found.sort((one, other) => one - other);
  }

  /** One after the other, in the order of the server, and without messages that were deleted meanwhile. */
  async *readHeaders(uids: readonly number[]): AsyncGenerator<MessageFacts> {
    using limit = this.#limitAnswer(headerBytes);
    const wanted = new Set(uids);
    const query = { uid: true, internalDate: true, size: true, headers: true };
    const fetched = this.#flow.fetch(uids.join(), query, { uid: true });
    for await (const { uid, internalDate, size, headers } of fetched) {
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
    for await (const { uid, source } of fetched) if (source && uids.includes(uid)) found.set(uid, source);
    return found;
  }

  #limitAnswer(maxBytes = shortBytes): AnswerLimit {
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

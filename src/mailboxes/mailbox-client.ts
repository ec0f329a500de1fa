/**
 * What the synchronisation does on a connection to an IMAP server. Guarantees: nothing is changed in the folders that are read
 * (EXAMINE, PEEK), except that copies are appended; bytes are those of the server; what fails is a
 * `ServerFailure`.
 */
import type { FoundFolder } from '../store/mailbox-sync.ts';
import type { FolderState, MessageFacts } from './decide.ts';
import { askServer, type FetchMessageObject, type FetchQueryObject, type ImapFlow } from './imap-client.ts';

export class MailboxClient {
  readonly #flow: ImapFlow;
  #isIdling = false;

  constructor(flow: ImapFlow, on: { news(): void; closed(): void }) {
    this.#flow = flow;
    flow.on('exists', () => on.news());
    flow.on('close', () => on.closed());
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
    const listed = await askServer(() => this.#flow.list());
    const folders = listed.flatMap(({ path, specialUse, flags }): FoundFolder[] => {
      const kind = kinds[specialUse as keyof typeof kinds];
      return kind && !flags.has('\\Noselect') ? [{ kind, path }] : [];
    });
    return folders.some(({ kind }) => kind === 'inbox')
      ? folders
      : [{ kind: 'inbox', path: 'INBOX' }, ...folders];
  }

  async examine(path: string): Promise<FolderState> {
    const opened = await askServer(() => this.#flow.mailboxOpen(path, { readOnly: true }));
    const { uidValidity, uidNext, exists } = opened;
    // Without a UIDNEXT everything is read, and the INTERNALDATE decides what is new.
    return { uidValidity: Number(uidValidity), uidNext: uidNext || 1, total: exists };
  }

  /** Of a folder that need not be open. */
  async readState(path: string): Promise<FolderState> {
    const wanted = { messages: true, uidNext: true, uidValidity: true };
    const status = await askServer(() => this.#flow.status(path, wanted));
    const { uidValidity = 0, uidNext = 1, messages = 0 } = status || {};
    return { uidValidity: Number(uidValidity), uidNext, total: messages };
  }

  /** UIDs of the open folder, lowest first. `since`: only mail with this date of arrival or a later one. */
  async search(uids: string, since: Date | null): Promise<number[]> {
    const found = await askServer(async () => {
      const answer = await this.#flow.search(since ? { uid: uids, since } : { uid: uids }, { uid: true });
      if (!answer) throw new Error('The server did not search the folder');
      return answer;
    });
    return found.sort((one, other) => one - other);
  }

  /** Without messages that were deleted meanwhile. Lowest UID first. */
  async readHeaders(uids: readonly number[]): Promise<MessageFacts[]> {
    const found = await this.#fetch(uids, { uid: true, internalDate: true, size: true, headers: true });
    const facts = found.map(({ uid, internalDate, size, headers }) => ({
      uid,
      receivedAt: new Date(internalDate ?? 0),
      size: size ?? 0,
      header: headers ?? Buffer.alloc(0),
    }));
    return facts.sort((one, other) => one.uid - other.uid);
  }

  async readMessages(uids: readonly number[]): Promise<Map<number, Buffer>> {
    if (uids.length === 0) return new Map();
    const found = await this.#fetch(uids, { uid: true, source: true });
    return new Map(found.flatMap(({ uid, source }) => (source ? [[uid, source]] : [])));
  }

  #fetch(uids: readonly number[], query: FetchQueryObject): Promise<FetchMessageObject[]> {
    return askServer(async () => {
      const found: FetchMessageObject[] = [];
      for await (const one of this.#flow.fetch(uids.join(), query, { uid: true })) found.push(one);
      return found;
    });
  }

  /** As a message that was read. No folder is open afterwards. */
  append(path: string, raw: Buffer): Promise<void> {
    return askServer(async () => {
      // While a folder is open, imapflow sets only the flags that can be changed there: none, after EXAMINE.
      if (this.#flow.mailbox) await this.#flow.mailboxClose();
      const appended = await this.#flow.append(path, raw, ['\\Seen']);
      if (!appended) throw new Error('The connection has ended');
    });
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

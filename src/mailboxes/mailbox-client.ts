/**
 * What the synchronisation does on a connection to an IMAP server. Guarantees: nothing is changed in the folders that are read
 * (EXAMINE, PEEK); bytes are those of the server.
 */
import type { FoundFolder } from '../store/mailbox-sync.ts';
import type { FolderState, MessageFacts } from './decide.ts';
import type { ImapFlow } from './imap-client.ts';

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

  /** Inbox, and sent, spam and trash as the server marks them (RFC 6154), or else by well-known names. */
  async listFolders(): Promise<FoundFolder[]> {
    const kinds = { '\\Inbox': 'inbox', '\\Sent': 'sent', '\\Junk': 'spam', '\\Trash': 'trash' } as const;
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
    const { uidValidity, uidNext, exists } = await this.#flow.mailboxOpen(path, { readOnly: true });
    // Without a UIDNEXT everything is read, and the INTERNALDATE decides what is new.
    return { uidValidity: Number(uidValidity), uidNext: uidNext || 1, total: exists };
  }

  /** Of a folder that need not be open. */
  async readState(path: string): Promise<FolderState> {
    const status = await this.#flow.status(path, { messages: true, uidNext: true, uidValidity: true });
    const { uidValidity = 0, uidNext = 1, messages = 0 } = status || {};
    return { uidValidity: Number(uidValidity), uidNext, total: messages };
  }

  /** UIDs of the open folder, lowest first. `since`: only mail with this date of arrival or a later one. */
  async search(uids: string, since: Date | null): Promise<number[]> {
    const found = await this.#flow.search(since ? { uid: uids, since } : { uid: uids }, { uid: true });
    if (!found) throw new Error('The server did not search the folder');
    return found.sort((one, other) => one - other);
  }

  /** Without messages that were deleted meanwhile. Lowest UID first. */
  async readHeaders(uids: readonly number[]): Promise<MessageFacts[]> {
    const facts: MessageFacts[] = [];
    const query = { uid: true, internalDate: true, size: true, headers: true };
    for await (const { uid, internalDate, size, headers } of this.#flow.fetch(uids.join(), query, {
      uid: true,
    }))
      facts.push({
        uid,
        receivedAt: new Date(internalDate ?? 0),
        size: size ?? 0,
        header: headers ?? Buffer.alloc(0),
      });
    return facts.sort((one, other) => one.uid - other.uid);
  }

  async readMessages(uids: readonly number[]): Promise<Map<number, Buffer>> {
    const found = new Map<number, Buffer>();
    if (uids.length === 0) return found;
    for await (const { uid, source } of this.#flow.fetch(
      uids.join(),
      { uid: true, source: true },
      { uid: true },
    ))
      if (source) found.set(uid, source);
    return found;
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

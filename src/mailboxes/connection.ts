/**
 * The connection to the mailbox of one identity: logs in, reads what is new in each folder, then waits for the server's notice (IDLE)
 * or the next check. Older mail is read in small pieces between two checks for new mail. Ends at the first failure: the lease is given
 * back with the time of the next try.
 */
import { isUnavailable, type Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import { type Loop, startLoop } from '../lib/loop.ts';
import type { SharedMemory } from '../lib/shared-memory.ts';
import { type ClaimedConnection, type LeasedConnection, serverKeyOf } from '../store/imap-connections.ts';
import {
  MailboxGone,
  noteFolders,
  noteMailbox,
  type Position,
  readRules,
  type SyncRules,
} from '../store/mailbox-sync.ts';
import { appendCopies } from './append-copies.ts';
import { type FolderState, keepsSentMail, startPosition } from './decide.ts';
import { ServerFailure } from './imap-failure.ts';
import { type LoginParts, logIn } from './login.ts';
import { type AnswerMemory, MailboxClient } from './mailbox-client.ts';
import { FolderReader, type ReadParts } from './read-folder.ts';

export interface ConnectionParts extends Omit<ReadParts, 'memory'> {
  sql: Sql;
  log: Log;
  accounts: LoginParts;
  /** The mailbox was read. */
  onRead(): Promise<void>;
  /** Called once, when the connection has ended. Undefined: it was closed. */
  onEnd(error: unknown): void;
  /** How often the folders without IDLE are checked. */
  checkMs: number;
  /** After a notice of the server that brought no mail, the next one is read so much later: false notices must cost little. */
  emptyReadMs: number;
  /** Divided among the owners. */
  memory: SharedMemory;
}

const databaseAwayMs = 1000;

interface Login {
  client: MailboxClient;
  host: string;
  serverKey: string;
}

interface Folders {
  /** Where copies of sent messages go; null: the server keeps them by itself, or has no such folder. */
  copyPath: string | null;
  readers: FolderReader[];
  rules: SyncRules;
}

export class MailboxConnection {
  readonly identityId: string;
  /** The token of the lease. */
  readonly token: string;
  readonly #parts: ConnectionParts;
  readonly #claimed: ClaimedConnection;
  readonly #loop: Loop;
  readonly #closing = new AbortController();
  /** The memory of the owner. */
  readonly #memory: AnswerMemory;
  #login: Login | null = null;
  #folders: Folders | null = null;
  #leased: Pick<LeasedConnection, 'requests' | 'scan'>;
  /** When all folders are checked next. */
  #checkAt = 0;
  #hasNews = false;
  /** Notices of the server are not read before. */
  #newsAt = 0;
  /** Folders that are left alone until the next check: the server refused them, or numbers them anew again and again. */
  readonly #postponed = new Set<FolderReader>();
  #hasCopies = false;
  #hasEnded = false;

  constructor(parts: ConnectionParts, claimed: ClaimedConnection) {
    this.#parts = parts;
    this.#claimed = claimed;
    this.identityId = claimed.identityId;
    this.token = claimed.token;
    this.#leased = claimed;
    const { memory } = parts;
    const { ownerId } = claimed;
    this.#memory = {
      take: (bytes) => memory.take(ownerId, bytes, this.#closing.signal),
      read: (bytes, read) => memory.read(ownerId, bytes, read),
    };
    this.#loop = startLoop({
      name: 'reading a mailbox',
      pollMs: parts.checkMs,
      log: parts.log,
      isTransient: isUnavailable,
      work: () => this.#work(),
    });
  }

  /** What the database says of this connection. */
  note(leased: LeasedConnection): void {
    if (leased.hasCopies) {
      this.#hasCopies = true;
      this.#loop.wake();
    }
    if (leased.requests === this.#leased.requests && leased.scan === this.#leased.scan) return;
    this.#leased = leased;
    this.#checkAt = 0;
    this.#loop.wake();
  }

  async close(): Promise<void> {
    this.#hasEnded = true;
    this.#closing.abort();
    this.#login?.client.close();
    await this.#loop.stop();
  }

  async #work(): Promise<boolean | number> {
    if (this.#hasEnded) return false;
    try {
      return await this.#check();
    } catch (error) {
      if (!isUnavailable(error)) {
        this.#end(error);
        return false;
      }
      // Nothing is wrong with the mailbox.
      this.#checkAt = 0;
      return databaseAwayMs;
    }
  }

  #end(error: unknown): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#login?.client.close();
    this.#parts.onEnd(error);
  }

  async #check(): Promise<boolean | number> {
    const login = this.#login ?? (await this.#logIn());
    // Apart from the login: the database may become unavailable between them.
    const folders = this.#folders ?? (await this.#findFolders(login));
    // The rules change only together with `scan`, which only grows. Another request may come while they are read.
    while (!this.#hasEnded && folders.rules.scan < this.#leased.scan)
      folders.rules = await readRules(this.#parts.sql, this.#claimed);
    const { client } = login;
    const { readers, copyPath, rules } = folders;
    const [inbox, ...others] = readers;
    if (!inbox) return this.#parts.checkMs;
    const isDue = performance.now() >= this.#checkAt;
    if (isDue) {
      this.#hasNews = false;
      this.#postponed.clear();
      this.#checkAt = performance.now() + this.#parts.checkMs;
      await this.#openFolder(client, inbox, rules);
      await this.#readNew(client, inbox, rules);
      let isInboxOpen = true;
      for (const reader of others) if (await this.#checkOther(client, reader, rules)) isInboxOpen = false;
      if (!isInboxOpen) await this.#reopenInbox(client, inbox, rules);
      await this.#parts.onRead();
    } else if (this.#hasNews && performance.now() >= this.#newsAt) {
      this.#hasNews = false;
      const count = await this.#readNew(client, inbox, rules);
      if (count === 0) this.#newsAt = performance.now() + this.#parts.emptyReadMs;
    }
    if (this.#hasCopies) {
      this.#hasCopies = false;
      const { sql, log } = this.#parts;
      await appendCopies({ sql, log, memory: this.#memory }, client, this.#claimed, copyPath);
      await this.#reopenInbox(client, inbox, rules);
    }
    const behind = readers.find((reader) => reader.position.older !== null && !this.#postponed.has(reader));
    if (behind) {
      await this.#readOlder(client, behind, inbox, rules);
      return true;
    }
    const now = performance.now();
    if (this.#hasNews && now >= this.#newsAt) return true;
    client.startIdle();
    return Math.max(0, (this.#hasNews ? Math.min(this.#checkAt, this.#newsAt) : this.#checkAt) - now);
  }

  async #logIn(): Promise<Login> {
    const on = {
      news: () => {
        this.#hasNews = true;
        this.#loop.wake();
      },
      closed: (failure: Error) => this.#end(failure),
    };
    const { accounts } = this.#parts;
    const imap = { ...accounts.imap, signal: this.#closing.signal };
    const found = await logIn({ ...accounts, imap }, this.#claimed);
    if (!found) throw new MailboxGone();
    if ('error' in found) throw new ServerFailure(found.error);
    const client = new MailboxClient(found.client, this.#memory, on);
    const { server } = found;
    this.#login = { client, host: server.host, serverKey: serverKeyOf(server) };
    if (this.#hasEnded) client.close();
    return this.#login;
  }

  async #findFolders({ client, host, serverKey }: Login): Promise<Folders> {
    const found = await client.listFolders();
    const sent = found.find(({ kind }) => kind === 'sent');
    const copyPath = sent && !keepsSentMail(host, client.hasGmailExtension) ? sent.path : null;
    const { rules, positions } = await noteFolders(this.#parts.sql, this.#claimed, serverKey, found);
    const parts = { ...this.#parts, memory: this.#memory };
    const readers = positions.map((position) => new FolderReader(parts, client, this.#claimed, position));
    this.#folders = { copyPath, readers, rules };
    return this.#folders;
  }

  /** Returns whether the folder was opened. */
  async #checkOther(client: MailboxClient, reader: FolderReader, rules: SyncRules): Promise<boolean> {
    return (await this.#unlessRefused(reader, () => this.#checkFolder(client, reader, rules))) ?? true;
  }

  /** A folder that the server refuses is shown as failing, and left alone until the next check. The result is then undefined. */
  async #unlessRefused<T>(reader: FolderReader, work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof ServerFailure && error.isFolderRefused)) throw error;
      this.#postponed.add(reader);
      const shown = { isSyncing: false, total: null, error: error.error };
      await noteMailbox(this.#parts.sql, this.#claimed.ownerId, reader.position.mailboxId, shown);
      return undefined;
    }
  }

  async #checkFolder(client: MailboxClient, reader: FolderReader, rules: SyncRules): Promise<boolean> {
    const { path, uidValidity, nextUid, scan } = reader.position;
    const state = await client.readState(path);
    const isSame = state.uidValidity === uidValidity && state.uidNext === nextUid && scan === rules.scan;
    if (isSame) {
      await this.#noteRead(reader, state.total);
      return false;
    }
    await this.#openFolder(client, reader, rules);
    await this.#readNew(client, reader, rules);
    return true;
  }

  async #reopenInbox(client: MailboxClient, inbox: FolderReader, rules: SyncRules): Promise<void> {
    // The server announced nothing of the inbox while it was not open. A server that tells no UIDNEXT may have new mail.
    const { uidNext } = await this.#openFolder(client, inbox, rules);
    if (uidNext === null || uidNext > inbox.position.nextUid) this.#hasNews = true;
  }

  /** `isAnew`: reading starts anew in the folder. */
  async #openFolder(
    client: MailboxClient,
    reader: FolderReader,
    { scan }: SyncRules,
  ): Promise<FolderState & { isAnew: boolean }> {
    const state = await client.examine(reader.position.path);
    const start = startPosition(reader.position, state, scan);
    if (start) await reader.start(start, state.total);
    return { ...state, isAnew: start !== null };
  }

  /** The folder is open. Returns how many messages were found. */
  async #readNew(client: MailboxClient, reader: FolderReader, rules: SyncRules): Promise<number> {
    const count = await reader.readNew(rules);
    await this.#noteRead(reader, client.total);
    return count;
  }

  /** A piece of it. New mail in the inbox comes first. */
  async #readOlder(
    client: MailboxClient,
    reader: FolderReader,
    inbox: FolderReader,
    rules: SyncRules,
  ): Promise<void> {
    const isOther = reader !== inbox;
    await this.#unlessRefused(reader, async () => {
      // A server that numbers the folder anew each time it is opened would keep the connection busy for ever.
      if (isOther && (await this.#openFolder(client, reader, rules)).isAnew) this.#postponed.add(reader);
      await reader.readOlder(rules);
      await this.#noteRead(reader, null);
    });
    if (isOther) await this.#reopenInbox(client, inbox, rules);
  }

  async #noteRead({ position }: { position: Position }, total: number | null): Promise<void> {
    const { sql } = this.#parts;
    const isSyncing = position.older !== null;
    await noteMailbox(sql, this.#claimed.ownerId, position.mailboxId, { isSyncing, total });
  }
}

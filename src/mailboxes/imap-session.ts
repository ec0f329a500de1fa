/**
 * One connection to an IMAP server, in a thread. Guarantees: nothing is changed in the folders that are read (EXAMINE, PEEK), except
 * that copies are appended; bytes are those of the server; what fails is a value (`ImapFailure`); at any time there is a limit to what
 * the server can send. The main thread has taken the memory for an answer before it asks for it.
 */
import { messageKey } from '../contract/thread.ts';
import { readFields } from '../mime/headers.ts';
import { readFirstId } from '../mime/message-ids.ts';
import { type HideSecrets, hideSecrets } from '../net/hide-secrets.ts';
import { describeServerError, type ServerError } from '../net/mail-server.ts';
import type { FoundFolder } from '../store/mailbox-sync.ts';
import {
  answerBytes,
  foldersBytes,
  maxFound,
  searchBytes,
  shortBytes,
  usualHeaderBytes,
} from './answer-limits.ts';
import { type FolderState, fingerprintOf, readInternalDate } from './decide.ts';
import { describeFailure, type ImapFlow, Intake, makeImapFlow } from './imap-client.ts';
import { type ImapFailure, ServerFailure } from './imap-failure.ts';
import type { ImapCommands, KnownFacts, OpenOptions, SearchQuery, UnreadFacts } from './imap-messages.ts';

/** A larger folder is not read: it would take more searches and time than one mailbox may have. */
const maxMessages = 2_000_000;
/** Of a header. */
const maxFields = 1000;

interface SessionEvents {
  news(): void;
  /** May be called again. */
  closed(failure: ImapFailure): void;
}

export class ImapSession implements ImapCommands {
  readonly #flow: ImapFlow;
  readonly #on: SessionEvents;
  readonly #intake = new Intake();
  readonly #hide: HideSecrets;
  #isOpen = false;
  #isIdling = false;
  #hasToldNews = false;
  /** Why this side closed the connection. */
  #closedFor: Error | null = null;

  constructor(options: OpenOptions, on: SessionEvents) {
    const flow = makeImapFlow(options, this.#intake);
    this.#flow = flow;
    this.#hide = hideSecrets(Object.values(options.login));
    this.#on = on;
    flow.on('exists', ({ count }) => {
      if (count > maxMessages) this.#closeFor(tooManyMessages());
      else if (!this.#hasToldNews) {
        this.#hasToldNews = true;
        on.news();
      }
    });
    flow.on('close', () => {
      // Until then `open` fails, for the better reason.
      if (this.#isOpen) on.closed(this.describeFailure(new Error('The server closed the connection')));
    });
    // Without a listener the thread would end. What fails is reported to whoever waits for it.
    flow.on('error', () => {});
  }

  /** Connects and logs in. */
  async open(loginMs: number): Promise<void> {
    const timer = setTimeout(
      () => this.#closeFor(new ServerFailure(describeServerError('timeout'))),
      loginMs,
    );
    try {
      await this.#flow.connect();
      if (!this.#flow.usable) throw connectionEnded();
      this.#isOpen = true;
      this.#intake.limit(shortBytes);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Why the connection was closed, or else why a command failed. */
  describeFailure(error: unknown): ImapFailure {
    return describeFailure(this.#closedFor ?? this.#intake.excess ?? error, this.#hide);
  }

  /** Of the thread's time, since the connection was opened. */
  get costMs(): number {
    return this.#intake.costMs;
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
    const listed = await this.#limited(foldersBytes, () => this.#flow.list());
    const folders = listed.flatMap(({ path, specialUse, flags }): FoundFolder[] => {
      const kind = kinds[specialUse as keyof typeof kinds];
      return kind && !flags.has('\\Noselect') ? [{ kind, path }] : [];
    });
    return folders.some(({ kind }) => kind === 'inbox')
      ? folders
      : [{ kind: 'inbox', path: 'INBOX' }, ...folders];
  }

  async examine(path: string): Promise<FolderState> {
    const opened = await this.#limited(shortBytes, () => this.#flow.mailboxOpen(path, { readOnly: true }));
    const { uidValidity, uidNext, exists } = opened;
    return checkState({ uidValidity: Number(uidValidity), uidNext: uidNext || null, total: exists });
  }

  /** Of a folder that need not be open. */
  async readState(path: string): Promise<FolderState> {
    const wanted = { messages: true, uidNext: true, uidValidity: true };
    const status = await this.#limited(shortBytes, () => this.#flow.status(path, wanted));
    const { uidValidity = 0, uidNext = null, messages = 0 } = status || {};
    return checkState({ uidValidity: Number(uidValidity), uidNext, total: messages });
  }

  /** UIDs of the open folder, lowest first. */
  async search(query: SearchQuery): Promise<Uint32Array> {
    const found = await this.#limited(searchBytes, async () => {
      const answer = await this.#flow.search(query, { uid: true });
      this.#requireOpenFolder();
      // imapflow hides the reply of the server.
      if (!answer) throw new ServerFailure(notSearched, { isFolderRefused: true });
      return answer;
    });
    if (found.length > maxFound) throw new Error(`The server found more than ${maxFound} messages`);
    return Uint32Array.from(found).sort();
  }

  /** Of the headers, which can be long, only what they are known by is kept. */
  readHeaders(
    uids: readonly number[],
    { maxMessageBytes, wantsKeys }: { maxMessageBytes: number; wantsKeys: boolean },
  ): Promise<{ known: KnownFacts[]; long: UnreadFacts[] }> {
    const wanted = new Set(uids);
    const known: KnownFacts[] = [];
    const long: UnreadFacts[] = [];
    const part = { key: 'HEADER', start: 0, maxLength: usualHeaderBytes };
    const query = { uid: true, internalDate: true, size: true, bodyParts: [part] };
    return this.#limited(answerBytes(usualHeaderBytes), async () => {
      const fetched = this.#flow.fetch(uids.join(), query, { uid: true });
      for await (const { uid, internalDate, size = 0, headers } of fetched) {
        if (!wanted.delete(uid)) continue;
        this.#intake.restart();
        const facts = { uid, receivedAt: readInternalDate(internalDate), size };
        const header = headers ?? Buffer.alloc(0);
        if (header.length >= usualHeaderBytes && size <= maxMessageBytes) long.push(facts);
        else known.push(knowBy(facts, header, wantsKeys));
      }
      this.#requireOpenFolder();
      return { known, long };
    });
  }

  readLongHeader(facts: UnreadFacts, { wantsKeys }: { wantsKeys: boolean }): Promise<KnownFacts | null> {
    const { uid, size } = facts;
    return this.#limited(answerBytes(size), async () => {
      const query = { uid: true, headers: true };
      const { headers } = (await this.#flow.fetchOne(String(uid), query, { uid: true })) || {};
      this.#requireOpenFolder();
      return headers ? knowBy(facts, headers, wantsKeys) : null;
    });
  }

  readMessages(uids: readonly number[], bytes: number): Promise<{ uid: number; raw: Uint8Array }[]> {
    const found = new Map<number, Uint8Array>();
    return this.#limited(answerBytes(bytes), async () => {
      const fetched = this.#flow.fetch(uids.join(), { uid: true, source: true }, { uid: true });
      for await (const { uid, source } of fetched)
        if (source && uids.includes(uid)) found.set(uid, ownMemory(source));
      this.#requireOpenFolder();
      return [...found].map(([uid, raw]) => ({ uid, raw }));
    });
  }

  /** As a message that was read. No folder is open afterwards. */
  append(path: string, { buffer, byteOffset, length }: Uint8Array): Promise<void> {
    return this.#limited(shortBytes, async () => {
      // While a folder is open, imapflow sets only the flags that can be changed there: none, after EXAMINE.
      if (this.#flow.mailbox) await this.#flow.mailboxClose();
      const raw = Buffer.from(buffer, byteOffset, length);
      if (!(await this.#flow.append(path, raw, ['\\Seen']))) throw connectionEnded();
    });
  }

  logOut(): Promise<void> {
    return this.#flow.logout();
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

  /** The main thread waits for `closed`, also if the session was not open yet. */
  close(): void {
    this.#flow.close();
    this.#on.closed(this.describeFailure(connectionEnded()));
  }

  #closeFor(reason: Error): void {
    this.#closedFor ??= reason;
    this.#flow.close();
  }

  /**
   * The open folder. Checked after each command in the folder: when the connection has ended, imapflow answers as if the folder had no
   * such mail, and mail that is missing counts as deleted.
   */
  #requireOpenFolder() {
    if (!this.#flow.mailbox) throw connectionEnded();
  }

  /** `maxBytes`: of all answers to these commands. */
  async #limited<T>(maxBytes: number, commands: () => Promise<T>): Promise<T> {
    this.#hasToldNews = false;
    this.#intake.limit(maxBytes);
    try {
      return await commands();
    } finally {
      this.#intake.limit(shortBytes);
    }
  }
}

function knowBy(facts: UnreadFacts, header: Buffer, wantsKeys: boolean): KnownFacts {
  const fingerprint = fingerprintOf({ ...facts, header });
  return { ...facts, fingerprint, key: wantsKeys ? readKey(header) : null };
}

function readKey(header: Buffer): string | null {
  const field = readFields(header, maxFields).find(({ name }) => name.toLowerCase() === 'message-id');
  const id = field && readFirstId(field.value, { isAlone: true });
  return id === undefined ? null : messageKey(id);
}

/** Only memory that nothing else is in can be transferred. Node keeps small buffers together. */
function ownMemory(bytes: Buffer): Uint8Array {
  return bytes.length === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes);
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
  if (total > maxMessages) throw tooManyMessages();
  if (!Number.isSafeInteger(uidValidity)) throw new Error('The server gives the folder no valid UIDVALIDITY');
  return state;
}

function tooManyMessages(): Error {
  return new Error(`The folder has more than ${maxMessages} messages`);
}

function connectionEnded(): ServerFailure {
  return new ServerFailure(describeServerError('connection_failed', { detail: 'The connection has ended' }));
}

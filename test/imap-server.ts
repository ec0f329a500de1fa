/** An IMAP server for tests, as small as it can be: folders in memory, which a test can change, and every command it got. */
import { once } from 'node:events';
import net, { type AddressInfo, type Socket } from 'node:net';
import { after } from 'node:test';
import tls, { type TlsOptions } from 'node:tls';

interface StoredMail {
  uid: number;
  date: Date;
  raw: Buffer;
}

interface Folder {
  uidValidity: number;
  uidNext: number;
  /** Such as `\Sent` (RFC 6154). */
  use: string | null;
  mails: StoredMail[];
}

export interface ImapServer {
  port: number;
  password: string;
  capabilities: string;
  /** Every command line, without its tag. */
  commands: string[];
  folders: Map<string, Folder>;
  /** It can be listed, and not opened. */
  refusedFolder: string | null;
  /** It can be opened, and not searched. */
  unsearchableFolder: string | null;
  /** Of a server that does not tell which UID the next message gets. */
  hidesUidNext: boolean;
  /** Called with each command, before its answer. */
  onCommand: (command: string) => void;
  /** Called when the server has told a client of new mail. */
  onNews: () => void;
  /** The text that a hostile server sends again and again, instead of an answer to commands that start so. */
  flood: { command: string; text: string } | null;
  /** Commands that start so are not answered. */
  silence: string | null;
  /** The RFC822.SIZE of every message, whatever its bytes. */
  claimedSize: number | null;
  /** FETCH gives no INTERNALDATE. */
  leavesDatesOut: boolean;
  /** How many bytes of it a client took before it went away. All of `maxFlood`: it did not go. */
  flooded: number;
  /** How many connections are logged in. */
  sessions(): number;
  /** Puts a message into a folder, and tells those who wait with IDLE. */
  deliver(path: string, raw: string | Buffer, date?: Date): StoredMail;
  /** Tells those who have the folder open of so many messages, whatever it has. */
  announce(path: string, count: number): void;
  /** As a client moves a message: another folder, another UID, the same date and bytes. */
  move(from: string, to: string, uid: number): void;
  /** As a server that lost its index: another UIDVALIDITY and other UIDs. */
  rebuild(path: string): void;
  /** The next message is cut in its middle, with the connection. */
  cutNextMessage(): void;
  /** The next APPEND is refused with these words. */
  refuseAppend(text: string): void;
  /** Ends all connections. */
  drop(): void;
  stop(): Promise<void>;
}

export const maxFlood = 128 * 1024 * 1024;
const months = 'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split(' ');

/** Stops after the tests of the file. */
export async function startImapServer(password?: string): Promise<ImapServer> {
  const server = await openImapServer(password);
  after(() => server.stop());
  return server;
}

/** Also for the bench. With `options`, TLS from the start. */
export async function openImapServer(password = 'secret', options?: TlsOptions): Promise<ImapServer> {
  const sessions = new Set<Session>();
  const make = (use: string | null): Folder => ({ uidValidity: 1, uidNext: 1, use, mails: [] });
  const folders = new Map([
    ['INBOX', make(null)],
    ['Sent', make('\\Sent')],
    ['Junk', make('\\Junk')],
    ['Trash', make('\\Trash')],
    ['Archive', make(null)],
  ]);
  const state = { cutsNext: false, appendRefusal: null as string | null };
  const folderOf = (path: string) => {
    const folder = folders.get(path);
    if (!folder) throw new Error(`The test server has no folder ${path}`);
    return folder;
  };

  class Session {
    readonly socket: Socket;
    isLoggedIn = false;
    open: { path: string; folder: Folder } | null = null;
    idleTag: string | null = null;
    /** How many messages the client knows of. */
    #told = 0;
    #input = Buffer.alloc(0);
    #append: { tag: string; path: string; bytes: number } | null = null;

    constructor(socket: Socket) {
      this.socket = socket;
      socket.setNoDelay(true);
      socket.on('error', () => {});
      socket.on('close', () => sessions.delete(this));
      socket.on('data', (bytes) => this.#read(bytes));
      this.write(`* OK [CAPABILITY ${server.capabilities}] ready`);
    }

    #flood(text: string): void {
      while (!this.socket.destroyed && server.flooded < maxFlood) {
        server.flooded += text.length;
        if (this.socket.write(text)) continue;
        this.socket.once('drain', () => this.#flood(text));
        return;
      }
      this.socket.destroy();
    }

    write(line: string): void {
      if (!this.socket.destroyed) this.socket.write(`${line}\r\n`);
    }

    /** Messages that came since the client last heard of the folder: also at IDLE and NOOP, as every server does. */
    tellNews(): void {
      const count = this.open?.folder.mails.length ?? 0;
      if (this.open && count > this.#told) {
        this.write(`* ${count} EXISTS`);
        server.onNews();
      }
      this.#told = count;
    }

    #read(bytes: Buffer): void {
      this.#input = Buffer.concat([this.#input, bytes]);
      for (;;) {
        if (this.#append) {
          const { bytes, path, tag } = this.#append;
          if (this.#input.length < bytes + 2) return;
          const raw = Buffer.from(this.#input.subarray(0, bytes));
          this.#input = this.#input.subarray(bytes + 2);
          this.#append = null;
          if (state.appendRefusal !== null) {
            this.write(`${tag} NO ${state.appendRefusal}`);
            state.appendRefusal = null;
          } else {
            server.deliver(path, raw);
            this.write(`${tag} OK APPEND done`);
          }
          continue;
        }
        const end = this.#input.indexOf('\r\n');
        if (end === -1) return;
        const line = this.#input.toString('latin1', 0, end);
        this.#input = this.#input.subarray(end + 2);
        this.#run(line);
      }
    }

    #run(line: string): void {
      if (this.idleTag !== null) {
        this.write(`${this.idleTag} OK IDLE done`);
        this.idleTag = null;
        return;
      }
      const [, tag = '', command = ''] = /^(\S+) (.*)$/.exec(line) ?? [];
      server.commands.push(command);
      server.onCommand(command);
      if (server.flood && command.startsWith(server.flood.command)) {
        this.#flood(server.flood.text);
        return;
      }
      if (server.silence !== null && command.startsWith(server.silence)) return;
      const [name = '', ...rest] = command.split(' ');
      const words = rest.map((word) => word.replace(/^"(.*)"$/, '$1'));
      const path = words[0] ?? '';
      switch (name.toUpperCase()) {
        case 'CAPABILITY':
          this.write(`* CAPABILITY ${server.capabilities}`);
          break;
        case 'LOGIN':
          if (words[1] !== server.password) {
            this.write(`${tag} NO [AUTHENTICATIONFAILED] Wrong password`);
            return;
          }
          this.isLoggedIn = true;
          break;
        case 'LIST':
          // An empty name asks for the separator (RFC 3501 §6.3.8).
          if (words[1] === '') this.write('* LIST (\\Noselect) "/" ""');
          else
            for (const [path, { use }] of folders)
              this.write(`* LIST (\\HasNoChildren${use ? ` ${use}` : ''}) "/" "${path}"`);
          break;
        case 'STATUS': {
          const { mails, uidNext, uidValidity } = folderOf(path);
          const next = server.hidesUidNext ? '' : `UIDNEXT ${uidNext} `;
          this.write(`* STATUS "${path}" (MESSAGES ${mails.length} ${next}UIDVALIDITY ${uidValidity})`);
          break;
        }
        case 'EXAMINE': {
          const folder = folderOf(path);
          if (server.refusedFolder === path) {
            this.write(`${tag} NO [NOPERM] Not for you`);
            return;
          }
          this.open = { path, folder };
          this.#told = folder.mails.length;
          this.write(`* ${folder.mails.length} EXISTS`);
          this.write(`* OK [UIDVALIDITY ${folder.uidValidity}] valid`);
          if (!server.hidesUidNext) this.write(`* OK [UIDNEXT ${folder.uidNext}] next`);
          this.write('* OK [PERMANENTFLAGS ()] read-only');
          this.write(`${tag} OK [READ-ONLY] done`);
          return;
        }
        case 'UID':
          if (words[0] === 'SEARCH' && this.open?.path === server.unsearchableFolder) {
            this.write(`${tag} NO [SERVERBUG] The index is damaged`);
            return;
          }
          if (words[0] === 'SEARCH') this.#search(words.slice(1));
          else if (!this.#fetch(words[1] ?? '', command)) return;
          break;
        case 'IDLE':
          this.idleTag = tag;
          this.write('+ idling');
          this.tellNews();
          return;
        case 'APPEND':
          this.#append = { tag, path, bytes: Number(/\{(\d+)\+?\}$/.exec(command)?.[1]) };
          if (!command.endsWith('+}')) this.write('+ go on');
          return;
        case 'LOGOUT':
          this.write('* BYE');
          this.socket.end(`${tag} OK bye\r\n`);
          return;
        case 'NOOP':
          this.tellNews();
          break;
        case 'CLOSE':
          this.open = null;
          break;
        case 'LSUB':
          break;
        default:
          this.write(`${tag} BAD unknown command`);
          return;
      }
      this.write(`${tag} OK done`);
    }

    #search(words: string[]): void {
      const range = words[words.indexOf('UID') + 1] ?? '1:*';
      const since = words.includes('SINCE') ? new Date(`${words[words.indexOf('SINCE') + 1]} UTC`) : null;
      const places = /^(\d+):(\d+|\*)$/.exec(words[0] ?? '');
      const last = places?.[2] === '*' ? undefined : places?.[2];
      const among = new Set(
        this.open?.folder.mails.slice(Number(places?.[1] ?? 1) - 1, Number(last ?? 2 ** 32)),
      );
      const found = this.#select(range).filter((mail) => among.has(mail) && (!since || mail.date >= since));
      this.write(`* SEARCH${found.map(({ uid }) => ` ${uid}`).join('')}`);
    }

    /** False: the connection was cut. */
    #fetch(range: string, command: string): boolean {
      const mails = this.open?.folder.mails ?? [];
      for (const mail of this.#select(range)) {
        const end = mail.raw.indexOf('\r\n\r\n');
        const header = end === -1 ? mail.raw : mail.raw.subarray(0, end + 4);
        const wantsAll = command.includes('BODY.PEEK[]');
        const part = /<0\.(\d+)>/.exec(command);
        const [name, literal] = wantsAll
          ? ['BODY[]', mail.raw]
          : part
            ? ['BODY[HEADER]<0>', header.subarray(0, Number(part[1]))]
            : ['BODY[HEADER]', header];
        const size = server.claimedSize ?? mail.raw.length;
        const date = server.leavesDatesOut ? '' : ` INTERNALDATE "${writeDate(mail.date)}"`;
        const facts = `UID ${mail.uid} RFC822.SIZE ${size}${date}`;
        this.socket.write(`* ${mails.indexOf(mail) + 1} FETCH (${facts} ${name} {${literal.length}}\r\n`);
        if (wantsAll && state.cutsNext) {
          state.cutsNext = false;
          this.socket.write(literal.subarray(0, literal.length / 2));
          this.socket.destroySoon();
          return false;
        }
        this.socket.write(literal);
        this.write(')');
      }
      return true;
    }

    #select(range: string): StoredMail[] {
      const mails = this.open?.folder.mails ?? [];
      const last = mails.at(-1)?.uid ?? 0;
      const spans = range.split(',').map((span) => {
        const [from, to = from] = span.split(':').map((word) => (word === '*' ? last : Number(word)));
        return [Math.min(from ?? 0, to ?? 0), Math.max(from ?? 0, to ?? 0)] as const;
      });
      return mails.filter(({ uid }) => spans.some(([from, to]) => uid >= from && uid <= to));
    }
  }

  const serve = (socket: Socket) => sessions.add(new Session(socket));
  const listener = options ? tls.createServer(options, serve) : net.createServer(serve);
  const server: ImapServer = {
    port: 0,
    password,
    capabilities: 'IMAP4rev1 IDLE SPECIAL-USE',
    commands: [],
    folders,
    refusedFolder: null,
    unsearchableFolder: null,
    hidesUidNext: false,
    onCommand: () => {},
    onNews: () => {},
    flood: null,
    silence: null,
    claimedSize: null,
    leavesDatesOut: false,
    flooded: 0,
    sessions: () => [...sessions].filter(({ isLoggedIn }) => isLoggedIn).length,
    deliver(path, raw, date = new Date()) {
      const folder = folderOf(path);
      const mail = { uid: folder.uidNext, date, raw: Buffer.from(raw) };
      folder.uidNext += 1;
      folder.mails.push(mail);
      for (const session of sessions)
        if (session.open?.folder === folder && session.idleTag !== null) session.tellNews();
      return mail;
    },
    announce(path, count) {
      const folder = folderOf(path);
      for (const session of sessions) if (session.open?.folder === folder) session.write(`* ${count} EXISTS`);
    },
    move(from, to, uid) {
      const folder = folderOf(from);
      const mail = folder.mails.find((one) => one.uid === uid);
      if (!mail) throw new Error(`There is no message ${uid} in ${from}`);
      folder.mails.splice(folder.mails.indexOf(mail), 1);
      server.deliver(to, mail.raw, mail.date);
    },
    rebuild(path) {
      const folder = folderOf(path);
      folder.uidValidity += 1;
      folder.mails.reverse();
      for (const [n, mail] of folder.mails.entries()) mail.uid = n + 1;
      folder.uidNext = folder.mails.length + 1;
    },
    cutNextMessage() {
      state.cutsNext = true;
    },
    refuseAppend(text) {
      state.appendRefusal = text;
    },
    drop() {
      for (const { socket } of sessions) socket.destroy();
    },
    async stop() {
      server.drop();
      listener.close();
      await once(listener, 'close');
    },
  };
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  server.port = (listener.address() as AddressInfo).port;
  return server;
}

function writeDate(date: Date): string {
  if (Number.isNaN(date.getTime())) return 'never';
  const two = (value: number) => String(value).padStart(2, '0');
  const day = `${two(date.getUTCDate())}-${months[date.getUTCMonth()]}-${date.getUTCFullYear()}`;
  return `${day} ${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())} +0000`;
}

/**
 * A mail server of the test's own on a raw socket, which answers each command as the test says. It shares no code with src/, so
 * that the bytes it notes are what was on the wire.
 */
import { once } from 'node:events';
import net, { type AddressInfo, type Socket } from 'node:net';
import { after } from 'node:test';
import tls from 'node:tls';

interface SinkMail {
  /** The commands of the transaction. */
  mail: string;
  rcpt: string;
  /** Without dot-stuffing; one character for each byte. */
  raw: string;
  /** The number of the connection, counted from 1. */
  connection: number;
  isSecure: boolean;
}

interface Peer {
  socket: Socket;
  /** Writes a line, with CRLF. */
  say(line: string): void;
  /** What came after the command that is being answered. */
  unread: string;
  /** How often this step was answered before, in all connections. */
  times: number;
}

/** A reply, or what to do instead. */
export type Behaviour = string | ((peer: Peer) => void);

/** `connect` is the greeting, `body` the first bytes after 354, `.` the end of data, `text` a line of AUTH. */
export type Step =
  | ('connect' | 'EHLO' | 'HELO' | 'STARTTLS' | 'AUTH' | 'text' | 'MAIL' | 'RCPT' | 'DATA' | 'body' | '.')
  | ('RSET' | 'QUIT');

export interface Sink {
  port: number;
  mails: SinkMail[];
  /** Every command line, of all connections. */
  commands: string[];
  behave(step: Step, ...behaviours: Behaviour[]): void;
  connections(): number;
  openConnections(): number;
  /** Resolves when so many commands that match have come. */
  got(pattern: RegExp, count?: number): Promise<void>;
  close(): Promise<void>;
}

const standard: Record<Step, string> = {
  connect: '220 sink.example ESMTP',
  EHLO: '',
  HELO: '250 sink.example',
  STARTTLS: '220 2.0.0 Go ahead',
  AUTH: '235 2.7.0 Welcome',
  text: '235 2.7.0 Welcome',
  MAIL: '250 2.1.0 Ok',
  RCPT: '250 2.1.5 Ok',
  DATA: '354 Go ahead',
  body: '',
  '.': '250 2.0.0 Taken',
  RSET: '250 2.0.0 Ok',
  QUIT: '221 2.0.0 Bye',
};

export async function startSink(
  options: {
    extensions?: readonly string[];
    tls?: tls.TlsOptions;
    isImplicitTls?: boolean;
    host?: string;
    port?: number;
  } = {},
): Promise<Sink> {
  const { extensions = ['PIPELINING', '8BITMIME', 'SMTPUTF8', 'SIZE 50000000'], host = '127.0.0.1' } =
    options;
  const table = new Map<Step, Behaviour[]>();
  const counts = new Map<Step, number>();
  const sockets = new Set<Socket>();
  const waiting = new Set<() => void>();
  const mails: SinkMail[] = [];
  const commands: string[] = [];
  let connections = 0;

  function serve(plain: Socket): void {
    connections += 1;
    const connection = connections;
    let socket = plain;
    let isSecure = options.isImplicitTls ?? false;
    let unread = '';
    let step: 'command' | 'data' | 'login' = 'command';
    let mail = '';
    let rcpt = '';

    const say = (text: string) => {
      if (!socket.destroyed) socket.write(`${text}\r\n`, 'latin1');
    };
    function act(name: Step, fallback = standard[name]): string | null {
      const behaviours = table.get(name) ?? [];
      const behaviour = (behaviours.length > 1 ? behaviours.shift() : behaviours[0]) ?? fallback;
      const times = counts.get(name) ?? 0;
      counts.set(name, times + 1);
      if (typeof behaviour === 'string') {
        if (behaviour !== '') say(behaviour);
        return behaviour;
      }
      behaviour({ socket, say, unread, times });
      return null;
    }
    function hello(): string {
      const offers = [...extensions, ...(options.tls && !isSecure ? ['STARTTLS'] : [])];
      const lines = ['sink.example', ...offers];
      return lines.map((line, n) => `250${n === lines.length - 1 ? ' ' : '-'}${line}`).join('\r\n');
    }
    function command(line: string): void {
      commands.push(line);
      for (const look of waiting) look();
      const verb = line.split(' ')[0]?.toUpperCase() ?? '';
      if (verb === 'EHLO') act('EHLO', hello());
      else if (verb === 'MAIL') {
        mail = line;
        act('MAIL');
      } else if (verb === 'RCPT') {
        rcpt = line;
        act('RCPT');
      } else if (verb === 'DATA') {
        if (act('DATA')?.startsWith('354')) {
          step = 'data';
          unread = `\r\n${unread}`;
        }
      } else if (verb === 'AUTH') {
        if (act('AUTH')?.startsWith('334')) step = 'login';
      } else if (verb === 'STARTTLS') {
        if (act('STARTTLS')?.startsWith('220')) secure();
      } else if (verb === 'QUIT') {
        act('QUIT');
        socket.end();
      } else act(verb in standard ? (verb as Step) : 'RSET');
    }
    function secure(): void {
      plain.removeListener('data', read);
      socket = new tls.TLSSocket(plain, { isServer: true, ...options.tls });
      isSecure = true;
      listen();
    }
    function read(chunk: Buffer): void {
      const isFirst = step === 'data' && unread === '\r\n';
      let from = Math.max(0, unread.length - 5);
      unread += chunk.toString('latin1');
      if (isFirst && act('body') === null) return;
      for (; ; from = 0) {
        const end = unread.indexOf(step === 'data' ? '\r\n.\r\n' : '\r\n', from);
        if (end === -1) return;
        const text = unread.slice(0, end);
        const was = step;
        unread = unread.slice(end + (was === 'data' ? 5 : 2));
        step = 'command';
        if (was === 'data') {
          const raw = `${text}\r\n`.replaceAll('\r\n.', '\r\n').slice(2);
          mails.push({ mail, rcpt, raw, connection, isSecure });
          act('.');
        } else if (was === 'login') {
          commands.push(text);
          if (act('text')?.startsWith('334')) step = 'login';
        } else command(text);
      }
    }
    function listen(): void {
      socket.on('data', read).on('error', () => {});
    }
    listen();
    act('connect');
  }

  const server = options.isImplicitTls
    ? tls.createServer(options.tls ?? {}, serve).on('tlsClientError', () => {})
    : net.createServer({ noDelay: true }, serve);
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => {}).on('close', () => sockets.delete(socket));
  });
  server.listen(options.port ?? 0, host);
  await once(server, 'listening');
  const close = async () => {
    for (const socket of sockets) socket.destroy();
    server.close();
  };
  after(close);

  return {
    port: (server.address() as AddressInfo).port,
    mails,
    commands,
    behave(step, ...behaviours) {
      table.set(step, behaviours);
    },
    connections: () => connections,
    openConnections: () => sockets.size,
    got(pattern, count = 1) {
      return new Promise((resolve) => {
        const look = () => {
          if (commands.filter((line) => pattern.test(line)).length < count) return;
          waiting.delete(look);
          resolve();
        };
        waiting.add(look);
        look();
      });
    },
    close,
  };
}

/** Closes the connection without a reply. */
export const hangUp: Behaviour = ({ socket }) => socket.destroy();

/** Never replies. */
export const hang: Behaviour = () => {};

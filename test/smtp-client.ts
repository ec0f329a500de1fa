/**
 * A raw SMTP client: sends exactly the given bytes and returns the replies one by one. Also an SMTP server without the rest of the
 * service, whose `route` and `accept` a test can replace.
 */
import { once } from 'node:events';
import net, { type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { after } from 'node:test';
import tls from 'node:tls';
import { readConfig } from '../src/config.ts';
import { makeLog } from '../src/lib/log.ts';
import type { SmtpLimits } from '../src/smtp/limits.ts';
import { type SmtpParts, startSmtpServer } from '../src/smtp/server.ts';

export interface SmtpReply {
  status: number;
  /** Such as 5.1.1; null if there is none. */
  enhanced: string | null;
  /** The text of each line, without status and enhanced code. */
  lines: string[];
  /** The whole reply without the last line end. */
  full: string;
}

const deadlineMs = 120_000;
const wholeReply = /^(?:\d{3}-[^\r\n]*\r\n)*\d{3} [^\r\n]*\r\n/;

export class SmtpClient {
  #socket: Socket;
  #received = '';
  #changed = () => {};
  #isOver = false;
  /** Why the connection failed. */
  error: Error | null = null;

  constructor(socket: Socket) {
    this.#socket = socket;
    this.#listen();
  }

  get socket(): Socket {
    return this.#socket;
  }

  /** The server closed its side, or the connection failed. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Received text that no call has read as a reply yet. */
  get unread(): string {
    return this.#received;
  }

  /** Sends exactly these bytes; a string as UTF-8. Resolves when the kernel has them. */
  send(bytes: string | Buffer): Promise<void> {
    return new Promise((resolve) => {
      this.#socket.write(bytes, () => resolve());
    });
  }

  async reply(): Promise<SmtpReply> {
    await this.#until(() => wholeReply.test(this.#received), 'a reply');
    const [full = ''] = wholeReply.exec(this.#received) ?? [];
    this.#received = this.#received.slice(full.length);
    return readReply(full);
  }

  async replies(count: number): Promise<SmtpReply[]> {
    const all: SmtpReply[] = [];
    while (all.length < count) all.push(await this.reply());
    return all;
  }

  /** Sends a line and returns its reply. */
  async command(line: string): Promise<SmtpReply> {
    void this.send(`${line}\r\n`);
    return this.reply();
  }

  /** EHLO, MAIL and RCPT, pipelined; returns the last reply. */
  async envelope(from: string, ...to: string[]): Promise<SmtpReply> {
    const recipients = to.map((address) => `RCPT TO:<${address}>\r\n`).join('');
    void this.send(`EHLO client.example\r\nMAIL FROM:<${from}>\r\n${recipients}`);
    return (await this.replies(2 + to.length)).at(-1) as SmtpReply;
  }

  /** DATA and the message in wire form, with its end. */
  async data(wire: string | Buffer): Promise<SmtpReply> {
    const goAhead = await this.command('DATA');
    if (goAhead.status !== 354) return goAhead;
    void this.send(wire);
    return this.reply();
  }

  /** STARTTLS with its reply, and the handshake. */
  async startTls(options: tls.ConnectionOptions = {}): Promise<tls.TLSSocket> {
    const goAhead = await this.command('STARTTLS');
    if (goAhead.status !== 220) throw new Error(goAhead.full);
    return this.secure(options);
  }

  /** The handshake alone. */
  async secure(options: tls.ConnectionOptions = {}): Promise<tls.TLSSocket> {
    this.#socket.removeAllListeners();
    const secured = tls.connect({ socket: this.#socket, rejectUnauthorized: false, ...options });
    this.#socket = secured;
    this.#listen();
    await once(secured, 'secureConnect');
    return secured;
  }

  /** Resolves when the server closed its side or the connection failed. */
  ended(): Promise<void> {
    return this.#until(() => this.#isOver, 'the end of the connection');
  }

  close(): void {
    this.#socket.destroy();
  }

  #listen(): void {
    const over = () => {
      this.#isOver = true;
      this.#changed();
    };
    this.#socket.on('data', (chunk: Buffer) => {
      this.#received += chunk.toString();
      this.#changed();
    });
    this.#socket.on('end', over).on('close', over);
    this.#socket.on('error', (error) => {
      this.error = error;
    });
  }

  #until(isSo: () => boolean, what: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new Error(`No ${what} in time; got ${this.#tell()}`)),
        deadlineMs,
      );
      this.#changed = () => {
        if (isSo()) resolve();
        else if (this.#isOver) reject(new Error(`The connection ended before ${what}; got ${this.#tell()}`));
        else return;
        clearTimeout(timer);
        this.#changed = () => {};
      };
      this.#changed();
    });
  }

  #tell(): string {
    return `${JSON.stringify(this.#received)} ${this.error?.message ?? ''}`;
  }
}

function readReply(full: string): SmtpReply {
  const lines = full.trimEnd().split('\r\n');
  const status = Number(lines[0]?.slice(0, 3));
  const [enhanced = null] = /^[245]\.\d{1,3}\.\d{1,3}(?= )/.exec(lines[0]?.slice(4) ?? '') ?? [];
  const skip = 4 + (enhanced ? enhanced.length + 1 : 0);
  return { status, enhanced, lines: lines.map((line) => line.slice(skip)), full: full.trimEnd() };
}

/** Connects and reads the greeting. */
export async function connectSmtp(
  port: number,
  options: Partial<net.TcpNetConnectOpts> = {},
): Promise<SmtpClient> {
  const client = await openSmtp(port, options);
  const greeting = await client.reply();
  if (greeting.status !== 220) throw new Error(greeting.full);
  return client;
}

/** Connects without reading the greeting. */
export async function openSmtp(
  port: number,
  options: Partial<net.TcpNetConnectOpts> = {},
): Promise<SmtpClient> {
  const socket = net.connect({ host: '127.0.0.1', port, noDelay: true, ...options });
  const client = new SmtpClient(socket);
  await once(socket, 'connect');
  after(() => socket.destroy());
  return client;
}

/** The wire form of a message: dot-stuffed, with the final dot (RFC 5321 §4.5.2). */
export function toWire(raw: Buffer | string): Buffer {
  // latin1: one character for each byte.
  const text = typeof raw === 'string' ? raw : raw.toString('latin1');
  // After a bare LF too, as Python's smtplib does: what comes back is what was given.
  const stuffed = text.replace(/(^|\n)\./g, '$1..');
  return Buffer.from(`${stuffed}${text === '' || text.endsWith('\r\n') ? '' : '\r\n'}.\r\n`, 'latin1');
}

type Received = Parameters<SmtpParts<string>['accept']>[0];

export interface TestMx {
  port: number;
  /** In order of arrival, accepted or not. */
  mails: Received[];
  /** Lines of the log, parsed. */
  logged: { level: string; msg: string; [key: string]: unknown }[];
  route: SmtpParts<string>['route'];
  accept: SmtpParts<string>['accept'];
  counts: { open: number; refused: number; recipients: number[]; messages: number[] };
  stop(): Promise<void>;
}

/** The MX server of `mx.example`: knows everyone at `here.example` and accepts everything, unless a test replaces `route` or `accept`. */
export async function startTestMx(
  options: Partial<Omit<SmtpParts, 'limits'>> & { limits?: Partial<SmtpLimits> } = {},
): Promise<TestMx> {
  const { limits, ...parts } = options;
  const logged: TestMx['logged'] = [];
  const stream = {
    write: (line: string) => logged.push(JSON.parse(line)),
  } as unknown as NodeJS.WritableStream;
  const mx: TestMx = {
    port: 0,
    mails: [],
    logged,
    counts: { open: 0, refused: 0, recipients: [], messages: [] },
    async route(address) {
      if (/@(here|mx)\.example$/i.test(address)) return { accepted: true, route: `to ${address}` };
      return {
        accepted: false,
        refusal: { status: 550, enhanced: '5.1.1', text: `There is no ${address} here` },
      };
    },
    async accept() {
      return { accepted: true, id: `msg_${mx.mails.length}` };
    },
    stop: async () => {},
  };
  const running = await startSmtpServer<string>({
    host: '127.0.0.1',
    port: 0,
    mailHost: 'mx.example',
    spoolFolder: tmpdir(),
    ownerOf: (route) => route,
    tls: null,
    log: makeLog({ level: 'debug', json: true, stream }),
    stopWithinMs: 500,
    metrics: {
      connections: (open) => {
        mx.counts.open = open;
      },
      connectionRefused: () => {
        mx.counts.refused += 1;
      },
      recipientAnswered: (status) => mx.counts.recipients.push(status),
      messageAnswered: (status) => mx.counts.messages.push(status),
      certificateExpires: () => {},
    },
    ...(parts as Partial<SmtpParts<string>>),
    limits: { ...readConfig({}).smtpLimits, ...limits },
    route: (address, submitter) => mx.route(address, submitter),
    accept(mail) {
      mx.mails.push(mail);
      return mx.accept(mail);
    },
  });
  mx.port = running.port;
  mx.stop = () => running.stop();
  after(() => running.stop());
  return mx;
}

/** The error and fatal lines of the log. Only a bug of ours writes one. */
export function faultsOf(mx: TestMx): string[] {
  return mx.logged.filter(({ level }) => level === 'error').map(({ msg }) => msg);
}

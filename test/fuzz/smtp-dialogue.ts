/** An SMTP client that sends exactly the given bytes and reads replies strictly by RFC 5321 §4.2. */
import { once } from 'node:events';
import net, { type Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import tls from 'node:tls';
import type { Reply } from './smtp-model.ts';

const statuses = [
  211, 214, 220, 221, 250, 251, 252, 354, 421, 450, 451, 452, 454, 455, 500, 501, 502, 503, 504, 550, 551,
  552, 553, 554, 555,
];
/** §4.5.3.1.5, with its line end. */
const maxReplyLine = 512;

export class Dialogue {
  #socket: Socket;
  #text = '';
  #lines: string[] = [];
  #isOver = false;
  #isReset = false;
  #changed = () => {};
  readonly replies: Reply[] = [];
  /** What is no reply. */
  readonly faults: string[] = [];
  /** As latin1, before and after TLS. */
  readonly sent = { plain: '', secured: null as string | null };

  constructor(port: number) {
    this.#socket = net.connect({ host: '127.0.0.1', port, noDelay: true });
    this.#listen();
  }

  /** The server has closed its side, or the connection is broken. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** The server closed while bytes of ours were on their way: its last replies may be lost. */
  get isReset(): boolean {
    return this.#isReset;
  }

  async send(pieces: readonly Buffer[]): Promise<void> {
    for (const piece of pieces) {
      if (this.#isOver) return;
      const text = piece.toString('latin1');
      if (this.sent.secured === null) this.sent.plain += text;
      else this.sent.secured += text;
      this.#socket.write(piece);
      if (pieces.length > 1) await nextTurn();
    }
  }

  /** False where it did not come about. */
  async secure(): Promise<boolean> {
    // Upon a socket that is closed a handshake would neither succeed nor fail.
    if (this.#isOver || this.#socket.destroyed) return false;
    this.#socket.removeAllListeners();
    this.#socket.on('error', () => {});
    const secured = tls.connect({ socket: this.#socket, rejectUnauthorized: false });
    this.#socket = secured;
    this.#listen();
    const isSecure = await Promise.race([
      once(secured, 'secureConnect').then(
        () => true,
        () => false,
      ),
      once(secured, 'close').then(
        () => false,
        () => false,
      ),
    ]);
    if (isSecure) this.sent.secured = '';
    return isSecure;
  }

  halfClose(): void {
    this.#socket.end();
  }

  close(): void {
    this.#socket.destroy();
  }

  /** Waits until it is so or nothing more will come; false after `ms`. */
  async until(isSo: () => boolean, ms: number): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const timer = setTimeout(() => resolve(false), ms);
    this.#changed = () => {
      if (isSo() || this.#isOver) resolve(true);
    };
    this.#changed();
    const isDone = await promise;
    clearTimeout(timer);
    this.#changed = () => {};
    return isDone;
  }

  #listen(): void {
    const over = () => {
      this.#isOver = true;
      this.#changed();
    };
    this.#socket.on('data', (chunk: Buffer) => {
      this.#read(chunk.toString('latin1'));
      this.#changed();
    });
    this.#socket
      .on('end', over)
      .on('close', over)
      .on('error', ({ code }: NodeJS.ErrnoException) => {
        this.#isReset ||= code === 'ECONNRESET' || code === 'EPIPE';
      });
  }

  #read(text: string): void {
    const lines = `${this.#text}${text}`.split('\r\n');
    this.#text = lines.pop() ?? '';
    for (const line of lines) {
      this.#lines.push(line);
      if (line[3] !== '-') this.#readReply(this.#lines.splice(0));
    }
  }

  #readReply(lines: readonly string[]): void {
    const [first = ''] = lines;
    const status = Number(first.slice(0, 3));
    const text = first.slice(4);
    this.replies.push({ status, text });
    const isReply = lines.every(
      (line) =>
        /^\d{3}[ -][\t\x20-\x7e]*$/.test(line) &&
        line.startsWith(first.slice(0, 3)) &&
        line.length + 2 <= maxReplyLine,
    );
    const enhanced = /^([245])\.\d{1,3}\.\d{1,3} /.exec(text)?.[1];
    const agrees = enhanced === undefined || enhanced === first[0];
    if (!isReply || !agrees || !statuses.includes(status))
      this.faults.push(`no reply: ${JSON.stringify(lines)}`);
  }
}

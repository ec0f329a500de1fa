/**
 * The client's end of an SMTP connection: a socket, the replies that came, and one timer. It knows no commands.
 * Guarantees: a wait ends with a reply, by its time limit, or when the connection dies; a limit is for the whole reply, so that a
 * server which sends single bytes gains no time; bytes that came before a TLS handshake are never read after it (CVE-2011-0411).
 */
import type { Socket } from 'node:net';
import tls from 'node:tls';
import { MovableTimer } from '../lib/movable-timer.ts';
import { describeSocketError } from '../net/connect.ts';
import { type Reply, ReplyReader } from './replies.ts';
import { type SendErrorCode, SendFault, type TryReply } from './try-reply.ts';

type Wait = 'connect' | 'tls' | 'reply' | 'drain';

const timeouts: Record<Wait, [SendErrorCode, string]> = {
  connect: ['connect_timeout', 'The host did not accept the connection in time'],
  tls: ['tls_timeout', 'The TLS handshake did not finish in time'],
  reply: ['reply_timeout', 'The server did not reply in time'],
  drain: ['reply_timeout', 'The server did not read the message in time'],
};
const losses: Record<Wait, SendErrorCode> = {
  connect: 'connect_failed',
  tls: 'tls_failed',
  reply: 'connection_lost',
  drain: 'connection_lost',
};
/** How long the server may take to close after QUIT. */
const quitMs = 5000;

export class Dialogue {
  /** `#socket` is `#plain`, or the TLS socket on top of it. */
  readonly #plain: Socket;
  #socket: Socket;
  readonly #reader = new ReplyReader();
  readonly #replies: Reply[] = [];
  #isConnected = false;
  #fault: SendFault | null = null;
  #wait: Wait = 'connect';
  #settle: (() => void) | null = null;
  readonly #timer = new MovableTimer(() => this.#expire());

  /** `socket` is connecting. */
  constructor(socket: Socket) {
    this.#plain = socket.setNoDelay(true);
    this.#socket = socket;
    this.#addListeners(socket);
    socket.once('connect', () => {
      this.#isConnected = true;
      this.#onProgress();
    });
  }

  /** Nothing that was not asked for has come, and the connection is alive. */
  get isQuiet(): boolean {
    return this.#fault === null && this.#replies.length === 0 && this.#reader.isEmpty;
  }

  get hasReply(): boolean {
    return this.#replies.length > 0;
  }

  get address(): string | null {
    return this.#socket.remoteAddress ?? null;
  }

  /** Of this machine: the address that the server sees, unless it is translated on the way. */
  get localAddress(): string | null {
    return this.#socket.localAddress ?? null;
  }

  async connected(withinMs: number): Promise<void> {
    await this.#waitFor('connect', withinMs, () => this.#isConnected);
  }

  async reply(withinMs: number): Promise<Reply> {
    await this.#waitFor('reply', withinMs, () => this.hasReply);
    return this.#replies.shift() as Reply;
  }

  /** Returns false if the server reads more slowly than we write: then wait for `drained`. Throws if nothing can be sent. */
  write(bytes: string | Buffer): boolean {
    // A reply that came before the end of the connection still counts.
    if (this.#fault && !this.hasReply) throw this.#fault;
    return this.#socket.write(bytes);
  }

  /** Also ends when a reply comes: a server may refuse a message that it has not read to its end. */
  drained(withinMs: number): Promise<void> {
    return this.#waitFor(
      'drain',
      withinMs,
      () => this.hasReply || (!this.#fault && !this.#socket.writableNeedDrain),
    );
  }

  async secure(options: tls.ConnectionOptions, withinMs: number): Promise<TryReply['tls']> {
    if (!this.isQuiet) throw this.#fault ?? new SendFault('tls_failed', 'The server sent text before TLS');
    this.#plain.off('data', this.#onData).off('drain', this.#onProgress);
    let isSecure = false;
    const socket = tls.connect({ ...options, socket: this.#plain }, () => {
      isSecure = true;
      this.#settle?.();
    });
    this.#socket = socket;
    this.#addListeners(socket);
    await this.#waitFor('tls', withinMs, () => isSecure);
    return { version: socket.getProtocol() ?? '', cipher: socket.getCipher().standardName };
  }

  /** Every wait ends with this fault. */
  end(fault: SendFault): void {
    if (this.#fault) return;
    this.#fault = fault;
    this.#timer.clear();
    this.#destroy();
    this.#settle?.();
  }

  /** Says goodbye without waiting for the answer. */
  quit(): void {
    if (this.#fault) return;
    this.#fault = new SendFault('connection_lost', 'The connection was closed');
    this.#timer.clear();
    this.#socket.end('QUIT\r\n');
    const timer = setTimeout(() => this.#destroy(), quitMs).unref();
    this.#plain.once('close', () => clearTimeout(timer));
  }

  #destroy(): void {
    this.#socket.destroy();
    this.#plain.destroy();
  }

  async #waitFor(what: Wait, withinMs: number, isDone: () => boolean): Promise<void> {
    this.#wait = what;
    if (!isDone() && !this.#fault) {
      this.#timer.arm(withinMs);
      await new Promise<void>((resolve) => {
        this.#settle = () => {
          if (!isDone() && !this.#fault) return;
          this.#settle = null;
          resolve();
        };
      });
    }
    // What came before the end counts: a server may reply 421 and close at once.
    if (!isDone()) throw this.#fault;
  }

  /** While nobody waits, the timer may fire without effect. */
  #expire(): void {
    if (this.#settle) this.end(new SendFault(...timeouts[this.#wait]));
  }

  #addListeners(socket: Socket): void {
    socket.on('data', this.#onData).on('drain', this.#onProgress);
    socket.on('error', this.#onError).on('close', this.#onClose);
  }

  #onProgress = (): void => this.#settle?.();

  #onError = (error: Error): void => this.#lose(describeSocketError(error));

  #onClose = (): void => this.#lose('The server closed the connection');

  #onData = (chunk: Buffer): void => {
    if (this.#fault) return;
    for (const reply of this.#reader.push(chunk)) {
      if (reply) this.#replies.push(reply);
      if (reply === null)
        this.end(new SendFault('invalid_reply', 'The server sent text that is not a reply'));
      else if (reply.isCut) this.end(new SendFault('invalid_reply', 'The reply of the server is too long'));
    }
    this.#settle?.();
  };

  #lose(detail: string): void {
    this.end(new SendFault(losses[this.#wait], detail));
  }
}

/** The main thread's end of a connection that a thread holds: each command is a message to the thread, and each answer one from it. */
import type { Share } from '../lib/slots.ts';
import { describeServerError, type ServerError } from '../net/mail-server.ts';
import { ServerFailure } from './imap-failure.ts';
import type {
  FromThread,
  ImapAnswer,
  ImapCommand,
  ImapCommands,
  OpenOptions,
  ToThread,
} from './imap-messages.ts';

/** Of a thread's time, for a response of any length. */
const responseMs = 0.1;
/** Turns rest so many times as long as the thread worked, so that a costly server leaves most of the thread's time to others. */
const restFactor = 4;
/** A shorter rest is not worth a timer. */
const minRestMs = 50;

interface Waiting {
  resolve(value: unknown): void;
  reject(failure: ServerFailure): void;
}

export interface ConnectionEvents {
  news(): void;
  closed(failure: ServerFailure): void;
}

/** What the thread does for the connection. */
export interface ConnectionThread {
  send(message: ToThread, transfer?: ArrayBuffer[]): void;
  /** Of the owner, for a long answer of a server. */
  takeTurn(weight: number, signal: AbortSignal): Promise<Share>;
  /** The connection has ended. */
  onEnd(): void;
}

export class ImapConnection {
  readonly #id: number;
  readonly #thread: ConnectionThread;
  readonly #waiting = new Map<number, Waiting>();
  readonly #opening = Promise.withResolvers<{ error: ServerError } | { client: ImapConnection }>();
  #asks = 0;
  #events: ConnectionEvents | null = null;
  #hasNews = false;
  #failure: ServerFailure | null = null;
  readonly #ended = new AbortController();
  #facts = { hasIdle: false, hasGmailExtension: false };
  #total: number | null = null;
  /** How many responses the thread has parsed. */
  #parsed = 0;

  constructor(id: number, thread: ConnectionThread) {
    this.#id = id;
    this.#thread = thread;
  }

  /** Connects and logs in. */
  open(options: OpenOptions): Promise<{ error: ServerError } | { client: ImapConnection }> {
    this.#thread.send({ kind: 'open', id: this.#id, options });
    return this.#opening.promise;
  }

  get hasIdle(): boolean {
    return this.#facts.hasIdle;
  }

  /** Of a server of Gmail. */
  get hasGmailExtension(): boolean {
    return this.#facts.hasGmailExtension;
  }

  /** How many messages the open folder had at the last answer; null: no folder was open. */
  get total(): number | null {
    return this.#total;
  }

  /** Also of what has happened already, as soon as the caller is done. */
  listen(events: ConnectionEvents): void {
    this.#events = events;
    const failure = this.#failure;
    if (this.#hasNews) queueMicrotask(() => events.news());
    if (failure) queueMicrotask(() => events.closed(failure));
  }

  /** Rejects with `ServerFailure`. `transfer`: memory that this thread does not need any more. */
  async ask<Name extends ImapCommand>(
    name: Name,
    args: Parameters<ImapCommands[Name]>,
    transfer: ArrayBuffer[] = [],
  ): Promise<ImapAnswer<Name>> {
    if (this.#failure) throw this.#failure;
    this.#asks += 1;
    const ask = this.#asks;
    const { promise, ...waiting } = Promise.withResolvers<unknown>();
    this.#waiting.set(ask, waiting);
    this.#thread.send({ kind: 'ask', id: this.#id, ask, name, args }, transfer);
    return (await promise) as ImapAnswer<Name>;
  }

  /** Whatever the server answers: the connection has ended afterwards. */
  async logOut(): Promise<void> {
    await this.ask('logOut', []).catch(() => {});
    this.close();
  }

  /** For a login or a long answer. Rejects with `ServerFailure` when the connection ends. */
  async takeTurn(weight: number): Promise<Disposable> {
    const turn = await this.#thread.takeTurn(weight, this.#ended.signal);
    const parsedBefore = this.#parsed;
    return {
      [Symbol.dispose]: () => {
        const restMs = (this.#parsed - parsedBefore) * responseMs * restFactor;
        if (restMs < minRestMs) turn.release();
        else setTimeout(() => turn.release(), restMs).unref();
      },
    };
  }

  startIdle(): void {
    this.#thread.send({ kind: 'idle', id: this.#id });
  }

  /** `error`: why; whoever waits for an answer gets it, whatever the thread does meanwhile. */
  close(error = describeServerError('connection_failed', { detail: 'The connection was closed' })): void {
    if (this.#failure) return;
    this.#thread.send({ kind: 'close', id: this.#id });
    this.end(new ServerFailure(error));
  }

  /** What the thread says of this connection. */
  note(message: Exclude<FromThread, { kind: 'pong' }>): void {
    if ('parsed' in message) this.#parsed = message.parsed;
    if (message.kind === 'opened') {
      this.#facts = message;
      this.#opening.resolve({ client: this });
    } else if (message.kind === 'news') {
      this.#hasNews = true;
      this.#events?.news();
    } else if (message.kind === 'closed') this.end(new ServerFailure(message.failure.error, message.failure));
    else {
      const waiting = this.#waiting.get(message.ask);
      this.#waiting.delete(message.ask);
      if (message.kind === 'failed') {
        waiting?.reject(new ServerFailure(message.failure.error, message.failure));
        return;
      }
      this.#total = message.total;
      waiting?.resolve(message.value);
    }
  }

  end(failure: ServerFailure): void {
    if (this.#failure) return;
    this.#failure = failure;
    this.#thread.onEnd();
    this.#ended.abort(failure);
    this.#opening.resolve({ error: failure.error });
    this.#events?.closed(failure);
    for (const { reject } of this.#waiting.values()) reject(failure);
    this.#waiting.clear();
  }
}

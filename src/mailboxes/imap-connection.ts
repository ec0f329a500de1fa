/** The main thread's end of a connection that a thread holds: each command is a message to the thread, and each answer one from it. */
import type { Share } from '../lib/slots.ts';
import { describeServerError, type ServerError } from '../net/mail-server.ts';
import { ServerFailure, ThreadFailure } from './imap-failure.ts';
import type {
  FromThread,
  ImapAnswer,
  ImapCommand,
  ImapCommands,
  OpenOptions,
  ToThread,
} from './imap-messages.ts';

/** Turns rest so many times as long as the thread worked, so that a costly server leaves most of the thread's time to others. */
const restFactor = 4;
/** A shorter rest is not worth a timer. */
const minRestMs = 50;

interface Waiting {
  resolve(value: unknown): void;
  reject(failure: ConnectionFailure): void;
}

export interface ConnectionEvents {
  news(): void;
  closed(failure: ConnectionFailure): void;
}

type ConnectionFailure = ServerFailure | ThreadFailure;

/** What the thread does for the connection. */
export interface ConnectionThread {
  send(message: ToThread, transfer?: ArrayBuffer[]): void;
  /** Of the owner, for a long answer of a server. */
  takeTurn(weight: number, signal: AbortSignal): Promise<Share>;
  /** The thread is done with the connection. */
  onLeft(): void;
}

export class ImapConnection {
  readonly #id: number;
  readonly #thread: ConnectionThread;
  readonly #waiting = new Map<number, Waiting>();
  /** Set while the thread connects and logs in. */
  #opening: PromiseWithResolvers<void> | null = null;
  #asks = 0;
  #events: ConnectionEvents | null = null;
  #hasNews = false;
  #failure: ConnectionFailure | null = null;
  readonly #ended = new AbortController();
  /** The thread was told of the connection. */
  #wasOpened = false;
  readonly #left = Promise.withResolvers<void>();
  #facts = { hasIdle: false, hasGmailExtension: false };
  #total: number | null = null;
  /** What the server's responses cost the thread, as far as the thread has told. */
  #costMs = 0;

  constructor(id: number, thread: ConnectionThread) {
    this.#id = id;
    this.#thread = thread;
  }

  /** Connects and logs in. Rejects as `ask` does. */
  async open(options: OpenOptions): Promise<void> {
    // It may have been closed while it waited for its turn. Nobody would close what the thread opens now.
    if (this.#failure) throw this.#failure;
    this.#wasOpened = true;
    this.#opening = Promise.withResolvers();
    this.#thread.send({ kind: 'open', id: this.#id, options });
    await this.#opening.promise;
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

  /** Rejects with `ServerFailure`, or `ThreadFailure` if the thread ends. `transfer`: memory that this thread does not need any more. */
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

  /** For a login or a long answer. Rejects as `ask` does when the connection ends. */
  async takeTurn(weight: number): Promise<Disposable> {
    const turn = await this.#thread.takeTurn(weight, this.#ended.signal);
    const costBefore = this.#costMs;
    const rest = () => {
      const restMs = (this.#costMs - costBefore) * restFactor;
      if (restMs < minRestMs) turn.release();
      else setTimeout(() => turn.release(), restMs).unref();
    };
    return {
      [Symbol.dispose]: () => {
        // After `close` the thread may still work for the connection, and only then knows the cost.
        if (this.#failure) void this.#left.promise.then(rest);
        else rest();
      },
    };
  }

  startIdle(): void {
    if (!this.#failure) this.#thread.send({ kind: 'idle', id: this.#id });
  }

  /** `error`: why; whoever waits for an answer gets it, whatever the thread does meanwhile. */
  close(error = describeServerError('connection_failed', { detail: 'The connection was closed' })): void {
    if (this.#failure) return;
    if (this.#wasOpened) this.#thread.send({ kind: 'close', id: this.#id });
    else this.#leave();
    this.#end(new ServerFailure(error));
  }

  /** What the thread says of this connection. */
  note(message: Exclude<FromThread, { kind: 'pong' }>): void {
    if ('costMs' in message) this.#costMs = message.costMs;
    if (message.kind === 'opened') {
      this.#facts = message;
      this.#opening?.resolve();
      this.#opening = null;
    } else if (message.kind === 'news') {
      this.#hasNews = true;
      this.#events?.news();
    } else if (message.kind === 'closed') {
      this.#leave();
      this.#end(new ServerFailure(message.failure.error, message.failure));
    } else {
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

  /** The thread has ended. `error`: why, if that was intended. */
  endWithThread(error: ServerError | null): void {
    const wasBusy = this.#opening !== null || this.#waiting.size > 0;
    this.#leave();
    this.#end(
      error ? new ServerFailure(error) : new ThreadFailure('A thread of the IMAP client ended', wasBusy),
    );
  }

  #leave(): void {
    this.#thread.onLeft();
    this.#left.resolve();
  }

  #end(failure: ConnectionFailure): void {
    if (this.#failure) return;
    this.#failure = failure;
    this.#ended.abort(failure);
    this.#opening?.reject(failure);
    this.#events?.closed(failure);
    for (const { reject } of this.#waiting.values()) reject(failure);
    this.#waiting.clear();
  }
}

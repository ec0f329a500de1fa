/**
 * The threads that hold the connections to IMAP servers. Whatever a server sends is parsed in a thread, so it costs the event loop of
 * the API and of SMTP nothing.
 * Guarantees:
 * - A thread is started for its first connection, and ends some time after its last one. It does not keep the process alive.
 * - All connections of an owner are on one thread, and the owners are spread over the threads. The long answers of servers take turns:
 *   an owner has few of them on its thread at the same time, and fewer from one server.
 * - When a thread ends, by itself or because it did not react, its connections fail with `ThreadFailure`, which is no failure of their
 *   servers. The next connection starts another thread.
 */
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import type { Log } from '../lib/log.ts';
import { type Share, Slots } from '../lib/slots.ts';
import { describeServerError, type ServerError } from '../net/mail-server.ts';
import { ImapConnection } from './imap-connection.ts';
import { ServerFailure } from './imap-failure.ts';
import type { FromThread, OpenOptions, ToThread } from './imap-messages.ts';

export interface ImapThreadOptions {
  log: Log;
  /** The most threads. */
  count: number;
  /** How long a thread without a connection is kept. */
  idleMs?: number;
  /** How often a thread with connections must react. One that misses `maxMissed` times in a row is ended. */
  pingMs?: number;
  heapMb?: number;
  /** What the threads run. */
  file?: URL;
}

const usual = {
  idleMs: 30_000,
  pingMs: 5000,
  /** Room for thousands of idle connections and the longest lists of folders. Messages are not on the heap. */
  heapMb: 512,
  file: new URL(`./imap-thread${path.extname(import.meta.url)}`, import.meta.url),
};
const maxMissed = 6;
/**
 * The weights of logins and long answers at the same time on one thread: of an owner, and of one server (`perKey`), so that a slow
 * server does not stop the owner's mailboxes elsewhere. No limit in all: a few owners with slow servers would stop everyone.
 */
const longAnswers = { inAll: Number.MAX_SAFE_INTEGER, perOwner: 16, perKey: 8 };
const loginWeight = 1;

export class ImapThreads {
  readonly #options: Required<ImapThreadOptions>;
  readonly #threads = new Set<ImapThread>();
  #isStopped = false;

  constructor(options: ImapThreadOptions) {
    this.#options = { ...usual, ...options };
  }

  /** How many run. */
  get count(): number {
    return this.#threads.size;
  }

  /** Connects and logs in. Whoever gets the client closes it. `signal` ends the attempt. Rejects with `ThreadFailure`. */
  async open(
    ownerId: string,
    options: OpenOptions,
    signal?: AbortSignal,
  ): Promise<{ client: ImapConnection } | { error: ServerError }> {
    if (this.#isStopped || signal?.aborted) return { error: stopped() };
    const connection = this.#choose(ownerId).connect(ownerId, options);
    const close = () => connection.close(stopped());
    signal?.addEventListener('abort', close);
    try {
      using _turn = await connection.takeTurn(loginWeight);
      await connection.open(options);
      return { client: connection };
    } catch (error) {
      if (error instanceof ServerFailure) return { error: error.error };
      throw error;
    } finally {
      signal?.removeEventListener('abort', close);
    }
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    await Promise.all([...this.#threads].map((thread) => thread.end(stopped())));
  }

  #choose(ownerId: string): ImapThread {
    const threads = [...this.#threads];
    const own = threads.find(({ owners }) => owners.has(ownerId));
    if (own) return own;
    const [least] = threads.sort((one, other) => one.owners.size - other.owners.size);
    if (least && (least.owners.size === 0 || threads.length >= this.#options.count)) return least;
    const started = new ImapThread(this.#options, () => this.#threads.delete(started));
    this.#threads.add(started);
    return started;
  }
}

class ImapThread {
  /** How many connections each owner has here. */
  readonly owners = new Map<string, number>();
  readonly #worker: Worker;
  readonly #log: Log;
  readonly #onEnd: () => void;
  readonly #idleMs: number;
  readonly #connections = new Map<number, ImapConnection>();
  readonly #turns = new Slots(longAnswers);
  readonly #pinging: NodeJS.Timeout;
  #idleTimer: NodeJS.Timeout | undefined;
  #opened = 0;
  /** Pings without a reaction. Null: the thread is not up yet. Loading the library may take seconds, and no server has a hand in it. */
  #missed: number | null = null;
  #hasEnded = false;

  constructor({ log, idleMs, pingMs, heapMb, file }: Required<ImapThreadOptions>, onEnd: () => void) {
    this.#log = log;
    this.#idleMs = idleMs;
    this.#onEnd = onEnd;
    this.#worker = new Worker(file, { resourceLimits: { maxOldGenerationSizeMb: heapMb } });
    this.#worker.unref();
    this.#worker.on('message', (message: FromThread) => this.#note(message));
    this.#worker.on('messageerror', (err) => this.#break(err));
    this.#worker.on('error', (err) => this.#break(err));
    this.#worker.on('exit', () => this.#break(new Error('The thread ended')));
    this.#send({ kind: 'ping' });
    this.#pinging = setInterval(() => this.#ping(), pingMs).unref();
  }

  /** A connection that is to be opened. */
  connect(ownerId: string, { host, port }: OpenOptions): ImapConnection {
    clearTimeout(this.#idleTimer);
    this.#opened += 1;
    const id = this.#opened;
    const key = `${host}:${port}`;
    const connection = new ImapConnection(id, {
      send: (message, transfer) => this.#send(message, transfer),
      takeTurn: (weight, signal): Promise<Share> => this.#turns.take(ownerId, weight, { key, signal }),
      onLeft: () => this.#forget(id, ownerId),
    });
    this.#connections.set(id, connection);
    this.owners.set(ownerId, (this.owners.get(ownerId) ?? 0) + 1);
    return connection;
  }

  /** Its connections fail with the error. Null: the end was not intended. */
  async end(error: ServerError | null): Promise<void> {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    clearInterval(this.#pinging);
    clearTimeout(this.#idleTimer);
    this.#onEnd();
    for (const connection of [...this.#connections.values()]) connection.endWithThread(error);
    await this.#worker.terminate();
  }

  #send(message: ToThread, transfer: ArrayBuffer[] = []): void {
    if (!this.#hasEnded) this.#worker.postMessage(message, transfer);
  }

  #note(message: FromThread): void {
    this.#missed = 0;
    if (message.kind !== 'pong') this.#connections.get(message.id)?.note(message);
  }

  #forget(id: number, ownerId: string): void {
    this.#connections.delete(id);
    const left = (this.owners.get(ownerId) ?? 1) - 1;
    if (left > 0) this.owners.set(ownerId, left);
    else this.owners.delete(ownerId);
    if (this.#connections.size > 0 || this.#hasEnded) return;
    this.#idleTimer = setTimeout(() => void this.end(stopped()), this.#idleMs).unref();
  }

  /** Counted in pings, not by the clock: after a pause of the whole process the thread gets its time too. */
  #ping(): void {
    if (this.#connections.size === 0) return;
    if (this.#missed === null) return;
    if (this.#missed >= maxMissed) {
      this.#log.error('a thread of the IMAP client did not react, and was ended');
      void this.end(null);
      return;
    }
    this.#missed += 1;
    this.#send({ kind: 'ping' });
  }

  #break(err: Error): void {
    if (this.#hasEnded) return;
    this.#log.error({ err }, 'a thread of the IMAP client failed; its mailboxes connect again');
    void this.end(null);
  }
}

function stopped(): ServerError {
  return describeServerError('connection_failed', { detail: 'The connection was closed' });
}

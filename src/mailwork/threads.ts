/**
 * Worker threads for jobs whose time a stranger decides. Owners take turns at them, and within an owner the senders.
 * Guarantees: an owner never has the last thread, so the jobs of others do not wait for the end of a long job; the time that its jobs
 * took counts against the next turn of an owner; a thread has one job at a time, so a job that breaks a thread or takes too long
 * (`JobFailed`) harms no other.
 */
import { type Transferable, Worker } from 'node:worker_threads';
import { Slots } from '../lib/slots.ts';
import { Problem } from '../problems.ts';

/** For whom a thread works. */
export interface Turn {
  ownerId: string;
  /** The network that the message came from; left out: the owner itself. */
  sender?: string;
  /** Ends the wait for the turn. */
  signal?: AbortSignal | undefined;
}

export interface ThreadLimits {
  /** At least 2. */
  threads: number;
  /** For one job. The slowest known message of the largest size takes a tenth of the default. */
  timeoutMs: number;
  /** How long a job waits for its turn. */
  waitMs: number;
  /** How long a thread without a job is kept. */
  idleMs: number;
}

interface Sent<Job> {
  job: Job;
  transfer?: Transferable[];
  /** Takes much memory: one such job runs at a time, and its thread ends after it, because the thread would keep the memory. */
  isHuge?: boolean;
}

/** The job broke its thread, or took too long. */
export class JobFailed extends Error {}

class Stopped extends Error {
  constructor() {
    super('The service is stopping');
  }
}

/** A small heap is enough, because messages are outside of it. A large JSON body and its texts are inside. */
const resourceLimits = { maxYoungGenerationSizeMb: 3, maxOldGenerationSizeMb: 256 };

/** Threads start when a job needs them. */
export class Threads<Job, Result> {
  readonly #script: URL;
  readonly #limits: ThreadLimits;
  readonly #turns: Slots;
  readonly #hugeTurns = new Slots({ inAll: 1, perOwner: 1 });
  readonly #stopping = new AbortController();
  readonly #all = new Set<Thread<Job, Result>>();
  readonly #idle: Thread<Job, Result>[] = [];

  constructor(script: URL, limits: ThreadLimits) {
    this.#script = script;
    this.#limits = limits;
    this.#turns = new Slots({ inAll: limits.threads, perOwner: limits.threads - 1 });
  }

  /** Rejects with `JobFailed`, with `Stopped`, with the reason of the signal, or with `overloaded` if no thread is free in time. */
  async run(
    { ownerId, sender = '', signal }: Turn,
    { job, transfer = [], isHuge = false }: Sent<Job>,
  ): Promise<Result> {
    const { timeoutMs, waitMs, idleMs } = this.#limits;
    const stopped = this.#stopping.signal;
    const options = {
      key: sender,
      signal: signal ? AbortSignal.any([stopped, signal]) : stopped,
      timeout: { ms: waitMs, error: overloaded },
    };
    using hugeTurn = isHuge ? await this.#hugeTurns.take(ownerId, 1, options) : null;
    using turn = await this.#turns.take(ownerId, 1, options);
    stopped.throwIfAborted();
    const thread = this.#idle.pop() ?? this.#start();
    const startedAt = performance.now();
    try {
      return await thread.run(job, transfer, timeoutMs);
    } finally {
      const tookMs = performance.now() - startedAt;
      turn.charge(tookMs);
      hugeTurn?.charge(tookMs);
      if (isHuge) await thread.end(new Stopped());
      else if (this.#all.has(thread)) {
        this.#idle.push(thread);
        thread.endAfter(idleMs);
      }
    }
  }

  /** Rejects what is not finished. */
  async stop(): Promise<void> {
    this.#stopping.abort(new Stopped());
    await Promise.all([...this.#all].map((thread) => thread.end(new Stopped())));
  }

  #start(): Thread<Job, Result> {
    const thread = new Thread<Job, Result>(this.#script, () => {
      this.#all.delete(thread);
      const at = this.#idle.indexOf(thread);
      if (at !== -1) this.#idle.splice(at, 1);
    });
    this.#all.add(thread);
    return thread;
  }
}

class Thread<Job, Result> {
  readonly #worker: Worker;
  readonly #onEnd: () => void;
  #current: { resolve(result: Result): void; reject(error: Error): void } | null = null;
  #idleTimer: NodeJS.Timeout | undefined;

  constructor(script: URL, onEnd: () => void) {
    this.#onEnd = onEnd;
    this.#worker = new Worker(script, { resourceLimits });
    this.#worker.unref();
    this.#worker.on('message', (result: Result) => this.#current?.resolve(result));
    const fail = (cause: Error) => void this.end(new JobFailed(cause.message, { cause }));
    this.#worker.on('messageerror', fail);
    this.#worker.on('error', fail);
    this.#worker.on('exit', () => fail(new Error('The thread ended')));
  }

  async run(job: Job, transfer: Transferable[], timeoutMs: number): Promise<Result> {
    clearTimeout(this.#idleTimer);
    const timer = setTimeout(() => void this.end(new JobFailed('The job took too long')), timeoutMs);
    try {
      return await new Promise((resolve, reject) => {
        this.#current = { resolve, reject };
        this.#worker.postMessage(job, transfer);
      });
    } finally {
      clearTimeout(timer);
      this.#current = null;
    }
  }

  endAfter(ms: number): void {
    this.#idleTimer = setTimeout(() => void this.end(new Stopped()), ms).unref();
  }

  /** Fails the current job. */
  async end(reason: Error): Promise<void> {
    clearTimeout(this.#idleTimer);
    this.#onEnd();
    this.#current?.reject(reason);
    await this.#worker.terminate();
  }
}

function overloaded(): Problem {
  return new Problem('overloaded', { headers: { 'retry-after': '60' } });
}

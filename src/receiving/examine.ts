/**
 * Examines a message: parses it and checks SPF, DKIM, DMARC and ARC. A large message is examined in a worker, so that seconds
 * of work on it delay no other message.
 * Owners take turns at the worker, and within an owner the senders: others wait for one large message of an owner, not for all.
 * Guarantee: `examine` rejects only when the examiner is stopped, or with `overloaded` when the worker is not free in time. Mail
 * that breaks the worker is accepted with its header alone.
 */
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import type { Log } from '../lib/log.ts';
import { once } from '../lib/once.ts';
import { largeBytes, shareBytes } from '../lib/shared-bytes.ts';
import { Slots } from '../lib/slots.ts';
import type { Authentication, MailOrigin, Verify } from '../mailauth/authenticate.ts';
import type { Keys } from '../mailauth/dkim.ts';
import { type Signed, type SigningKey, signMessage } from '../mailauth/sign.ts';
import { describeUnverified, readUnsigned, type SignatureResults } from '../mailauth/signatures.ts';
import { type ComposedMail, composeMail } from '../mime/compose.ts';
import { cutAtLine, findHeaderEnd } from '../mime/headers.ts';
import { type PrepareOptions, prepareMessage } from '../mime/outgoing.ts';
import {
  extractAttachment,
  extractReport,
  type ParsedAttachment,
  type ParsedMessage,
  parseMessage,
} from '../mime/parse.ts';
import type { FoundReport } from '../mime/reports.ts';
import { Problem } from '../problems.ts';

export interface Examination {
  parsed: ParsedMessage;
  authentication: Authentication;
}

type ExtractedAttachment = { meta: ParsedAttachment; content: Uint8Array } | null;

/** A job for the worker (examine-worker.ts). The worker computes only; DNS queries are made by its caller. */
export type ExamineJob =
  | { kind: 'parse'; raw: Uint8Array }
  | { kind: 'verify'; raw: Uint8Array; keys: Keys }
  | { kind: 'extract'; raw: Uint8Array; n: number }
  | { kind: 'compose'; mail: ComposedMail }
  | { kind: 'prepare'; raw: Uint8Array; options: PrepareOptions }
  | { kind: 'sign'; raw: Uint8Array; key: SigningKey; now: Date }
  | { kind: 'report'; raw: Uint8Array };
export type ExamineResult =
  | ParsedMessage
  | SignatureResults
  | ExtractedAttachment
  | { content: Uint8Array }
  | Prepared
  | Signed
  | FoundReport;
type Prepared = ReturnType<typeof prepareMessage>;

export interface Examiner {
  /** `ownerId`: whose turn at the worker the work takes. */
  examine(raw: Buffer, origin: MailOrigin, ownerId?: string): Promise<Examination>;
  /**
   * The decoded attachment `n`; null if there is none. May transfer the memory of `raw`: `raw` needs an ArrayBuffer of its own and
   * is unusable afterwards. `signal` ends the wait for the worker.
   */
  extract(raw: Buffer, n: number, ownerId?: string, signal?: AbortSignal): Promise<ExtractedAttachment>;
  /** Of a message that goes out. The caller's texts decide how long it takes, so it is done where examining is done. */
  outgoing: OutgoingWork;
  /** Rejects what is not finished. */
  stop(): Promise<void>;
}

/** What is done with a message that goes out, and with a report about one: large ones in the worker, in the owner's turn. */
export interface OutgoingWork {
  compose(mail: ComposedMail, ownerId: string): Promise<Buffer>;
  prepare(raw: Buffer, options: PrepareOptions, ownerId: string): Promise<Prepared>;
  parse(raw: Buffer, ownerId: string): Promise<ParsedMessage>;
  sign(raw: Buffer, key: SigningKey, now: Date, ownerId: string): Promise<Signed>;
  report(raw: Buffer, ownerId: string): Promise<FoundReport | null>;
}

const largeHeaderBytes = 32 * 1024;
/**
 * A worker keeps the shared memory of a message until V8 collects the worker's small heap, which may be never. So the worker ends
 * soon after a huge message. Starting another worker costs little compared with reading such a message.
 */
const hugeBytes = 8 * 1024 * 1024;
const idleAfterHugeMs = 1000;
/** How much of a message is parsed for its header after it broke the worker. */
const headBytes = 64 * 1024;

export function makeExaminer(options: {
  dnsServers: readonly string[] | null;
  mailHost: string;
  log: Log;
  /** For one job. The slowest known message of the largest size takes a tenth of the default. */
  timeoutMs?: number;
  /** How long a job waits for its turn. */
  waitMs?: number;
  /** How long a worker without a job is kept. */
  idleMs?: number;
}): Examiner {
  const { dnsServers, mailHost, log, timeoutMs = 30_000, waitMs = 60_000, idleMs = 30_000 } = options;
  // Loading takes a fifth of the time of a start, so the start does not wait for it.
  const loadAuthenticate = once(async () => {
    const { makeAuthenticate } = await import('../mailauth/authenticate.ts');
    return makeAuthenticate({ dnsServers, mailHost });
  });
  // Not at the first message: one of 25 MiB had a peak of 337 MB then, and 296 MB with the code loaded before.
  void loadAuthenticate();
  const worker = makeExamineWorker({ timeoutMs, waitMs, idleMs });

  async function runOr<T extends ExamineResult>(
    turn: Turn,
    job: ExamineJob,
    fallback: () => T | Promise<T>,
  ): Promise<T> {
    try {
      return (await worker.run(turn, job)) as T;
    } catch (err) {
      if (err instanceof Stopped || err instanceof Problem) throw err;
      log.error({ err, job: job.kind }, 'A message could not be examined; only its header is used');
      return fallback();
    }
  }
  const parse = (turn: Turn, raw: Buffer) => runOr(turn, { kind: 'parse', raw }, () => parseHead(raw));
  const verifyIn =
    (turn: Turn): Verify =>
    (raw, keys, message) =>
      readUnsigned(raw, message) ?? runOr(turn, { kind: 'verify', raw, keys }, () => describeUnverified(raw));

  return {
    async examine(raw, origin, ownerId = '') {
      const turn = { ownerId, sender: origin.remoteIp ?? '' };
      const authenticate = await loadAuthenticate();
      const [authentication, parsed] = await Promise.all(
        isLarge(raw)
          ? [authenticate(raw, origin, verifyIn(turn)), parse(turn, raw)]
          : [authenticate(raw, origin), parseMessage(raw)],
      );
      return { parsed, authentication };
    },
    async extract(raw, n, ownerId = '', signal) {
      if (!isLarge(raw)) return extractAttachment(raw, n);
      const turn = { ownerId, sender: '', signal };
      return (await worker.run(turn, { kind: 'extract', raw, n })) as ExtractedAttachment;
    },
    outgoing: {
      async compose(mail, ownerId) {
        if (countText(mail) < largeBytes) return composeMail(mail);
        const turn = { ownerId, sender: '' };
        const { content } = (await worker.run(turn, { kind: 'compose', mail })) as { content: Uint8Array };
        return toBuffer(content);
      },
      async prepare(raw, options, ownerId) {
        if (!isLarge(raw)) return prepareMessage(raw, options);
        const turn = { ownerId, sender: '' };
        const prepared = (await worker.run(turn, { kind: 'prepare', raw, options })) as Prepared;
        return 'errors' in prepared ? prepared : { ...prepared, bytes: toBuffer(prepared.bytes) };
      },
      parse: (raw, ownerId) => (isLarge(raw) ? parse({ ownerId, sender: '' }, raw) : parseMessage(raw)),
      async sign(raw, key, now, ownerId) {
        if (raw.length < largeBytes) return signMessage(raw, key, now);
        return (await worker.run({ ownerId, sender: '' }, { kind: 'sign', raw, key, now })) as Signed;
      },
      async report(raw, ownerId) {
        if (!isLarge(raw)) return extractReport(raw);
        return runOr({ ownerId, sender: '' }, { kind: 'report', raw }, () => null);
      },
    },
    stop: () => worker.stop(),
  };
}

function toBuffer({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** About how many characters are composed. */
function countText({ text, html, attachments }: ComposedMail): number {
  const attached = attachments.reduce((sum, { content }) => sum + content.length, 0);
  return (text?.length ?? 0) + (html?.length ?? 0) + attached;
}

function isLarge(raw: Buffer): boolean {
  if (raw.length >= largeBytes) return true;
  return raw.length > largeHeaderBytes && findHeaderEnd(raw, largeHeaderBytes) === null;
}

async function parseHead(raw: Buffer): Promise<ParsedMessage> {
  const parsed = await parseMessage(cutAtLine(raw, headBytes));
  const missing = findHeaderEnd(raw, headBytes) === null ? ['headers', 'body'] : ['body'];
  const truncated = [...new Set([...parsed.truncated, ...missing])];
  const body = { text: null, html: null, preview: null, report: null, returnedIds: [], attachments: [] };
  return { ...parsed, ...body, truncated };
}

function overloaded(): Problem {
  return new Problem('overloaded', { headers: { 'retry-after': '60' } });
}

/** For whom the worker works: owners take turns, and within an owner the senders. */
interface Turn {
  ownerId: string;
  /** The address that the message came from; empty for the owner itself. */
  sender: string;
  /** Ends the wait for the turn. */
  signal?: AbortSignal | undefined;
}

class Stopped extends Error {
  constructor() {
    super('The examiner was stopped');
  }
}

/**
 * Starts the worker for the first job and ends it after `idleMs` without one. Runs one job at a time: if the worker breaks or
 * takes too long, the current job is the cause, and the jobs that wait are not affected.
 */
function makeExamineWorker(limits: { timeoutMs: number; waitMs: number; idleMs: number }) {
  const { timeoutMs, waitMs } = limits;
  const turns = new Slots({ inAll: 1, perOwner: 1 });
  const stopping = new AbortController();
  let worker: Worker | undefined;
  let current:
    | { worker: Worker; resolve(result: ExamineResult): void; reject(error: Error): void }
    | undefined;
  let idleTimer: NodeJS.Timeout | undefined;
  let idleMs = limits.idleMs;

  function start(): Worker {
    const file = `./examine-worker${path.extname(import.meta.url)}`;
    // The messages are outside the worker's heap, so a small heap is enough.
    const started = new Worker(new URL(file, import.meta.url), {
      resourceLimits: { maxYoungGenerationSizeMb: 3 },
    });
    started.unref();
    started.on('message', (result: ExamineResult) => current?.worker === started && current.resolve(result));
    started.on('messageerror', (error) => abandon(started, error));
    started.on('error', (error) => abandon(started, error));
    started.on('exit', () => abandon(started, new Error('The worker ended')));
    return started;
  }

  /** Fails the worker's job. The next job starts another worker. */
  function abandon(broken: Worker, error: Error): void {
    if (worker === broken) worker = undefined;
    void broken.terminate();
    if (current?.worker === broken) current.reject(error);
  }

  async function run({ ownerId, sender, signal }: Turn, job: ExamineJob): Promise<ExamineResult> {
    using _turn = await turns.take(ownerId, 1, {
      key: sender,
      signal: signal ? AbortSignal.any([stopping.signal, signal]) : stopping.signal,
      timeout: { ms: waitMs, error: overloaded },
    });
    stopping.signal.throwIfAborted();
    clearTimeout(idleTimer);
    let timer: NodeJS.Timeout | undefined;
    try {
      worker ??= start();
      const used = worker;
      timer = setTimeout(() => abandon(used, new Error('The worker took too long')), timeoutMs);
      return await new Promise((resolve, reject) => {
        current = { worker: used, resolve, reject };
        if (job.kind === 'extract') used.postMessage(job, [job.raw.buffer as ArrayBuffer]);
        else if (job.kind === 'compose') used.postMessage(job);
        else {
          if (job.raw.length >= hugeBytes) idleMs = idleAfterHugeMs;
          used.postMessage({ ...job, raw: shareBytes(job.raw) } satisfies ExamineJob);
        }
      });
    } finally {
      clearTimeout(timer);
      current = undefined;
      if (!stopping.signal.aborted) idleTimer = setTimeout(end, idleMs).unref();
    }
  }

  async function end(): Promise<void> {
    const ending = worker;
    worker = undefined;
    idleMs = limits.idleMs;
    await ending?.terminate();
  }

  async function stop(): Promise<void> {
    stopping.abort(new Stopped());
    clearTimeout(idleTimer);
    current?.reject(new Stopped());
    await end();
  }

  return { run, stop };
}

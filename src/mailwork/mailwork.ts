/**
 * The work on mail whose time a stranger or a user decides: parse, authenticate, extract, compose, prepare, sign. What is small is done
 * at once; what is large is done by worker threads (threads.ts), so that it delays neither the event loop nor other owners.
 * Guarantee: `examine` and `report` reject only when the service stops, or with `overloaded` when no thread is free in time. Mail that
 * breaks a thread or takes too long is accepted with its header alone. Work for a user that does the same is the user's fault: a
 * `message_too_complex`.
 */
import { availableParallelism } from 'node:os';
import path from 'node:path';
import type { Log } from '../lib/log.ts';
import { once } from '../lib/once.ts';
import { largeBytes, shareBytes } from '../lib/shared-bytes.ts';
import { makeTurns } from '../lib/turns.ts';
import type { Authentication, MailOrigin, Verify } from '../mailauth/authenticate.ts';
import type { Signed, SigningKey } from '../mailauth/sign.ts';
import { describeUnverified, readUnsigned } from '../mailauth/signatures.ts';
import type { ComposedMail, TooLarge } from '../mime/compose.ts';
import { cutAtLine, findHeaderEnd } from '../mime/headers.ts';
import type { PrepareOptions } from '../mime/outgoing.ts';
import { parseMessage } from '../mime/parse.ts';
import type { FoundReport } from '../mime/reports.ts';
import { clientNetwork } from '../net/client-network.ts';
import { type FieldError, Problem } from '../problems.ts';
import type { DraftBody } from './draft-body.ts';
import type { HookBody } from './hook-body.ts';
import {
  type Composed,
  type ExtractedAttachment,
  type JobKind,
  jobs,
  type MailJobs,
  type Prepared,
  type ReadMail,
  readRawFacts,
} from './jobs.ts';
import { JobFailed, type ThreadLimits, Threads, type Turn } from './threads.ts';

export interface Examination extends ReadMail {
  authentication: Authentication;
}

/** `ownerId`: whose turn at the threads the work takes. */
export interface MailWork {
  examine(raw: Buffer, origin: MailOrigin, ownerId?: string): Promise<Examination>;
  /**
   * The decoded attachment `n`; null if there is none. May transfer the memory of `raw`, which is unusable afterwards. `signal` ends
   * the wait for a thread.
   */
  extract(
    raw: Buffer,
    n: number,
    ownerId?: string,
    signal?: AbortSignal,
  ): Promise<ExtractedAttachment | null>;
  parse(raw: Buffer, ownerId: string): Promise<ReadMail>;
  report(raw: Buffer, ownerId: string): Promise<FoundReport | null>;
  readHook(raw: Buffer, contentType: string, ownerId: string): Promise<HookBody>;
  /** Of a JSON body that is too large for the event loop. */
  readDraft(raw: Buffer, ownerId: string, signal: AbortSignal): Promise<DraftBody>;
  /** `body`: a body of `readDraft`, which has the texts and attachments. */
  compose(mail: ComposedMail, ownerId: string, options: ComposeOptions): Promise<Composed | TooLarge>;
  prepare(
    raw: Buffer,
    options: PrepareOptions,
    ownerId: string,
  ): Promise<Prepared | { errors: FieldError[] }>;
  sign(raw: Buffer, key: SigningKey, now: Date, ownerId: string): Promise<Signed>;
  /** Rejects what is not finished. */
  stop(): Promise<void>;
}

interface ComposeOptions {
  maxBytes: number;
  body: Buffer | null;
}

const largeHeaderBytes = 32 * 1024;
/** So little is never much work. */
const smallBytes = 8 * 1024;
/**
 * Encoded words (`=?`), encoded parameters (`*=`) and lines of the header with bytes above 127 are decoded one by one: each takes up
 * to 5 µs.
 */
const maxDecodes = 1000;
/**
 * A thread keeps the shared memory of a message until V8 collects the thread's small heap, which may be never. So the thread ends
 * after a huge message. Starting another thread costs little compared with reading such a message.
 */
const hugeBytes = 4 * 1024 * 1024;
/** Bytes of small messages that are worked on in one turn of the event loop, and what a message costs beside its bytes. */
const bytesPerTurn = 64 * 1024;
const bytesPerMessage = 4 * 1024;
/** How much of a message is parsed for its header after it broke a thread. */
const headBytes = 64 * 1024;

const usualLimits: ThreadLimits = {
  threads: Math.max(2, availableParallelism() - 1),
  timeoutMs: 30_000,
  waitMs: 60_000,
  idleMs: 30_000,
};

export function makeMailWork(
  options: { dnsServers: readonly string[] | null; mailHost: string; log: Log } & Partial<ThreadLimits>,
): MailWork {
  const { dnsServers, mailHost, log } = options;
  // Loading takes a fifth of the time of a start, so the start does not wait for it.
  const loadAuthenticate = once(async () => {
    const { makeAuthenticate } = await import('../mailauth/authenticate.ts');
    return makeAuthenticate({ dnsServers, mailHost });
  });
  // Not at the first message: one of 25 MiB had a peak of 337 MB then, and 296 MB with the code loaded before.
  void loadAuthenticate();
  const script = new URL(`./worker${path.extname(import.meta.url)}`, import.meta.url);
  const threads = new Threads<unknown, unknown>(script, { ...usualLimits, ...options });

  const turnsHere = makeTurns(bytesPerTurn);
  const takeTurnHere = (ownerId: string, bytes: number) =>
    new Promise<void>((resolve) => turnsHere.start(ownerId, resolve, bytes + bytesPerMessage));

  async function run<Kind extends JobKind>(
    kind: Kind,
    given: MailJobs[Kind]['given'],
    turn: Turn,
  ): Promise<MailJobs[Kind]['result']> {
    const { raw } = given;
    const isHuge = raw !== undefined && raw.length >= hugeBytes;
    const sent =
      kind === 'extract' && raw
        ? moveBytes(kind, given, raw)
        : { job: { kind, given: raw ? { ...given, raw: shareBytes(raw) } : given } };
    return (await threads.run(turn, { ...sent, isHuge })) as MailJobs[Kind]['result'];
  }

  /** For mail of strangers. */
  async function runOr<Kind extends JobKind>(
    kind: Kind,
    given: MailJobs[Kind]['given'],
    turn: Turn,
    fallback: () => MailJobs[Kind]['result'] | Promise<MailJobs[Kind]['result']>,
  ): Promise<MailJobs[Kind]['result']> {
    try {
      return await run(kind, given, turn);
    } catch (err) {
      if (!(err instanceof JobFailed)) throw err;
      log.error({ err, job: kind }, 'A message could not be examined; only its header is used');
      return fallback();
    }
  }

  /** For what a user asked for. */
  async function runFor<Kind extends JobKind>(
    kind: Kind,
    given: MailJobs[Kind]['given'],
    turn: Turn,
  ): Promise<MailJobs[Kind]['result']> {
    try {
      return await run(kind, given, turn);
    } catch (cause) {
      if (!(cause instanceof JobFailed)) throw cause;
      log.warn(
        { err: cause, job: kind, ownerId: turn.ownerId },
        'A job of a user broke its thread or took too long',
      );
      throw new Problem('message_too_complex', { cause });
    }
  }

  /** Does a small job on the event loop, in the turn of its owner. */
  async function runHere<Kind extends JobKind>(
    kind: Kind,
    given: MailJobs[Kind]['given'],
    ownerId: string,
    bytes: number,
  ): Promise<MailJobs[Kind]['result']> {
    await takeTurnHere(ownerId, bytes);
    return jobs[kind](given);
  }

  const parse = (raw: Buffer, turn: Turn) => runOr('parse', { raw }, turn, () => parseHead(raw));
  const verifyIn =
    (turn: Turn): Verify =>
    (raw, keys, message) =>
      readUnsigned(raw, message) ?? runOr('verify', { raw, keys }, turn, () => describeUnverified(raw));

  return {
    async examine(raw, origin, ownerId = '') {
      const turn = { ownerId, sender: clientNetwork(origin.remoteIp ?? '') };
      const authenticate = await loadAuthenticate();
      if (!isLarge(raw)) await takeTurnHere(ownerId, raw.length);
      const [authentication, read] = await Promise.all(
        isLarge(raw)
          ? [authenticate(raw, origin, verifyIn(turn)), parse(raw, turn)]
          : [authenticate(raw, origin), jobs.parse({ raw })],
      );
      // To write and record what was read costs the event loop as much as a small message.
      if (isLarge(raw)) await takeTurnHere(ownerId, bytesPerTurn);
      return { ...read, authentication };
    },
    async extract(raw, n, ownerId = '', signal) {
      return isLarge(raw)
        ? runFor('extract', { raw, n }, { ownerId, signal })
        : runHere('extract', { raw, n }, ownerId, raw.length);
    },
    async parse(raw, ownerId) {
      return isLarge(raw) ? parse(raw, { ownerId }) : runHere('parse', { raw }, ownerId, raw.length);
    },
    async report(raw, ownerId) {
      return isLarge(raw)
        ? runOr('report', { raw }, { ownerId }, () => null)
        : runHere('report', { raw }, ownerId, raw.length);
    },
    async readHook(raw, contentType, ownerId) {
      const given = { raw, contentType };
      return raw.length < largeBytes
        ? runHere('readHook', given, ownerId, raw.length)
        : runFor('readHook', given, { ownerId });
    },
    readDraft: (raw, ownerId, signal) => runFor('readDraft', { raw }, { ownerId, signal }),
    async compose(mail, ownerId, { maxBytes, body }) {
      const given = { ...(body ? { raw: body } : {}), mail, maxBytes };
      const length = countText(mail);
      if (!body && length < largeBytes) return runHere('compose', given, ownerId, length);
      const composed = await runFor('compose', given, { ownerId });
      return 'bytes' in composed ? { ...composed, bytes: toBuffer(composed.bytes) } : composed;
    },
    async prepare(raw, options, ownerId) {
      if (!isLarge(raw)) return runHere('prepare', { raw, options }, ownerId, raw.length);
      const prepared = await runFor('prepare', { raw, options }, { ownerId });
      return 'errors' in prepared ? prepared : { ...prepared, bytes: toBuffer(prepared.bytes) };
    },
    async sign(raw, key, now, ownerId) {
      return raw.length < largeBytes
        ? runHere('sign', { raw, key, now }, ownerId, raw.length)
        : run('sign', { raw, key, now }, { ownerId });
    },
    stop: () => threads.stop(),
  };
}

/** Without a copy, where the bytes have memory of their own: Node's pool for small buffers cannot be moved. */
function moveBytes(kind: JobKind, given: object, raw: Buffer) {
  const isAlone = raw.buffer instanceof ArrayBuffer && raw.buffer.byteLength === raw.length;
  const moved = isAlone ? raw : new Uint8Array(raw);
  return { job: { kind, given: { ...given, raw: moved } }, transfer: [moved.buffer as ArrayBuffer] };
}

/** What comes from a thread as a Uint8Array. */
function toBuffer({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** About how many characters are composed. */
function countText({ text, html, attachments }: ComposedMail): number {
  const attached = attachments.reduce((sum, { content }) => sum + content.length, 0);
  return (text?.length ?? 0) + (html?.length ?? 0) + attached;
}

function isLarge(raw: Buffer): boolean {
  if (raw.length < smallBytes || raw.length >= largeBytes) return raw.length >= largeBytes;
  const header = findHeaderEnd(raw, largeHeaderBytes);
  if (!header && raw.length > largeHeaderBytes) return true;
  return hasMany(raw, '=?') || hasMany(raw, '*=') || hasMany8BitLines(raw.subarray(0, header?.end));
}

function hasMany(raw: Buffer, mark: string): boolean {
  let count = 0;
  for (let at = raw.indexOf(mark); at !== -1 && count <= maxDecodes; at = raw.indexOf(mark, at + 1)) count++;
  return count > maxDecodes;
}

function hasMany8BitLines(header: Buffer): boolean {
  let count = 0;
  for (let at = 0; at < header.length && count <= maxDecodes; at++) {
    if ((header[at] ?? 0) < 0x80) continue;
    count++;
    at = header.indexOf('\n', at);
    if (at === -1) break;
  }
  return count > maxDecodes;
}

async function parseHead(raw: Buffer): Promise<ReadMail> {
  const parsed = await parseMessage(cutAtLine(raw, headBytes));
  const missing = findHeaderEnd(raw, headBytes) === null ? ['headers', 'body'] : ['body'];
  const truncated = [...new Set([...parsed.truncated, ...missing])];
  const body = { text: null, html: null, preview: null, report: null, returnedIds: [], attachments: [] };
  return { parsed: { ...parsed, ...body, truncated }, facts: readRawFacts(raw) };
}

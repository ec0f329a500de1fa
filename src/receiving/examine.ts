/**
 * What a message says and whom it is from: parsed and authenticated. Small ones at once; large ones in a thread, so that
 * seconds of work on one message hold up no other. Always answers until it is stopped: mail that cannot be examined is still
 * mail.
 */
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import type { Log } from '../lib/log.ts';
import { largeBytes, shareBytes } from '../lib/shared-bytes.ts';
import { Slots } from '../lib/slots.ts';
import {
  type Authentication,
  type MailOrigin,
  makeAuthenticate,
  type Verify,
} from '../mailauth/authenticate.ts';
import type { Keys } from '../mailauth/dkim.ts';
import { describeUnverified, readUnsigned, type SignatureResults } from '../mailauth/signatures.ts';
import { cutAtLine, findHeaderEnd } from '../mime/headers.ts';
import { extractAttachment, type ParsedAttachment, type ParsedMessage, parseMessage } from '../mime/parse.ts';

export interface Examination {
  parsed: ParsedMessage;
  authentication: Authentication;
}

type Extracted = { meta: ParsedAttachment; content: Uint8Array } | null;

/** What the thread is asked and answers. It computes, and waits for nothing: the waiting for DNS is done here. */
export type Question =
  | { kind: 'parse'; raw: Uint8Array }
  | { kind: 'verify'; raw: Uint8Array; keys: Keys }
  | { kind: 'extract'; raw: Uint8Array; n: number };
export type Told = ParsedMessage | SignatureResults | Extracted;

export interface Examiner {
  examine(raw: Buffer, envelope: MailOrigin): Promise<Examination>;
  /** Takes the bytes away: `raw` has memory of its own, and none afterwards. The decoded bytes of an attachment; null when the message has no such one. */
  extract(raw: Buffer, n: number): Promise<Extracted>;
  /** What is under way is rejected. */
  stop(): Promise<void>;
}

const largeHeaderBytes = 32 * 1024;
const idleMs = 30_000;
/** Of a message that broke the thread, so much is read once more, for its header. */
const headBytes = 64 * 1024;

export function makeExaminer(options: {
  dnsServers: readonly string[] | null;
  mailHost: string;
  log: Log;
  /** What a message may take of the thread; the largest of the worst kind takes a tenth. */
  timeoutMs?: number;
}): Examiner {
  const { dnsServers, mailHost, log, timeoutMs = 30_000 } = options;
  const authenticate = makeAuthenticate({ dnsServers, mailHost });
  const thread = makeThread(timeoutMs);

  async function askOr<T extends Told>(question: Question, otherwise: () => T | Promise<T>): Promise<T> {
    try {
      return (await thread.ask(question)) as T;
    } catch (err) {
      if (err instanceof Stopped) throw err;
      log.error({ err, asked: question.kind }, 'a message could not be examined; its header alone is read');
      return otherwise();
    }
  }
  const parse = (raw: Buffer) => askOr({ kind: 'parse', raw }, () => parseHead(raw));
  const verify: Verify = (raw, keys, message) =>
    readUnsigned(raw, message) ?? askOr({ kind: 'verify', raw, keys }, () => describeUnverified(raw));

  return {
    async examine(raw, envelope) {
      const [authentication, parsed] = await Promise.all(
        isLarge(raw)
          ? [authenticate(raw, envelope, verify), parse(raw)]
          : [authenticate(raw, envelope), parseMessage(raw)],
      );
      return { parsed, authentication };
    },
    async extract(raw, n) {
      if (!isLarge(raw)) return extractAttachment(raw, n);
      return (await thread.ask({ kind: 'extract', raw, n })) as Extracted;
    },
    stop: () => thread.stop(),
  };
}

function isLarge(raw: Buffer): boolean {
  if (raw.length >= largeBytes) return true;
  return raw.length > largeHeaderBytes && findHeaderEnd(raw, largeHeaderBytes) === -1;
}

async function parseHead(raw: Buffer): Promise<ParsedMessage> {
  const parsed = await parseMessage(cutAtLine(raw, headBytes));
  const cut = findHeaderEnd(raw, headBytes) === -1 ? ['headers', 'body'] : ['body'];
  const truncated = [...new Set([...parsed.truncated, ...cut])];
  return { ...parsed, text: null, html: null, preview: null, attachments: [], truncated };
}

class Stopped extends Error {
  constructor() {
    super('The examiner was stopped');
  }
}

interface Open {
  worker: Worker;
  resolve(told: Told): void;
  reject(error: Error): void;
}

/**
 * One thread, started when it is needed and ended when it is not. One question at a time, since it computes without a pause:
 * what breaks it or takes too long is always the question at hand, and those that wait lose nothing but time.
 */
function makeThread(timeoutMs: number) {
  const places = new Slots({ inAll: 1, perKey: 1 });
  let worker: Worker | undefined;
  let open: Open | undefined;
  let idle: NodeJS.Timeout | undefined;
  let isStopped = false;

  function start(): Worker {
    const file = `./examine-worker${path.extname(import.meta.url)}`;
    const started = new Worker(new URL(file, import.meta.url), {
      // It works on bytes, which lie outside of the heap.
      resourceLimits: { maxYoungGenerationSizeMb: 3 },
    });
    started.unref();
    started.on('message', (told: Told) => open?.worker === started && open.resolve(told));
    started.on('messageerror', (error) => giveUp(started, error));
    started.on('error', (error) => giveUp(started, error));
    started.on('exit', () => giveUp(started, new Error('The thread ended')));
    return started;
  }

  /** What it was asked fails with it; the next question starts another. */
  function giveUp(broken: Worker, error: Error): void {
    if (worker === broken) worker = undefined;
    void broken.terminate();
    if (open?.worker === broken) open.reject(error);
  }

  async function ask(question: Question): Promise<Told> {
    await places.take('');
    try {
      if (isStopped) throw new Stopped();
      return await put(question);
    } finally {
      places.release('');
    }
  }

  async function put(question: Question): Promise<Told> {
    clearTimeout(idle);
    worker ??= start();
    const asked = worker;
    const late = setTimeout(() => giveUp(asked, new Error('The thread took too long')), timeoutMs);
    try {
      return await new Promise((resolve, reject) => {
        open = { worker: asked, resolve, reject };
        if (question.kind === 'extract') asked.postMessage(question, [question.raw.buffer as ArrayBuffer]);
        else asked.postMessage({ ...question, raw: shareBytes(question.raw) } satisfies Question);
      });
    } finally {
      clearTimeout(late);
      open = undefined;
      if (!isStopped) idle = setTimeout(end, idleMs).unref();
    }
  }

  function end(): void {
    const ending = worker;
    worker = undefined;
    void ending?.terminate();
  }

  async function stop(): Promise<void> {
    isStopped = true;
    clearTimeout(idle);
    const ending = worker;
    worker = undefined;
    open?.reject(new Stopped());
    await ending?.terminate();
  }

  return { ask, stop };
}

/**
 * What a message says and whom it is from: parsed and authenticated. Small ones at once; large ones in a thread, so that
 * seconds of work on one message hold up no other. Always answers: mail that cannot be examined is still mail.
 */
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import type { Log } from '../lib/log.ts';
import { Slots } from '../lib/slots.ts';
import {
  type Authenticate,
  type Authentication,
  type Envelope,
  makeAuthenticate,
  unknownAuthentication,
} from './authenticate.ts';
import { extractAttachment, type ParsedAttachment, type ParsedMessage, parseMessage } from './parse.ts';

export interface Examination {
  parsed: ParsedMessage;
  authentication: Authentication;
}

type Extracted = { meta: ParsedAttachment; content: Uint8Array } | null;

/** What the thread is asked and answers, and the settings it is made with. */
export type Question =
  | { kind: 'examine'; raw: Uint8Array; envelope: Envelope }
  | { kind: 'extract'; raw: Uint8Array; n: number };
export interface Asked {
  id: number;
  question: Question;
}
export interface Answer {
  id: number;
  told: Examination | Extracted;
}
export interface AuthenticateOptions {
  dnsServers: readonly string[] | null;
  mailHost: string;
}

export interface Examiner {
  examine(raw: Buffer, envelope: Envelope): Promise<Examination>;
  /** The decoded bytes of an attachment; null when the message has no such one. */
  extract(raw: Buffer, n: number): Promise<Extracted>;
  stop(): Promise<void>;
}

/** From here on a message is worth the way to a thread and back: about 5 ms of work. */
const largeBytes = 256 * 1024;
const questionsAtOnce = 4;
const idleMs = 30_000;
const patienceMs = 30_000;
/** Of a message that broke the thread, so much is read once more, for its header. */
const headBytes = 64 * 1024;

export function makeExaminer(options: AuthenticateOptions & { log: Log }): Examiner {
  const { dnsServers, mailHost, log } = options;
  const authenticate = makeAuthenticate({ dnsServers, mailHost });
  const thread = makeThread({ dnsServers, mailHost });

  return {
    async examine(raw, envelope) {
      if (raw.length < largeBytes) return examine(authenticate, raw, envelope);
      try {
        return (await thread.ask({ kind: 'examine', raw, envelope })) as Examination;
      } catch (err) {
        log.error({ err }, 'a message could not be examined; it is taken with its header alone');
        const parsed = await parseMessage(raw.subarray(0, headBytes));
        return {
          parsed: { ...parsed, text: null, html: null, preview: null, attachments: [], truncated: ['body'] },
          authentication: unknownAuthentication,
        };
      }
    },
    async extract(raw, n) {
      if (raw.length < largeBytes) return extractAttachment(raw, n);
      return (await thread.ask({ kind: 'extract', raw, n })) as Extracted;
    },
    stop: () => thread.stop(),
  };
}

export async function examine(
  authenticate: Authenticate,
  raw: Buffer,
  envelope: Envelope,
): Promise<Examination> {
  const [authentication, parsed] = await Promise.all([authenticate(raw, envelope), parseMessage(raw)]);
  return { parsed, authentication };
}

/** One thread, started when it is needed and ended when it is not, for a few questions at once. */
function makeThread(options: AuthenticateOptions) {
  const places = new Slots({ inAll: questionsAtOnce, perKey: questionsAtOnce });
  const open = new Map<number, { resolve(told: unknown): void; reject(error: Error): void }>();
  let asked = 0;
  let worker: Worker | undefined;
  let idle: NodeJS.Timeout | undefined;

  function start(): Worker {
    const file = `./examine-thread${path.extname(import.meta.url)}`;
    const started = new Worker(new URL(file, import.meta.url), { workerData: options });
    started.unref();
    started.on('message', ({ id, told }: Answer) => open.get(id)?.resolve(told));
    started.on('error', (error) => giveUp(started, error));
    started.on('exit', () => giveUp(started, new Error('The thread ended')));
    return started;
  }

  /** What it was asked is lost with it; the next question starts another. */
  function giveUp(broken: Worker, error: Error): void {
    if (worker !== broken) return;
    worker = undefined;
    void broken.terminate();
    for (const { reject } of [...open.values()]) reject(error);
  }

  async function ask(question: Question): Promise<unknown> {
    await places.take('');
    clearTimeout(idle);
    worker ??= start();
    const thread = worker;
    const late = setTimeout(() => giveUp(thread, new Error('The thread took too long')), patienceMs);
    const id = asked++;
    try {
      return await new Promise((resolve, reject) => {
        open.set(id, { resolve, reject });
        // A copy to give away: the caller's bytes are still to be stored.
        const raw = new Uint8Array(question.raw);
        thread.postMessage({ id, question: { ...question, raw } } satisfies Asked, [raw.buffer]);
      });
    } finally {
      clearTimeout(late);
      open.delete(id);
      places.release('');
      if (open.size === 0) idle = setTimeout(() => void stop(), idleMs).unref();
    }
  }

  async function stop(): Promise<void> {
    clearTimeout(idle);
    const ending = worker;
    worker = undefined;
    await ending?.terminate();
  }

  return { ask, stop };
}

/**
 * Bounds the memory of answers that clients have not read. An answer that may be large reserves its bytes before it is built, in the
 * share of its owner, and keeps them until the client has read it or is gone. A client that reads nothing for `stalledMs` is cut. When
 * room is short, clients that read slowly are cut, those of the owner with the most unread bytes first: reading a few bytes now and
 * then would keep the room for ever.
 */
import type { Socket } from 'node:net';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { type Share, Slots } from '../lib/slots.ts';
import { Problem } from '../problems.ts';
import { abortOnClose } from './client-gone.ts';
import type { App } from './fastify.ts';

export interface AnswerLimits {
  /** Bytes of large answers that are being built or sent: in total, and for each owner. */
  inAll: number;
  perOwner: number;
  /** How long a request waits for a reservation. */
  waitMs: number;
  /** How long a client may read nothing of its answer. */
  stalledMs: number;
  /** A client that needs longer for its answer is cut when others need the room. */
  slowMs: number;
  /** Requests of one connection that are not answered yet. Each takes about 25 KB, and Node starts all that arrive together. */
  maxPipelined: number;
}

const defaultLimits: AnswerLimits = {
  inAll: 64 * 1024 * 1024,
  perOwner: 24 * 1024 * 1024,
  waitMs: 10_000,
  stalledMs: 30_000,
  slowMs: 5000,
  maxPipelined: 64,
};

/** Smaller answers are sent as they are: making bytes of the text would cost more than it saves. */
const smallBytes = 64 * 1024;

export interface AnswerMemory {
  /** Call it once, before a large answer is built, with about its size. Throws 503 when there is no room in time. */
  reserve(request: FastifyRequest, reply: FastifyReply, bytes: number): Promise<void>;
}

/** An answer that is being built or sent. */
interface Answer {
  readonly ownerId: string;
  /** To somebody who has a signed link, and perhaps no key of the owner. */
  readonly isLink: boolean;
  readonly share: Share;
  bytes: number;
  /** By `performance.now()`; null while it is being built. */
  sentAt: number | null;
  cut(): void;
}

declare module 'fastify' {
  interface FastifyReply {
    answer: Answer | null;
  }
}

export function boundAnswers(app: App, limits: AnswerLimits = defaultLimits): AnswerMemory {
  const memory = new Slots(limits);
  const open = new Set<Answer>();
  /** By owner: when `cutSlow` last ran. Thousands of requests may wait, and one run serves all of an owner. */
  const cutAt = new Map<string, number>();
  const cutEveryMs = limits.slowMs / 5;
  app.decorateReply('answer', null);

  async function reserve(request: FastifyRequest, reply: FastifyReply, bytes: number): Promise<void> {
    const { ownerId, keyId } = request;
    const share = memory.tryTake(ownerId, bytes) ?? (await wait(request, reply, bytes));
    const { raw } = reply;
    // The socket, because the response does not have it yet while it waits for earlier ones on the same connection.
    const cut = () => request.raw.socket.destroy();
    const answer = { ownerId, isLink: keyId === '', share, bytes, sentAt: null, cut };
    const end = () => {
      share.release();
      open.delete(answer);
    };
    // The client may have closed its connection meanwhile: then `close` does not come again.
    if (raw.destroyed) return end();
    reply.answer = answer;
    open.add(answer);
    raw.once('close', end);
  }

  async function wait(request: FastifyRequest, reply: FastifyReply, bytes: number): Promise<Share> {
    const makeRoom = () => cutSlow(request, bytes);
    const cutting = setInterval(makeRoom, cutEveryMs);
    try {
      const timeout = { ms: limits.waitMs, error: tooLate };
      const taken = memory.take(request.ownerId, bytes, { signal: abortOnClose(reply), timeout });
      makeRoom();
      return await taken;
    } finally {
      clearInterval(cutting);
    }
  }

  /** Makes room for `bytes`, if slow clients use it: in the owner's part those with a link, else those of whoever uses the most. */
  function cutSlow({ ownerId, keyId }: FastifyRequest, bytes: number): void {
    const now = performance.now();
    if (now - (cutAt.get(ownerId) ?? -Infinity) < cutEveryMs) return;
    cutAt.set(ownerId, now);
    const used = new Map<string, number>();
    for (const answer of open) used.set(answer.ownerId, (used.get(answer.ownerId) ?? 0) + answer.bytes);
    const usedBy = (owner: string) => used.get(owner) ?? 0;
    const isOwnPartUsedUp = usedBy(ownerId) + bytes > limits.perOwner;
    const slow = [...open]
      .filter(({ sentAt }) => sentAt !== null && sentAt < now - limits.slowMs)
      .filter((answer) =>
        isOwnPartUsedUp
          ? answer.ownerId === ownerId && answer.isLink && keyId !== ''
          : usedBy(answer.ownerId) > usedBy(ownerId) + bytes,
      )
      .sort((one, other) => usedBy(other.ownerId) - usedBy(one.ownerId));
    for (let freed = 0; freed < bytes; ) {
      const next = slow.shift();
      if (!next) return;
      freed += next.bytes;
      next.cut();
    }
  }

  const unanswered = new WeakMap<Socket, number>();
  app.addHook('onRequest', ({ raw: { socket } }, reply, done) => {
    const count = (unanswered.get(socket) ?? 0) + 1;
    unanswered.set(socket, count);
    // Without `done`: nobody can read the answer.
    if (count > limits.maxPipelined) return void socket.destroy();
    reply.raw.once('close', () => unanswered.set(socket, (unanswered.get(socket) ?? 1) - 1));
    done();
  });

  // It never waits: a handler may send its answer and resolve without it, and fastify would then send another.
  app.addHook('onSend', (_request, reply, payload, done) => {
    // Node resets it for the next request. It counts as progress that the system took bytes, not that we wrote them.
    reply.raw.setTimeout(limits.stalledMs);
    const { answer } = reply;
    if (answer) answer.sentAt = performance.now();
    if (typeof payload !== 'string' && !Buffer.isBuffer(payload)) return done(null, payload);
    // A string would be in memory twice until the client has read it.
    const isSmall = payload.length <= smallBytes;
    const bytes = isSmall || Buffer.isBuffer(payload) ? payload : Buffer.from(payload);
    if (answer) {
      // Small ones count too: a client can ask for hundreds of them over one connection before it reads any.
      answer.bytes = Math.min(answer.bytes, bytes.length);
      answer.share.shrinkTo(answer.bytes);
    }
    done(null, bytes);
  });

  return { reserve };
}

function tooLate(): Problem {
  return new Problem('answers_unread', { headers: { 'retry-after': '5' } });
}

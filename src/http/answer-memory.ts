/**
 * Bounds the memory of answers that clients have not read. An answer that may be large reserves its bytes before it is built, in the
 * share of its owner, and keeps them until the client has read it or is gone. A client that reads nothing for `stalledMs` is cut.
 */
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
}

const defaultLimits: AnswerLimits = {
  inAll: 96 * 1024 * 1024,
  perOwner: 32 * 1024 * 1024,
  waitMs: 10_000,
  stalledMs: 30_000,
};

/** Smaller answers are not counted: a connection takes about as much by itself. */
const smallBytes = 64 * 1024;

export interface AnswerMemory {
  /** Call it once, before a large answer is built, with about its size. Throws 503 when there is no room in time. */
  reserve(request: FastifyRequest, reply: FastifyReply, bytes: number): Promise<void>;
}

declare module 'fastify' {
  interface FastifyReply {
    answerShare: Share | null;
  }
}

export function boundAnswers(app: App, limits: AnswerLimits = defaultLimits): AnswerMemory {
  const memory = new Slots(limits);
  app.decorateReply('answerShare', null);

  async function reserve({ ownerId }: FastifyRequest, reply: FastifyReply, bytes: number): Promise<void> {
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(tooLate()), limits.waitMs);
    try {
      const signal = AbortSignal.any([late.signal, abortOnClose(reply)]);
      const share = await memory.take(ownerId, bytes, { signal });
      reply.answerShare = share;
      // The client may have closed its connection meanwhile: then `close` does not come again.
      if (reply.raw.destroyed) share.release();
      else reply.raw.once('close', share.release);
    } finally {
      clearTimeout(timer);
    }
  }

  // It never waits: a handler may send its answer and resolve without it, and fastify would then send another.
  app.addHook('onSend', (_request, reply, payload, done) => {
    // Node resets it for the next request. It counts as progress that the system took bytes, not that we wrote them.
    reply.raw.setTimeout(limits.stalledMs);
    if (typeof payload !== 'string' && !Buffer.isBuffer(payload)) return done(null, payload);
    if (payload.length <= smallBytes) {
      reply.answerShare?.release();
      return done(null, payload);
    }
    // A string would be in memory twice until the client has read it.
    const bytes = Buffer.isBuffer(payload) ? payload : Buffer.from(payload);
    reply.answerShare?.shrinkTo(bytes.length);
    done(null, bytes);
  });

  return { reserve };
}

function tooLate(): Problem {
  return new Problem('answers_unread', { headers: { 'retry-after': '5' } });
}

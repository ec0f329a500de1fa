/**
 * No request waits for ever: the driver can lose a query when a connection breaks, and the caller must still be answered.
 * One timer looks at all requests, because fastify's own (`handlerTimeout`) makes a timer and an AbortController for each.
 */
import type { FastifyReply } from 'fastify';
import { Problem } from '../problems.ts';
import type { App } from './services.ts';

/** Longer than any statement may take (`statement_timeout`). */
const deadlineMs = 35_000;
const lookEveryMs = 5000;

export function answerBeforeDeadline(app: App): void {
  /** In the order in which they came, so that the oldest are first. */
  const underWay = new Map<FastifyReply, number>();

  const timer = setInterval(() => {
    const latest = performance.now() - deadlineMs;
    for (const [reply, cameAt] of underWay) {
      if (cameAt > latest) break;
      underWay.delete(reply);
      // One whose answer is under way, a long download say, has been answered.
      if (!reply.sent && !reply.raw.headersSent)
        reply.send(new Problem('timed_out', { headers: { 'retry-after': '5' } }));
    }
  }, lookEveryMs);
  timer.unref();

  app.addHook('onRequest', (_request, reply, done) => {
    underWay.set(reply, performance.now());
    done();
  });
  app.addHook('onResponse', (_request, reply, done) => {
    underWay.delete(reply);
    done();
  });
  app.addHook('onClose', () => clearInterval(timer));
}

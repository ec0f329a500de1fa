/** For work that is useless, or must not start, after the client closed its connection. */
import type { FastifyReply } from 'fastify';
import { Problem } from '../problems.ts';

/** Aborts when the response is sent or the connection is closed. */
export function abortOnClose({ raw }: FastifyReply): AbortSignal {
  const closed = new AbortController();
  const abort = () =>
    closed.abort(new Problem('bad_request', { detail: 'The client closed its connection.' }));
  if (raw.destroyed) abort();
  else raw.once('close', abort);
  return closed.signal;
}

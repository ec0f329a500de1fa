/**
 * Divides the database connections of the API among the owners whose requests want them: thousands of requests of one owner wait
 * for each other, and do not make the requests of other owners wait. Some connections are left for mail and for background work.
 * The owner is part of the asynchronous context of a request, so that no handler can forget to name the owner.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { FastifyReply } from 'fastify';
import type { Pool } from '../db/client.ts';
import { type Share, Slots } from '../lib/slots.ts';
import { clientNetwork } from '../net/client-network.ts';
import { abortOnClose } from './client-gone.ts';

/** Of the 10 connections of the pool. */
const inFlight = { inAll: 8, perOwner: 5 };
/** The same time as a query waits for a connection of the pool (db/client.ts). */
const maxWaitMs = 35_000;

interface RequestContext {
  /** The queries count for this owner. Empty before the owner is known, and for a public route: they count for the client. */
  ownerId: string;
  /** The IP address of the client. */
  ip: string;
  /**
   * If the client closes its connection, the request stops waiting for its first query. Null: the query waits on, because the
   * request has run a query already, or because other requests wait for the same query (authentication).
   */
  reply: FastifyReply | null;
}

export interface FairQueries {
  sql: Pool;
  /** The queries of `work`, and of what `work` starts, count for the owner of this context. */
  run<T>(context: RequestContext, work: () => T): T;
}

export function makeFairQueries(pool: Pool): FairQueries {
  const slots = new Slots(inFlight);
  const contexts = new AsyncLocalStorage<RequestContext>();

  function enter(): Share | Promise<Share> {
    const context = contexts.getStore();
    const share = slots.tryTake(nameCaller(context)) ?? wait(context);
    if (context) context.reply = null;
    return share;
  }

  function wait(context: RequestContext | undefined): Promise<Share> {
    const signal = context?.reply ? abortOnClose(context.reply) : undefined;
    return slots.take(nameCaller(context), 1, { signal, timeout: { ms: maxWaitMs, error: tooLate } });
  }

  return { sql: pool.behind(enter), run: (context, work) => contexts.run(context, work) };
}

function nameCaller(context: RequestContext | undefined): string {
  return context ? context.ownerId || clientNetwork(context.ip) : '';
}

function tooLate(): Error {
  return Object.assign(new Error('No database connection was free in time'), { code: 'CONNECTION_LOST' });
}

/** A stream asks for its next piece in the context of the socket. This keeps the context of the request. */
export function keepContext<T>(pieces: AsyncGenerator<T, void, undefined>): AsyncIterable<T> {
  const run = AsyncLocalStorage.snapshot();
  const next = () => run(() => pieces.next());
  return { [Symbol.asyncIterator]: () => ({ next, return: () => pieces.return() }) };
}

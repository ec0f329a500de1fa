/**
 * Divides the database connections of the API among the owners whose requests want them: thousands of requests of one owner
 * wait for each other, not in front of everybody's. Some connections are left for mail and for background work.
 * The owner is part of the asynchronous context of a request, so that no handler can forget to name it.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { FastifyReply } from 'fastify';
import type { Pool } from '../db/client.ts';
import { type Share, Slots } from '../lib/slots.ts';
import { abortOnClose } from './client-gone.ts';

/** Of the 10 connections of the pool. */
const inFlight = { inAll: 8, perOwner: 5 };
/** As long as a query waits for a connection of the pool. */
const maxWaitMs = 35_000;

interface Asker {
  /** Who the queries count for: the owner, or the address of the client until the owner is known. */
  owner: string;
  /** A request that has run no query yet leaves with its client. Null: the query is of use to other clients, too. */
  reply: FastifyReply | null;
}

export interface FairQueries {
  sql: Pool;
  /** The queries of `work`, and of what it starts, count for this owner. */
  run<T>(asker: Asker, work: () => T): T;
}

export function makeFairQueries(pool: Pool): FairQueries {
  const slots = new Slots(inFlight);
  const askers = new AsyncLocalStorage<Asker>();

  function enter(): Share | Promise<Share> {
    const asker = askers.getStore();
    const share = slots.tryTake(asker?.owner ?? '') ?? wait(asker);
    if (asker) asker.reply = null;
    return share;
  }

  async function wait(asker: Asker | undefined): Promise<Share> {
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(tooLate()), maxWaitMs);
    try {
      const closed = asker?.reply ? [abortOnClose(asker.reply)] : [];
      const signal = AbortSignal.any([late.signal, ...closed]);
      return await slots.take(asker?.owner ?? '', 1, { signal });
    } finally {
      clearTimeout(timer);
    }
  }

  return { sql: pool.behind(enter), run: (asker, work) => askers.run(asker, work) };
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

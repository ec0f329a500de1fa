/**
 * Reads messages that are too large to be kept in memory while a server takes its time. Guarantee: memory is taken only while a
 * message is signed, and for a piece at a time while a server reads it. A server that hangs before it asks for the message, or after
 * its end, holds none; one that reads slowly loses its connection (`SmtpConnection`).
 */
import type { Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import { Slots } from '../lib/slots.ts';
import { readRaw, readWhole, type StoredRaw } from '../store/messages.ts';
import { SendFault } from './try-reply.ts';

/** For all messages, and for those of one owner. */
export const largeMemory = { inAll: 64 * 1024 * 1024, perOwner: 32 * 1024 * 1024 };
/** A piece as it is read from the database, and as it is sent. */
const pieceBytes = 2 * 1024 * 1024;
/** The server waits for the message meanwhile, and may wait no longer than 5 minutes (RFC 5321 §4.5.3.2.7). */
const maxWaitMs = 120_000;

export class LargeMail {
  readonly #sql: Sql;
  readonly #log: Log;
  readonly #memory: Slots;

  constructor({ sql, log, limits = largeMemory }: { sql: Sql; log: Log; limits?: typeof largeMemory }) {
    this.#sql = sql;
    this.#log = log;
    this.#memory = new Slots(limits);
  }

  /** Calls `use` with the whole message, which must not be kept. */
  async withWhole<Result>(
    stored: StoredRaw,
    signal: AbortSignal,
    use: (raw: Buffer) => Promise<Result>,
  ): Promise<Result> {
    using _share = await this.#memory.take(stored.ownerId, stored.size, { signal });
    return await use(await readWhole(this.#sql, stored));
  }

  /** Takes memory when the first piece is asked for. */
  async *read(stored: StoredRaw, signal: AbortSignal): AsyncGenerator<Buffer, void, undefined> {
    const timeout = { ms: maxWaitMs, error: () => unreadable('too many large messages are being sent') };
    const bytes = Math.min(stored.size, pieceBytes);
    using _share = await this.#memory.take(stored.ownerId, bytes, { signal, timeout });
    try {
      yield* readRaw(this.#sql, stored, 0, stored.size);
    } catch (err) {
      this.#log.warn({ err, messageId: stored.id }, 'a message could not be read while it was sent');
      // Without the cause, which may name the database: the owner of the message sees the reason.
      throw unreadable('the database failed');
    }
  }
}

function unreadable(why: string): SendFault {
  return new SendFault('message_unreadable', `The stored message could not be read: ${why}.`);
}

/**
 * Reads messages that are too large to be kept in memory while a server takes its time. Guarantees: memory is taken only while a
 * message is signed, and for a piece at a time while a server reads it. A server that hangs before it asks for the message, or after
 * its end, holds none; one that reads slowly loses its connection (`SmtpConnection`). Signing waits for no server: it has memory of
 * its own.
 */
import type { Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import { Slots } from '../lib/slots.ts';
import { readRaw, readWhole, type StoredRaw } from '../store/messages.ts';
import { SendFault } from './try-reply.ts';

const mebibyte = 1024 * 1024;
/**
 * For all messages, and for those of one owner. A server decides how long a transfer takes, up to 20 minutes for 25 MiB, and a user
 * can choose the server. So one owner gets a quarter of the memory for transfers.
 */
export const largeMemory = {
  signing: { inAll: 32 * mebibyte, perOwner: 32 * mebibyte },
  transfers: { inAll: 64 * mebibyte, perOwner: 16 * mebibyte },
};
/** A piece as it is read from the database, and as it is sent. */
const pieceBytes = 2 * mebibyte;
/** The server waits for the message meanwhile, and may wait no longer than 5 minutes (RFC 5321 §4.5.3.2.7). */
const maxWaitMs = 120_000;

export class LargeMail {
  readonly #sql: Sql;
  readonly #log: Log;
  readonly #signing: Slots;
  readonly #transfers: Slots;

  constructor({ sql, log, limits = largeMemory }: { sql: Sql; log: Log; limits?: typeof largeMemory }) {
    this.#sql = sql;
    this.#log = log;
    this.#signing = new Slots(limits.signing);
    this.#transfers = new Slots(limits.transfers);
  }

  /** For signing. Calls `use` with the whole message, which `use` must not keep. */
  async withWhole<Result>(
    stored: StoredRaw,
    signal: AbortSignal,
    use: (raw: Buffer) => Promise<Result>,
  ): Promise<Result> {
    using _share = await this.#signing.take(stored.ownerId, stored.size, { signal });
    return await use(await readWhole(this.#sql, stored));
  }

  /** Takes memory when the first piece is asked for. */
  async *read(stored: StoredRaw, signal: AbortSignal): AsyncGenerator<Buffer, void, undefined> {
    const timeout = { ms: maxWaitMs, error: () => unreadable('too many large messages are being sent') };
    const bytes = Math.min(stored.size, pieceBytes);
    using _share = await this.#transfers.take(stored.ownerId, bytes, { signal, timeout });
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

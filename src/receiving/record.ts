/**
 * Records one message: together with other messages that wait at the same moment, or alone, in the transaction of the caller.
 * Guarantee: outside of a transaction, the message is committed when `record` resolves.
 */
import { isTransaction, type Pool, type Sql } from '../db/client.ts';
import { type NewMessage, type RecordedMessage, recordMessage, recordMessages } from '../store/messages.ts';
import { GroupCommit } from './group-commit.ts';

interface RecorderParts {
  /** Only for messages that are recorded together. Its lock timeout is short: those who wait for a lock are recorded alone. */
  groupSql: Pool;
  acceptUnverified: boolean;
}

const maxKnown = 10_000;

export class MessageRecorder {
  readonly #parts: RecorderParts;
  readonly #group: GroupCommit<NewMessage, RecordedMessage>;
  /** How many deliveries the last message of an identity had. */
  readonly #deliveries = new Map<string, number>();

  constructor(parts: RecorderParts) {
    this.#parts = parts;
    this.#group = new GroupCommit({
      commitAll: (messages) =>
        recordMessages(
          parts.groupSql,
          messages.map((message) => ({ message, lease: null })),
          parts,
        ),
      measure: (message) => ({
        bytes: message.raw.length + Buffer.byteLength(message.data),
        rows: 1 + (this.#deliveries.get(message.identityId) ?? 0),
      }),
    });
  }

  async record(sql: Sql, message: NewMessage): Promise<RecordedMessage> {
    const recorded = await this.#commit(sql, message);
    if (this.#deliveries.size >= maxKnown) this.#deliveries.clear();
    if (recorded.outcome === 'recorded') this.#deliveries.set(message.identityId, recorded.deliveries.length);
    return recorded;
  }

  async #commit(sql: Sql, message: NewMessage): Promise<RecordedMessage> {
    if (!isTransaction(sql)) {
      const recorded = await this.#group.commit(message.ownerId, message);
      if (recorded !== 'alone') return recorded;
    }
    return recordMessage(sql, { message, lease: null }, this.#parts);
  }
}

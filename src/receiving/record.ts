/**
 * Records one message: together with other messages that wait at the same moment, or alone, in the transaction of the caller.
 * If this process also delivers, the message's deliveries are created under its lease where they can be tried at once.
 * Guarantee: outside of a transaction, the message is committed when `record` resolves.
 */
import { isTransaction, type Pool, type Sql } from '../db/client.ts';
import { type Share, Slots } from '../lib/slots.ts';
import type { ReadEvent } from '../store/events.ts';
import {
  chunkBytes,
  eventBytes,
  type NewMessage,
  type OfferedLease,
  type QueuedDelivery,
  type RecordedMessage,
  type RecordOptions,
  recordMessage,
  recordMessages,
} from '../store/messages.ts';
import { GroupCommit } from './group-commit.ts';

/** Places in the delivery loop of this process. Disposing of it gives back those that no adopted delivery has taken. */
interface DeliveryOffer extends OfferedLease, Disposable {
  adopt(event: ReadEvent & { ownerId: string }, deliveries: readonly QueuedDelivery[]): void;
}

interface RecorderParts {
  /** Only for messages that are recorded together. Its lock timeout is short: those who wait for a lock are recorded alone. */
  groupSql: Pool;
  acceptUnverified: boolean;
  /** Null if this process does not deliver. */
  offerDeliveries: ((webhookIds: readonly string[], bytes: number) => DeliveryOffer | undefined) | null;
}

interface RecordedOffer extends RecordedMessage {
  offer: DeliveryOffer | null;
}

/** `event`: null if nothing was offered. Not the message: a mail with many recipients keeps all results until the commit. */
interface RecordedEvent extends RecordedOffer {
  event: (ReadEvent & { ownerId: string }) | null;
}

/** A message, and where the offers for its deliveries are kept until they are adopted or given back. */
interface OfferedMessage {
  message: NewMessage;
  offers: DisposableStack;
}

/** Memory for messages as they are recorded, in total and for each owner. A message for which none is free waits. */
const recordingBytes = { inAll: 64 * 1024 * 1024, perOwner: 24 * 1024 * 1024 };
/** Its JSON is six times as long as a text of control characters, and is in memory beside the message itself. */
const bytesPerByte = 8;
/** About what is left of a larger message, because its texts and headers are cut. */
const maxJsonSourceBytes = 1.5 * 1024 * 1024;

export class MessageRecorder {
  readonly #parts: RecorderParts;
  readonly #memory = new Slots(recordingBytes);
  readonly #group: GroupCommit<OfferedMessage, RecordedOffer>;
  readonly #listeners = new KnownListeners();

  constructor(parts: RecorderParts) {
    this.#parts = parts;
    this.#group = new GroupCommit({
      commitAll: (messages) => this.#recordAll(messages),
      measure: ({ message }) => ({
        bytes: message.raw.length + Buffer.byteLength(message.data),
        rows: 1 + this.#listeners.of(message).length,
      }),
    });
  }

  /** Call it after the message was examined and before its first `record`, outside of a transaction. */
  takeMemory(ownerId: string, rawBytes: number): Promise<Share> {
    return this.#memory.take(ownerId, bytesPerByte * Math.min(rawBytes, maxJsonSourceBytes));
  }

  /** The caller disposes of `offers` at the end, whatever happens: after `adopt`, or after a failure. */
  async record(sql: Sql, message: NewMessage, offers: DisposableStack): Promise<RecordedEvent> {
    const recorded = await this.#record(sql, { message, offers });
    if (recorded.outcome === 'recorded') this.#listeners.note(message, recorded.deliveries);
    return { ...recorded, event: recorded.offer && toEvent(message) };
  }

  /** Mail from a mailbox that another server holds, in the transaction of the caller. */
  async recordFromMailbox(
    sql: Sql,
    messages: readonly NewMessage[],
    fromMailbox: NonNullable<RecordOptions['fromMailbox']>,
    offers: DisposableStack,
  ): Promise<RecordedEvent[]> {
    const recorded: RecordedEvent[] = [];
    const options = { ...this.#parts, fromMailbox };
    const offered = messages.map((message) => {
      const lease = fromMailbox.hasEvent ? this.#offer({ message, offers }) : null;
      return { message, lease };
    });
    const small = offered.filter(({ message }) => message.raw.length <= chunkBytes);
    const results = small.length > 0 ? await recordMessages(sql, small, options) : [];
    for (const one of offered) {
      const { message, lease: offer } = one;
      const result = results[small.indexOf(one)] ?? (await recordMessage(sql, one, options));
      recorded.push({ ...result, offer, event: offer && toEvent(message) });
      if (result.outcome === 'recorded') this.#listeners.note(message, result.deliveries);
    }
    return recorded;
  }

  /** After the commit. Returns the webhooks whose deliveries are left for the delivery loops to claim. */
  adopt({ offer, event, deliveries }: RecordedEvent): string[] {
    const offered = new Set(offer?.webhookIds);
    const leased = deliveries.filter(({ webhookId }) => offered.has(webhookId));
    if (event && leased.length > 0) offer?.adopt(event, leased);
    return deliveries.map(({ webhookId }) => webhookId).filter((id) => !offered.has(id));
  }

  async #record(sql: Sql, { message, offers }: OfferedMessage): Promise<RecordedOffer> {
    // Thousands of deliveries take a second, and everybody else's messages would wait for it.
    const isGrouped = this.#listeners.of(message).length <= maxGroupedListeners;
    if (isGrouped && !isTransaction(sql)) {
      const recorded = await this.#group.commit(message.ownerId, { message, offers });
      if (recorded !== 'alone') return recorded;
    }
    const offer = this.#offer({ message, offers });
    return { ...(await recordMessage(sql, { message, lease: offer }, this.#parts)), offer };
  }

  async #recordAll(messages: readonly OfferedMessage[]): Promise<RecordedOffer[]> {
    const offers = messages.map((one) => this.#offer(one));
    try {
      const unrecorded = messages.map(({ message }, n) => ({ message, lease: offers[n] ?? null }));
      const recorded = await recordMessages(this.#parts.groupSql, unrecorded, this.#parts);
      return recorded.map((one, n) => ({ ...one, offer: offers[n] ?? null }));
    } catch (error) {
      // Not only at the end: each message gets a new offer when it is recorded alone.
      for (const offer of offers) offer?.[Symbol.dispose]();
      throw error;
    }
  }

  #offer({ message, offers }: OfferedMessage): DeliveryOffer | null {
    const offer = this.#parts.offerDeliveries?.(this.#listeners.of(message), eventBytes(message));
    return offer ? offers.use(offer) : null;
  }
}

function toEvent({ id: messageId, eventId: id, ownerId, data, inline, raw }: NewMessage) {
  const stored = { messageId, data, raw: inline ? raw : null, summary: null };
  return { id, event: 'message.received', ownerId, ...stored };
}

const maxGroupedListeners = 200;
const maxKnownIds = 100_000;

/** The webhooks that the last message of each identity went to: the next one probably goes to the same. */
class KnownListeners {
  readonly #webhookIds = new Map<string, readonly string[]>();
  #count = 0;

  of({ identityId }: NewMessage): readonly string[] {
    return this.#webhookIds.get(identityId) ?? [];
  }

  note(message: NewMessage, deliveries: readonly QueuedDelivery[]): void {
    this.#count += 1 + deliveries.length - this.of(message).length;
    if (this.#count > maxKnownIds) {
      this.#webhookIds.clear();
      this.#count = 0;
    }
    this.#webhookIds.set(
      message.identityId,
      deliveries.map(({ webhookId }) => webhookId),
    );
  }
}

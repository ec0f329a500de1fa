/**
 * The request bodies: one for each event, shared by all webhooks and tries. Memory is bounded: small bodies are read ahead and
 * cached, large bodies are in memory only while they are sent, a few at a time.
 */
import type { Sql } from '../db/client.ts';
import { Slots } from '../lib/slots.ts';
import {
  forEachSmallEvent,
  type ReadEvent,
  readEventData,
  readEventSize,
  type StoredData,
} from '../store/events.ts';

/** `data` is JSON text, which becomes part of the body unchanged. */
export function buildBody(event: string, data: string): Buffer {
  return Buffer.from(writeBody(event, data));
}

/** Not `Buffer.from`: a cached slice of Node's pool keeps the whole pool, which others used. */
function writeAlone(text: string): Buffer {
  const bytes = Buffer.allocUnsafeSlow(Buffer.byteLength(text));
  bytes.write(text);
  return bytes;
}

function writeBody(event: string, data: string): string {
  return `{"event":${JSON.stringify(event)},"data":${data}}`;
}

const dayMs = 86_400_000;
const generationBytes = 16 * 1024 * 1024;
export const maxSmallBytes = 64 * 1024;
const prefetchBatch = 256;
/** One generation at most: a body that is read ahead must still be cached when it is sent. */
const maxPrefetchBytes = generationBytes;
/** Large bodies in memory: for all owners, for one owner and for one webhook. */
const largeBytes = { inAll: 64 * 1024 * 1024, perOwner: 32 * 1024 * 1024, perKey: 8 * 1024 * 1024 };

/** Makes the `data` of a body from the stored event. */
export type CompleteData = (stored: StoredData) => string;

interface LoadedBody {
  body: Buffer;
  /** Call this after the body was sent. */
  done?(): void;
}

/**
 * Two generations instead of one map with eviction: after entries at the front of a Map are deleted, finding its first entry
 * gets slow (13 µs for each body), while dropping a whole generation costs nothing.
 */
export class Bodies {
  readonly #sql: Sql;
  readonly #completeData: CompleteData;
  readonly #large = new Slots(largeBytes);
  #young = new Map<string, Buffer>();
  #old = new Map<string, Buffer>();
  #youngBytes = 0;
  #day = 0;

  constructor(parts: { sql: Sql; completeData: CompleteData }) {
    this.#sql = parts.sql;
    this.#completeData = parts.completeData;
  }

  get(eventId: string): Buffer | undefined {
    // The links in a body are valid for a number of days, counted from the day on which the body was built.
    const today = Math.floor(Date.now() / dayMs);
    if (today !== this.#day) this.#clear(today);
    return this.#young.get(eventId) ?? this.#old.get(eventId);
  }

  /** Caches the body of a small event, as if it had been read. */
  add(event: ReadEvent): Buffer {
    const body = this.#build(event);
    this.#keep(event.id, body);
    return body;
  }

  #build(event: ReadEvent): Buffer {
    return writeAlone(writeBody(event.event, this.#completeData(event)));
  }

  /** Reads and caches the small bodies of these events. */
  async prefetch(eventIds: Iterable<string>): Promise<void> {
    const missing = [...new Set(eventIds)].filter((id) => !this.get(id));
    let bytes = 0;
    for (let at = 0; at < missing.length && bytes < maxPrefetchBytes; at += prefetchBatch) {
      const batch = missing.slice(at, at + prefetchBatch);
      await forEachSmallEvent(this.#sql, batch, maxSmallBytes, (stored) => {
        bytes += this.add(stored).length;
      });
    }
  }

  /**
   * The body of an event, of any size; undefined when the event was deleted. Rejects when `leaseEnd` aborts while a large body
   * waits for memory.
   */
  async load(eventId: string, webhookId: string, leaseEnd?: AbortSignal): Promise<LoadedBody | undefined> {
    const cached = this.get(eventId);
    if (cached) return { body: cached };
    const event = await readEventSize(this.#sql, eventId);
    if (!event) return undefined;
    const share = await this.#large.take(event.ownerId, event.bytes, { key: webhookId, signal: leaseEnd });
    let isLarge = false;
    try {
      const found = await readEventData(this.#sql, eventId);
      if (!found) return undefined;
      const body = this.#build(found);
      isLarge = body.length > maxSmallBytes;
      if (isLarge) return { body, done: share.release };
      this.#keep(eventId, body);
      return { body };
    } finally {
      if (!isLarge) share.release();
    }
  }

  #clear(today: number): void {
    this.#day = today;
    this.#young = new Map();
    this.#old = new Map();
    this.#youngBytes = 0;
  }

  #keep(eventId: string, body: Buffer): void {
    if (this.#youngBytes > generationBytes) {
      this.#old = this.#young;
      this.#young = new Map();
      this.#youngBytes = 0;
    }
    this.#young.set(eventId, body);
    this.#youngBytes += body.length;
  }
}

/**
 * The bodies that are POSTed: built once for each event and shared by its webhooks and tries. Memory is bounded: small ones
 * are fetched ahead and kept while there is room, large ones are in memory only while they are sent, a few at a time.
 */
import type { Sql } from '../db/client.ts';
import { Slots } from '../lib/slots.ts';
import { eachSmallEvent, readEventData, readEventSize, type StoredData } from '../store/events.ts';

/** `data` is JSON text already; it goes in as it is. */
export function buildBody(event: string, data: string): Buffer {
  return Buffer.from(writeBody(event, data));
}

function writeBody(event: string, data: string): string {
  return `{"event":${JSON.stringify(event)},"data":${data}}`;
}

/**
 * Texts as bytes, small ones side by side in pieces of memory. Slices of Node's pool, which is what `Buffer.from` gives, would
 * each keep all of it for as long as they are kept, and memory for each alone costs a tenth of a delivery. A piece is small, so
 * that one body that is sent slowly holds up no more than that; and most of it is used, so that it counts for about what it is.
 */
class Pieces {
  #piece = Buffer.alloc(0);
  #end = 0;

  write(text: string): Buffer {
    const place = this.#take(Buffer.byteLength(text));
    place.write(text);
    return place;
  }

  #take(bytes: number): Buffer {
    if (bytes > maxSharingBytes) return Buffer.allocUnsafeSlow(bytes);
    if (this.#end + bytes > this.#piece.length) {
      this.#piece = Buffer.allocUnsafeSlow(pieceBytes);
      this.#end = 0;
    }
    this.#end += bytes;
    return this.#piece.subarray(this.#end - bytes, this.#end);
  }
}

const pieceBytes = 64 * 1024;
const maxSharingBytes = pieceBytes / 4;
const dayMs = 86_400_000;
const generationBytes = 16 * 1024 * 1024;
const maxSmallBytes = 64 * 1024;
/** So many small ones are read at a time, and so many bytes ahead: what is fetched must still be there when it is tried. */
const prefetchAtOnce = 256;
const maxPrefetchBytes = generationBytes;
/** Of those that are being sent and not kept: in all, and for one webhook. */
const largeBytes = { inAll: 64 * 1024 * 1024, perKey: 8 * 1024 * 1024 };

/** Makes the `data` of a body from what is stored of the event. */
export type CompleteData = (stored: StoredData) => string;

export interface LentBody {
  body: Buffer;
  /** To be called when it has been sent. */
  done(): void;
}

/**
 * Two generations instead of one map with eviction: entries deleted at the front of a Map are passed over by every later
 * look for its first (13 µs a body here), while dropping a whole generation costs nothing.
 */
export class Bodies {
  readonly #sql: Sql;
  readonly #completeData: CompleteData;
  readonly #large = new Slots(largeBytes);
  readonly #pieces = new Pieces();
  #young = new Map<string, Buffer>();
  #old = new Map<string, Buffer>();
  #youngBytes = 0;
  #day = 0;

  constructor(parts: { sql: Sql; completeData: CompleteData }) {
    this.#sql = parts.sql;
    this.#completeData = parts.completeData;
  }

  get(eventId: string): Buffer | undefined {
    // Links in a body are good for whole days from the day on which it was built.
    const today = Math.floor(Date.now() / dayMs);
    if (today !== this.#day) this.#clear(today);
    return this.#young.get(eventId) ?? this.#old.get(eventId);
  }

  /** Fetches the small ones among these, all at once. */
  async prefetch(eventIds: Iterable<string>): Promise<void> {
    const missing = [...new Set(eventIds)].filter((id) => !this.get(id));
    let bytes = 0;
    for (let at = 0; at < missing.length && bytes < maxPrefetchBytes; at += prefetchAtOnce) {
      const some = missing.slice(at, at + prefetchAtOnce);
      await eachSmallEvent(this.#sql, some, maxSmallBytes, (stored) => {
        const body = this.#pieces.write(writeBody(stored.event, this.#completeData(stored)));
        this.#keep(stored.id, body);
        bytes += body.length;
      });
    }
  }

  /** A body, whatever its size; undefined when its event is gone. */
  async load(eventId: string, webhookId: string): Promise<LentBody | undefined> {
    const kept = this.get(eventId);
    if (kept) return { body: kept, done() {} };
    const bytes = await readEventSize(this.#sql, eventId);
    if (bytes === undefined) return undefined;
    await this.#large.take(webhookId, bytes);
    let held = true;
    const done = () => {
      if (held) this.#large.release(webhookId, bytes);
      held = false;
    };
    try {
      const found = await readEventData(this.#sql, eventId);
      const body = found && this.#pieces.write(writeBody(found.event, this.#completeData(found)));
      if (body && bytes <= maxSmallBytes) this.#keep(eventId, body);
      if (!body || bytes <= maxSmallBytes) done();
      return body && { body, done };
    } catch (error) {
      done();
      throw error;
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

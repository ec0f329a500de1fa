/**
 * Readers of the event stream in this process. The events of an owner are read once for all readers that are up to date; a reader
 * that resumes reads for itself until it has caught up, as fast as its client takes the events. Guarantees: on one connection no
 * event is missing and none comes twice; a reader that stops reading is cut, and resumes where it was.
 */
import type { ServerResponse } from 'node:http';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { isUnavailable, type Pool } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import { type Loop, startLoop } from '../lib/loop.ts';
import { listActiveKeys } from '../store/api-keys.ts';
import {
  isAfter,
  readStream,
  type Snapshot,
  type StreamedEvent,
  type StreamPosition,
  wasVisible,
} from '../store/event-stream.ts';
import { listActiveSessions } from '../store/sessions.ts';

export interface Reader {
  ownerId: string;
  keyId: string;
  /** Null for a reader with an API key. */
  sessionId: string | null;
  response: ServerResponse;
  event: string | undefined;
  identityId: string | undefined;
  /** The last event that it got, or where it begins. */
  position: StreamPosition;
  /** For a reader that begins now: what is visible in it happened before. */
  since: Snapshot | null;
}

interface StreamParts {
  sql: Pool;
  log: Log;
  /** The body that a webhook would get. */
  writeBody(event: StreamedEvent): string;
  limits?: StreamLimits;
}

export interface StreamLimits {
  perOwner: number;
  /** Bytes that may wait behind the event that is being written. */
  maxWaitingBytes: number;
  stalledMs: number;
  commentMs: number;
  keyCheckMs: number;
}

export const standardLimits: StreamLimits = {
  perOwner: 20,
  maxWaitingBytes: 1024 * 1024,
  stalledMs: 30_000,
  commentMs: 15_000,
  keyCheckMs: 3000,
};
const batch = 20;
/** How soon to look again for an event that waits for an older transaction. */
const againMs = 20;
const pollMs = 1000;

interface OpenReader extends Reader {
  /** By `performance.now()`: when the client last took bytes, and how many it had taken. */
  progressAt: number;
  taken: number;
  /** It has all events so far. Before that, it gets more only when it has taken what was written. */
  isUpToDate: boolean;
}

export class EventStreams {
  readonly #parts: StreamParts;
  readonly #limits: StreamLimits;
  readonly #owners = new Map<string, Owner>();
  readonly #checking: Loop;
  #isStopped = false;

  constructor(parts: StreamParts) {
    this.#parts = parts;
    this.#limits = parts.limits ?? standardLimits;
    const work = async () => {
      await this.#check();
      return false;
    };
    this.#checking = startLoop({
      ...{ name: 'checking event streams', pollMs: this.#limits.keyCheckMs, log: parts.log },
      ...{ isTransient: isUnavailable, work },
    });
  }

  /** False: the owner has too many readers. */
  add(reader: Reader): boolean {
    if (this.#isStopped) return false;
    const owner = this.#owners.get(reader.ownerId) ?? new Owner(this.#parts, this.#limits, reader.ownerId);
    if (owner.readers.size >= this.#limits.perOwner) return false;
    this.#owners.set(reader.ownerId, owner);
    const open = { ...reader, progressAt: performance.now(), taken: 0, isUpToDate: reader.since !== null };
    owner.readers.add(open);
    reader.response.on('drain', () => owner.wake());
    reader.response.once('close', () => {
      owner.readers.delete(open);
      if (owner.readers.size > 0) return;
      owner.stop();
      this.#owners.delete(reader.ownerId);
    });
    owner.wake();
    return true;
  }

  /** Events were committed, perhaps of these owners. */
  wake(): void {
    for (const owner of this.#owners.values()) owner.wake();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#checking.stop();
    for (const owner of this.#owners.values()) {
      for (const { response } of owner.readers) response.end();
      owner.stop();
    }
  }

  /** Cuts readers that take nothing, and those whose key or session has ended. */
  async #check(): Promise<void> {
    const readers = [...this.#owners.values()].flatMap((owner) => [...owner.readers]);
    if (readers.length === 0) return;
    const now = performance.now();
    for (const reader of readers) this.#checkProgress(reader, now);
    const { sql } = this.#parts;
    // A session ends with its key.
    const keyIds = readers.filter(({ sessionId }) => sessionId === null).map(({ keyId }) => keyId);
    const sessionIds = readers.flatMap(({ sessionId }) => sessionId ?? []);
    const keys = await listActiveKeys(sql, [...new Set(keyIds)]);
    const sessions = await listActiveSessions(sql, [...new Set(sessionIds)]);
    for (const { keyId, sessionId, response } of readers) {
      const isActive = sessionId === null ? keys.has(keyId) : sessions.has(sessionId);
      if (!isActive) response.destroy();
    }
  }

  #checkProgress(reader: OpenReader, now: number): void {
    const { response } = reader;
    const taken = (response.socket?.bytesWritten ?? 0) - response.writableLength;
    if (taken > reader.taken || response.writableLength === 0) {
      reader.taken = taken;
      reader.progressAt = now;
    } else if (now - reader.progressAt > this.#limits.stalledMs) response.destroy();
  }
}

/** The readers of one owner. */
class Owner {
  readonly readers = new Set<OpenReader>();
  readonly #parts: StreamParts;
  readonly #limits: StreamLimits;
  readonly #ownerId: string;
  readonly #loop: Loop;
  readonly #comments: NodeJS.Timeout;

  constructor(parts: StreamParts, limits: StreamLimits, ownerId: string) {
    this.#parts = parts;
    this.#limits = limits;
    this.#ownerId = ownerId;
    this.#loop = startLoop({
      ...{ name: 'streaming events', pollMs, log: parts.log, isTransient: isUnavailable },
      work: () => this.#advance(),
    });
    this.#comments = setInterval(() => {
      for (const { response } of this.readers) response.write(': still here\n\n');
    }, limits.commentMs);
  }

  wake(): void {
    this.#loop.wake();
  }

  stop(): void {
    clearInterval(this.#comments);
    void this.#loop.stop();
  }

  /** One read for the readers that stand at the same place, those that are furthest behind first. */
  async #advance(): Promise<boolean | number> {
    const readers = new Set(
      [...this.readers].filter(({ isUpToDate, response }) => isUpToDate || !response.writableNeedDrain),
    );
    const [first, ...others] = readers;
    if (!first) return false;
    const furthest = others.reduce(
      (lowest, { position }) => (isAfter(lowest, position) ? position : lowest),
      first.position,
    );
    const { events, hasOlderRunning } = await readStream(this.#parts.sql, this.#ownerId, furthest, batch);
    for (const group of groupBySize(events)) {
      this.#send(group, readers);
      // Bytes that the system takes at once count as waiting until then.
      await nextTurn();
    }
    if (events.length < batch) for (const reader of readers) reader.isUpToDate = true;
    if (events.length > 0) return true;
    return hasOlderRunning ? againMs : false;
  }

  /**
   * Several events in one write, which costs a reader as much as one event. Removes readers that must take what was written before
   * they get these events and those after them.
   */
  #send(events: readonly StreamedEvent[], readers: Set<OpenReader>): void {
    const texts = new Map<StreamedEvent, string>();
    const write = (event: StreamedEvent) => {
      const { position, event: name } = event;
      const known = texts.get(event);
      const text = known ?? `id: ${position.id}\nevent: ${name}\ndata: ${this.#parts.writeBody(event)}\n\n`;
      texts.set(event, text);
      return text;
    };
    let all: Buffer | undefined;
    for (const reader of readers) {
      const { response } = reader;
      if (response.destroyed) continue;
      const wanted = events.filter(
        (event) => isAfter(event.position, reader.position) && wants(reader, event),
      );
      // What waits before these events: one event itself may be larger.
      const isFull = response.writableLength > this.#limits.maxWaitingBytes;
      if (isFull && !reader.isUpToDate) {
        readers.delete(reader);
        continue;
      }
      const last = events.at(-1);
      if (last && isAfter(last.position, reader.position)) reader.position = last.position;
      if (wanted.length === 0) continue;
      const isAll = wanted.length === events.length;
      const bytes = (isAll && all) || Buffer.from(wanted.map(write).join(''));
      if (isAll) all = bytes;
      if (isFull) response.destroy();
      else response.write(bytes);
    }
  }
}

const maxGroupBytes = 64 * 1024;

/** An event that is larger than a group is alone. */
function groupBySize(events: readonly StreamedEvent[]): StreamedEvent[][] {
  const groups: StreamedEvent[][] = [];
  let size = 0;
  for (const event of events) {
    const group = groups.at(-1);
    // About: base64 makes the raw bytes longer.
    const bytes = event.data.length + 1.4 * (event.raw?.length ?? 0);
    size = group ? size + bytes : bytes;
    if (group && size <= maxGroupBytes) {
      group.push(event);
      continue;
    }
    groups.push([event]);
    size = bytes;
  }
  return groups;
}

function wants({ event, identityId, since }: Reader, found: StreamedEvent): boolean {
  if (since && wasVisible(since, found.position)) return false;
  return (event ?? found.event) === found.event && (identityId ?? found.identityId) === found.identityId;
}

/**
 * Commits items that wait at the same moment together, because a commit costs about the same for one item as for many. A batch
 * starts as soon as the one before has returned, so an item that comes alone waits for nothing. Guarantees: `commit` resolves
 * after the item is committed; owners take turns, so an owner with many items delays another owner by one batch at most; what a
 * batch cannot commit is committed alone, so a bad item fails alone.
 */
import { isRefusal } from '../db/client.ts';

interface BatchLimits {
  items: number;
  bytes: number;
  /** Rows to write: an item can have a thousand deliveries, and the other items of the batch wait for them. */
  rows: number;
}

interface Batching<Item, Result> {
  /** Commits the items in one statement. Returns a result for each, in the same order. */
  commitAll: (items: readonly Item[]) => Promise<readonly Result[]>;
  measure: (item: Item) => Omit<BatchLimits, 'items'>;
  limits?: BatchLimits;
}

interface Waiter<Item, Result> {
  item: Item;
  bytes: number;
  rows: number;
  resolve(result: Result | 'alone'): void;
  reject(error: unknown): void;
}

const defaultLimits: BatchLimits = { items: 64, bytes: 4 * 1024 * 1024, rows: 1024 };

export class GroupCommit<Item, Result> {
  readonly #batching: Batching<Item, Result>;
  /** By owner, in the order of their turns. No owner has an empty list. */
  readonly #waiting = new Map<string, Waiter<Item, Result>[]>();
  #isCommitting = false;

  constructor(batching: Batching<Item, Result>) {
    this.#batching = batching;
  }

  /** `alone`: nothing was committed, and the caller must commit the item by itself. */
  commit(ownerId: string, item: Item): Promise<Result | 'alone'> {
    return new Promise((resolve, reject) => {
      const waiter = { item, ...this.#batching.measure(item), resolve, reject };
      const waiting = this.#waiting.get(ownerId);
      if (waiting) waiting.push(waiter);
      else this.#waiting.set(ownerId, [waiter]);
      if (!this.#isCommitting) this.#commitWaiting();
    });
  }

  async #commitWaiting(): Promise<void> {
    this.#isCommitting = true;
    while (this.#waiting.size > 0) await this.#commitBatch(this.#takeBatch());
    this.#isCommitting = false;
  }

  async #commitBatch(batch: readonly Waiter<Item, Result>[]): Promise<void> {
    try {
      const results = await this.#batching.commitAll(batch.map(({ item }) => item));
      for (const [n, { resolve }] of batch.entries()) resolve(results[n] as Result);
    } catch (error) {
      if (isRefusal(error)) for (const { resolve } of batch) resolve('alone');
      // The connection was lost, and the items may or may not be committed. Those that wait would wait for the next failure.
      else for (const { reject } of [...batch, ...this.#takeAll()]) reject(error);
    }
  }

  /** One item of each owner, then a second one of each, and so on. An item that does not fit ends the batch. */
  #takeBatch(): Waiter<Item, Result>[] {
    const left = { ...(this.#batching.limits ?? defaultLimits) };
    const batch: Waiter<Item, Result>[] = [];
    for (const [ownerId, waiting] of this.#waiting) {
      const next = waiting[0] as Waiter<Item, Result>;
      left.items -= 1;
      left.bytes -= next.bytes;
      left.rows -= next.rows;
      if (batch.length > 0 && Math.min(left.items, left.bytes, left.rows) < 0) break;
      batch.push(next);
      waiting.shift();
      // To the end of the line: the iteration comes to this owner again after all others.
      this.#waiting.delete(ownerId);
      if (waiting.length > 0) this.#waiting.set(ownerId, waiting);
    }
    return batch;
  }

  #takeAll(): Waiter<Item, Result>[] {
    const all = [...this.#waiting.values()].flat();
    this.#waiting.clear();
    return all;
  }
}

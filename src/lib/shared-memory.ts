/**
 * Memory for what others send, such as bodies of requests and answers of servers, while it is read and recorded. It is divided among
 * owners, and a caller for which no memory is free waits.
 * Guarantee: a few owners whose bytes come slowly cannot keep the memory from the others. While somebody waits, slow readings of an
 * owner that has more are cut, those of the owner that has most first.
 */
import { type Share, Slots } from './slots.ts';

export interface SharedMemoryLimits {
  inAll: number;
  perOwner: number;
  /** A reading that takes longer is cut when others need its memory. */
  slowMs: number;
}

interface MemoryUse {
  readonly ownerId: string;
  readonly bytes: number;
}

/** Bytes that are being read. */
interface Reading extends MemoryUse {
  /** By `performance.now()`. */
  readonly startedAt: number;
}

export class SharedMemory {
  readonly #limits: SharedMemoryLimits;
  readonly #memory: Slots;
  readonly #tooSlow: () => Error;
  readonly #open = new Map<Reading, AbortController>();

  /** `tooSlow`: the reason of a cut. */
  constructor(limits: SharedMemoryLimits, tooSlow: () => Error) {
    this.#limits = limits;
    this.#tooSlow = tooSlow;
    this.#memory = new Slots(limits);
  }

  /** Waits until the memory is free. Rejects when `signal` aborts. */
  async take(ownerId: string, bytes: number, signal: AbortSignal): Promise<Share> {
    const free = this.#memory.tryTake(ownerId, bytes);
    if (free) return free;
    const cutting = setInterval(() => this.#cutSlow({ ownerId, bytes }), this.#limits.slowMs / 5);
    try {
      return await this.#memory.take(ownerId, bytes, { signal });
    } finally {
      clearInterval(cutting);
    }
  }

  /** Reads into memory that was taken for it. `read` must stop when its signal aborts. */
  async read<T>(ownerId: string, bytes: number, read: (cut: AbortSignal) => Promise<T>): Promise<T> {
    const reading = { ownerId, bytes, startedAt: performance.now() };
    const cut = new AbortController();
    this.#open.set(reading, cut);
    try {
      return await read(cut.signal);
    } finally {
      this.#open.delete(reading);
    }
  }

  #cutSlow(waiting: MemoryUse): void {
    const chosen = chooseCut([...this.#open.keys()], waiting, this.#limits, performance.now());
    for (const reading of chosen) this.#open.get(reading)?.abort(this.#tooSlow());
  }
}

/** The readings to cut so that `waiting` has room: none for an owner who has used up its own part, or who would have the most. */
export function chooseCut<One extends Reading>(
  open: readonly One[],
  waiting: MemoryUse,
  { perOwner, slowMs }: SharedMemoryLimits,
  now: number,
): One[] {
  const used = new Map<string, number>();
  for (const { ownerId, bytes } of open) used.set(ownerId, (used.get(ownerId) ?? 0) + bytes);
  const usedBy = (ownerId: string) => used.get(ownerId) ?? 0;
  const wanted = usedBy(waiting.ownerId) + waiting.bytes;
  if (wanted > perOwner) return [];
  const slow = open
    .filter(({ ownerId, startedAt }) => now - startedAt > slowMs && usedBy(ownerId) > wanted)
    .sort((one, other) => usedBy(other.ownerId) - usedBy(one.ownerId) || one.startedAt - other.startedAt);
  let freed = 0;
  return slow.filter(({ bytes }) => {
    const isNeeded = freed < waiting.bytes;
    freed += bytes;
    return isNeeded;
  });
}

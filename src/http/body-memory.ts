/**
 * Memory for large bodies while they are read and recorded, divided among owners. A request for which no memory is free waits.
 * Guarantee: a few owners that send slowly cannot keep the memory from the others. While somebody waits, slow bodies of an owner
 * that has more are cut with 408, those of the owner that has most first.
 */
import { type Share, Slots } from '../lib/slots.ts';
import { Problem } from '../problems.ts';

export interface BodyMemoryLimits {
  inAll: number;
  perOwner: number;
  /** A body that takes longer is cut when others need its memory. */
  slowMs: number;
}

interface MemoryUse {
  readonly ownerId: string;
  readonly bytes: number;
}

/** A body that is being read. */
interface OpenBody extends MemoryUse {
  /** By `performance.now()`. */
  readonly startedAt: number;
}

export class BodyMemory {
  readonly #limits: BodyMemoryLimits;
  readonly #memory: Slots;
  readonly #open = new Map<OpenBody, AbortController>();

  constructor(limits: BodyMemoryLimits) {
    this.#limits = limits;
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

  /** Reads a body into memory that was taken for it. `read` must stop when its signal aborts. */
  async read<T>(ownerId: string, bytes: number, read: (cut: AbortSignal) => Promise<T>): Promise<T> {
    const body = { ownerId, bytes, startedAt: performance.now() };
    const cut = new AbortController();
    this.#open.set(body, cut);
    try {
      return await read(cut.signal);
    } finally {
      this.#open.delete(body);
    }
  }

  #cutSlow(waiting: MemoryUse): void {
    const chosen = chooseCut([...this.#open.keys()], waiting, this.#limits, performance.now());
    for (const body of chosen) this.#open.get(body)?.abort(tooSlow());
  }
}

/** The bodies to cut so that `waiting` has room: none for an owner who has used up its own part, or who would have the most. */
export function chooseCut<Body extends OpenBody>(
  open: readonly Body[],
  waiting: MemoryUse,
  { perOwner, slowMs }: BodyMemoryLimits,
  now: number,
): Body[] {
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

function tooSlow(): Problem {
  return new Problem('request_timeout', {
    detail:
      'The body came slowly, and other requests waited for the memory that it took. Send the request again over a faster connection.',
    headers: { connection: 'close' },
  });
}

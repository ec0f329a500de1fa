/**
 * A limited resource, such as bytes of memory or queries in flight, that many callers wait for. It is divided among the owners
 * that want it, and within an owner among the owner's keys: whoever has least comes next; of equals, whoever was charged least for
 * what it had (`charge`), and then whoever waits longest.
 * Guarantees:
 * - Nobody has more than the limits allow. Exception: a request that is larger than a limit is admitted when nothing else is taken.
 * - When the caller that comes next does not fit into what is left in all, later callers wait too, so a large request is not
 *   overtaken for ever. A caller that exceeds only the limit of its owner or of its key makes only callers of that owner or key wait.
 * - A share is released once, however often it is disposed of.
 */

/** What one caller has taken of the resource. */
export interface Share extends Disposable {
  release(): void;
  /** Releases all but `weight`. */
  shrinkTo(weight: number): void;
  /** What the use of the share cost, such as milliseconds of a worker. It counts against the next turn of its owner and key. */
  charge(cost: number): void;
}

interface SlotLimits {
  inAll: number;
  perOwner: number;
  /** Default: the same as `perOwner`. */
  perKey?: number;
  /**
   * A key has at most as much as stays free of its owner's limit: the first key gets half of it, the next key half of the rest, and
   * so on. So a new key finds room, however long the others hold what they have.
   */
  keysLeaveRoom?: boolean;
}

interface TakeOptions {
  /** What the owner uses the share for, such as the id of a webhook. */
  key?: string;
  /** Ends the wait: the promise rejects with the reason of the signal, and nothing is taken. */
  signal?: AbortSignal | undefined;
  /** Ends the wait after a time: the promise rejects with the error, and nothing is taken. */
  timeout?: { ms: number; error: () => Error } | undefined;
}

interface Waiter {
  readonly weight: number;
  /** The branch of its key. */
  readonly leaf: Branch;
  admit(): void;
}

/** A branch of the tree that divides the resource: all callers (the root), the callers of one owner, or of one key of an owner. */
class Branch {
  readonly #limit: number;
  readonly #name: string;
  readonly #parent: Branch | null;
  readonly #leavesRoom: boolean;
  readonly #children = new Map<string, Branch>();
  /** The children with waiters. The cost of a choice grows with their number, not with the number of waiters. */
  readonly #waiting = new Set<Branch>();
  /** The waiters of a key, oldest first. */
  readonly #queue = new Set<Waiter>();
  #taken = 0;
  /** The number of the turn at which this branch began to wait, or last took or released. Of equals, the lowest comes next. */
  #turn = 0;
  /** Where this branch stands on the `#clock` of its parent: there, plus all costs since. */
  #charged = 0;
  /** The `#charged` of the child that was admitted last. A child that begins to wait starts here, so that nobody saves up turns. */
  #clock = 0;
  /** With so many children, those that are not needed any more are forgotten. */
  #sweepAt = 64;

  constructor(limit: number, name = '', parent: Branch | null = null, leavesRoom = false) {
    this.#limit = limit;
    this.#name = name;
    this.#parent = parent;
    this.#leavesRoom = leavesRoom;
  }

  get isWaiting(): boolean {
    return this.#waiting.size > 0 || this.#queue.size > 0;
  }

  child(name: string, limit: number, leavesRoom = false): Branch {
    let child = this.#children.get(name);
    if (!child) {
      if (this.#children.size >= this.#sweepAt) this.#sweep();
      child = new Branch(limit, name, this, leavesRoom);
      this.#children.set(name, child);
    }
    return child;
  }

  /** A weight above a limit is admitted when nothing else is taken. */
  fits(weight: number): boolean {
    return this.#taken === 0 || this.#taken + weight <= Math.min(this.#limit, this.#leftBeside);
  }

  /** What the branch above has left, for a branch that must leave as much as it has. */
  get #leftBeside(): number {
    return this.#leavesRoom && this.#parent ? this.#parent.#limit - this.#parent.#taken : this.#limit;
  }

  /** Whether this branch and all branches above it have room. */
  fitsInAll(weight: number): boolean {
    return this.fits(weight) && (this.#parent?.fitsInAll(weight) ?? true);
  }

  /** Undefined if nobody waits, or if the next waiter does not fit this branch yet. Skips a child whose next waiter does not fit it. */
  next(): Waiter | undefined {
    let [chosen] = this.#queue;
    let least: Branch | undefined;
    for (const child of this.#waiting) {
      if (least && !child.#precedes(least)) continue;
      const waiter = child.next();
      if (waiter) [chosen, least] = [waiter, child];
    }
    return chosen && this.fits(chosen.weight) ? chosen : undefined;
  }

  #precedes(other: Branch): boolean {
    const difference =
      this.#taken - other.#taken || this.#charged - other.#charged || this.#turn - other.#turn;
    return difference < 0;
  }

  /** A negative weight releases. */
  add(weight: number, turn: number): void {
    this.#taken += weight;
    this.#turn = turn;
    if (this.#parent && weight > 0) {
      this.#charged = Math.max(this.#charged, this.#parent.#clock);
      this.#parent.#clock = this.#charged;
    }
    this.#parent?.add(weight, turn);
    this.forgetIfUnused();
  }

  charge(cost: number): void {
    this.#charged += cost;
    this.#parent?.charge(cost);
  }

  enqueue(waiter: Waiter, turn: number): void {
    this.#noteWaiting(turn);
    this.#queue.add(waiter);
  }

  dequeue(waiter: Waiter): void {
    this.#queue.delete(waiter);
    this.#noteIdle();
  }

  #noteWaiting(turn: number): void {
    if (this.isWaiting) return;
    this.#turn = turn;
    if (!this.#parent) return;
    this.#charged = Math.max(this.#charged, this.#parent.#clock);
    this.#parent.#noteWaiting(turn);
    this.#parent.#waiting.add(this);
  }

  #noteIdle(): void {
    if (this.isWaiting || !this.#parent) return;
    this.#parent.#waiting.delete(this);
    this.#parent.#noteIdle();
    this.forgetIfUnused();
  }

  get #isUnused(): boolean {
    return this.#taken === 0 && !this.isWaiting;
  }

  /** A child that was charged is remembered for as long as others use the branch. */
  forgetIfUnused(): void {
    if (!this.#isUnused) return;
    this.#children.clear();
    if (!this.#parent) return;
    if (this.#charged <= this.#parent.#clock) this.#parent.#children.delete(this.#name);
    this.#parent.forgetIfUnused();
  }

  #sweep(): void {
    for (const [name, child] of this.#children)
      if (child.#isUnused && child.#charged <= this.#clock) this.#children.delete(name);
    this.#sweepAt = 2 * this.#children.size + 64;
  }
}

export class Slots {
  readonly #limits: Required<SlotLimits>;
  readonly #all: Branch;
  #turn = 0;

  constructor(limits: SlotLimits) {
    this.#limits = { perKey: limits.perOwner, keysLeaveRoom: false, ...limits };
    this.#all = new Branch(limits.inAll);
  }

  /** Undefined if there is no room or somebody waits. */
  tryTake(owner: string, weight = 1, key = ''): Share | undefined {
    if (this.#all.isWaiting) return undefined;
    const leaf = this.#leafOf(owner, key);
    if (leaf.fitsInAll(weight)) return this.#give(leaf, weight);
    leaf.forgetIfUnused();
    return undefined;
  }

  /** Best with `using share = await slots.take(…)`. */
  async take(owner: string, weight = 1, { key = '', ...ends }: TakeOptions = {}): Promise<Share> {
    ends.signal?.throwIfAborted();
    return this.tryTake(owner, weight, key) ?? this.#wait(this.#leafOf(owner, key), weight, ends);
  }

  #leafOf(owner: string, key: string): Branch {
    const { perOwner, perKey, keysLeaveRoom } = this.#limits;
    return this.#all.child(owner, perOwner).child(key, perKey, keysLeaveRoom);
  }

  #wait(leaf: Branch, weight: number, { signal, timeout }: Omit<TakeOptions, 'key'>): Promise<Share> {
    return new Promise((resolve, reject) => {
      const stopListening = () => {
        signal?.removeEventListener('abort', onAbort);
        clearTimeout(timer);
      };
      const leave = (reason: unknown) => {
        stopListening();
        leaf.dequeue(waiter);
        reject(reason);
        this.#admit();
      };
      const onAbort = () => leave(signal?.reason);
      const admit = () => {
        stopListening();
        resolve(this.#give(leaf, weight));
      };
      const waiter: Waiter = { weight, leaf, admit };
      const timer = timeout && setTimeout(() => leave(timeout.error()), timeout.ms);
      signal?.addEventListener('abort', onAbort);
      leaf.enqueue(waiter, this.#nextTurn());
      this.#admit();
    });
  }

  #give(leaf: Branch, weight: number): Share {
    leaf.add(weight, this.#nextTurn());
    let left = weight;
    const shrinkTo = (kept: number) => {
      if (kept >= left) return;
      leaf.add(kept - left, this.#nextTurn());
      left = kept;
      this.#admit();
    };
    const release = () => shrinkTo(0);
    return { shrinkTo, release, charge: (cost) => leaf.charge(cost), [Symbol.dispose]: release };
  }

  #nextTurn(): number {
    this.#turn += 1;
    return this.#turn;
  }

  #admit(): void {
    for (let next = this.#all.next(); next; next = this.#all.next()) {
      next.admit();
      next.leaf.dequeue(next);
    }
  }
}

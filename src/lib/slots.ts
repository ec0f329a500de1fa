/**
 * A limited resource, such as bytes of memory or queries in flight, that many callers wait for. It is divided among the owners
 * that want it, and within an owner among the owner's keys: whoever has least comes next, and equals take turns.
 * Guarantees: nobody has more than the limits allow; a caller that comes next and does not fit yet keeps later callers out, so a
 * large request is not overtaken for ever; a share is released once, however often it is disposed of.
 */
export interface Share extends Disposable {
  release(): void;
  /** Gives back all but `weight`. */
  shrinkTo(weight: number): void;
}

interface SlotLimits {
  inAll: number;
  perOwner: number;
  /** Default: a key may use the whole share of its owner. */
  perKey?: number;
}

interface TakeOptions {
  /** What the owner uses it for, such as the id of a webhook. */
  key?: string;
  /** Ends the wait: the promise rejects with the reason of the signal, and nothing is taken. */
  signal?: AbortSignal | undefined;
}

interface Waiter {
  readonly weight: number;
  readonly key: Group;
  admit(): void;
}

/** Everybody, one owner, or one key of an owner. */
class Group {
  readonly #limit: number;
  readonly #name: string;
  readonly #parent: Group | null;
  readonly #members = new Map<string, Group>();
  /** The members that wait. The cost of a choice grows with these, not with the number of waiters. */
  readonly #waiting = new Set<Group>();
  /** The waiters of a key, oldest first. */
  readonly #queue = new Set<Waiter>();
  #taken = 0;
  /** When this group began to wait, or last had more or less than now. */
  #turn = 0;

  constructor(limit: number, name = '', parent: Group | null = null) {
    this.#limit = limit;
    this.#name = name;
    this.#parent = parent;
  }

  get isWaiting(): boolean {
    return this.#waiting.size > 0 || this.#queue.size > 0;
  }

  member(name: string, limit: number): Group {
    let member = this.#members.get(name);
    if (!member) {
      member = new Group(limit, name, this);
      this.#members.set(name, member);
    }
    return member;
  }

  /** A weight above a limit is admitted when nothing else is taken. */
  fits(weight: number): boolean {
    return this.#taken === 0 || this.#taken + weight <= this.#limit;
  }

  /** Whether all groups that this one is part of have room, too. */
  fitsInAll(weight: number): boolean {
    return this.fits(weight) && (this.#parent?.fitsInAll(weight) ?? true);
  }

  /** Undefined if nobody waits, or if whoever comes next does not fit yet. */
  next(): Waiter | undefined {
    let [chosen] = this.#queue;
    let least: Group | undefined;
    for (const member of this.#waiting) {
      if (least && !member.#precedes(least)) continue;
      const waiter = member.next();
      if (waiter) [chosen, least] = [waiter, member];
    }
    return chosen && this.fits(chosen.weight) ? chosen : undefined;
  }

  #precedes(other: Group): boolean {
    return this.#taken < other.#taken || (this.#taken === other.#taken && this.#turn < other.#turn);
  }

  /** A negative weight is given back. */
  add(weight: number, turn: number): void {
    this.#taken += weight;
    this.#turn = turn;
    this.#parent?.add(weight, turn);
    this.forgetIfUnused();
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
    this.#parent.#noteWaiting(turn);
    this.#parent.#waiting.add(this);
  }

  #noteIdle(): void {
    if (this.isWaiting || !this.#parent) return;
    this.#parent.#waiting.delete(this);
    this.#parent.#noteIdle();
    this.forgetIfUnused();
  }

  forgetIfUnused(): void {
    if (!this.#parent || this.#taken > 0 || this.isWaiting) return;
    this.#parent.#members.delete(this.#name);
    this.#parent.forgetIfUnused();
  }
}

export class Slots {
  readonly #limits: Required<SlotLimits>;
  readonly #all: Group;
  #turn = 0;

  constructor(limits: SlotLimits) {
    this.#limits = { perKey: limits.perOwner, ...limits };
    this.#all = new Group(limits.inAll);
  }

  /** Undefined if there is no room or somebody waits. */
  tryTake(owner: string, weight = 1, key = ''): Share | undefined {
    if (this.#all.isWaiting) return undefined;
    const group = this.#groupOf(owner, key);
    if (group.fitsInAll(weight)) return this.#give(group, weight);
    group.forgetIfUnused();
    return undefined;
  }

  /** Best with `using share = await slots.take(…)`. */
  async take(owner: string, weight = 1, { key = '', signal }: TakeOptions = {}): Promise<Share> {
    signal?.throwIfAborted();
    return this.tryTake(owner, weight, key) ?? this.#wait(this.#groupOf(owner, key), weight, signal);
  }

  #groupOf(owner: string, key: string): Group {
    return this.#all.member(owner, this.#limits.perOwner).member(key, this.#limits.perKey);
  }

  #wait(group: Group, weight: number, signal: AbortSignal | undefined): Promise<Share> {
    return new Promise((resolve, reject) => {
      const leave = () => {
        group.dequeue(waiter);
        reject(signal?.reason);
        this.#admit();
      };
      const admit = () => {
        signal?.removeEventListener('abort', leave);
        resolve(this.#give(group, weight));
      };
      const waiter: Waiter = { weight, key: group, admit };
      signal?.addEventListener('abort', leave, { once: true });
      group.enqueue(waiter, this.#nextTurn());
      this.#admit();
    });
  }

  #give(group: Group, weight: number): Share {
    group.add(weight, this.#nextTurn());
    let left = weight;
    const shrinkTo = (kept: number) => {
      if (kept >= left) return;
      group.add(kept - left, this.#nextTurn());
      left = kept;
      this.#admit();
    };
    const release = () => shrinkTo(0);
    return { shrinkTo, release, [Symbol.dispose]: release };
  }

  #nextTurn(): number {
    this.#turn += 1;
    return this.#turn;
  }

  #admit(): void {
    for (let next = this.#all.next(); next; next = this.#all.next()) {
      next.admit();
      next.key.dequeue(next);
    }
  }
}

/**
 * Where the next claim starts, so that claims go round: through the groups, and within each group through its lanes. A claim takes
 * one lane of each group, then a second lane of each, and so on, up to a number of lanes. Groups and lanes are in the order of
 * their keys (by code unit). Pure.
 */
import type { LaneKeys } from './lanes.ts';

export interface ClaimStart {
  /** The claim starts after this group; null: with the first. */
  afterGroup: string | null;
  /** Within a group, the claim starts after this lane. A group that is not listed starts with its first lane. */
  afterLanes: ReadonlyMap<string, string>;
}

export class Rounds<Job> {
  readonly #keys: LaneKeys<Job>;
  readonly #afterLanes = new Map<string, string>();
  #afterGroup: string | null = null;

  constructor(keys: LaneKeys<Job>) {
    this.#keys = keys;
  }

  get start(): ClaimStart {
    return { afterGroup: this.#afterGroup, afterLanes: new Map(this.#afterLanes) };
  }

  get isAtFirst(): boolean {
    return this.#afterGroup === null && this.#afterLanes.size === 0;
  }

  /** Moves on after a claim that started at `start`. `isCut`: the claim had to stop at its number of lanes. */
  advance(claimed: readonly Job[], isCut: boolean): void {
    const lanes = new Map<string, Set<string>>();
    for (const job of claimed) {
      const group = this.#keys.groupOf(job);
      lanes.set(group, (lanes.get(group) ?? new Set()).add(this.#keys.laneOf(job)));
    }
    // Groups of this claim that had no job start again with their first lane; so do all, if the claim came to the end.
    for (const group of this.#afterLanes.keys())
      if (this.#afterGroup === null || group > this.#afterGroup) this.#afterLanes.delete(group);
    if (isCut) for (const [group, keys] of lanes) this.#afterLanes.set(group, last(keys));
    // A second lane of any group means that the claim has been at every group.
    const isAtGroup = isCut && [...lanes.values()].every(({ size }) => size === 1);
    this.#afterGroup = isAtGroup ? last(lanes.keys()) : null;
  }
}

function last(keys: Iterable<string>): string {
  return [...keys].reduce((most, key) => (key > most ? key : most));
}

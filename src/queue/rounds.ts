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

  /** Moves on after a claim that started at `start`. `isCut`: the claim ended at its largest number of lanes, so jobs may be left. */
  advance(claimed: readonly Job[], isCut: boolean): void {
    const lanes = new Map<string, Set<string>>();
    for (const job of claimed) {
      const group = this.#keys.groupOf(job);
      lanes.set(group, (lanes.get(group) ?? new Set()).add(this.#keys.laneOf(job)));
    }
    // Every group that this claim covered starts again with its first lane. Exception, if the claim was cut: a group that had jobs
    // continues after its last lane.
    for (const group of this.#afterLanes.keys())
      if (this.#afterGroup === null || group > this.#afterGroup) this.#afterLanes.delete(group);
    if (isCut) for (const [group, keys] of lanes) this.#afterLanes.set(group, last(keys));
    // A claim takes a second lane of a group only after the first lane of every group. So if a group has two lanes, the claim
    // covered all groups.
    const hasGroupsLeft = isCut && [...lanes.values()].every(({ size }) => size === 1);
    this.#afterGroup = hasGroupsLeft ? last(lanes.keys()) : null;
  }
}

function last(keys: Iterable<string>): string {
  return [...keys].reduce((most, key) => (key > most ? key : most));
}

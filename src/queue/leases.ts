/**
 * The leases that this process holds. A claim writes a token and an end time into the row of a job. Until that time no other
 * process claims the job, and only who has the token records an outcome. The process that holds a lease renews it every
 * 1.5 s. When a process dies nobody renews its leases: they run out, and any other process claims the jobs.
 */
export interface Lease {
  /** The job's. */
  id: string;
  /** Each claim has a token of its own, so that a lease is never mistaken for a later one of the same job. */
  token: string;
}

interface HeldLease extends Lease {
  claimedAt: number;
  renewedAt: number;
}

export const renewMs = 1500;

export class Leases {
  readonly #held = new Map<string, HeldLease>();
  readonly #safeMs: number;

  constructor({ leaseMs, maxTryMs }: { leaseMs: number; maxTryMs: number }) {
    this.#safeMs = leaseMs - maxTryMs;
  }

  /** Holds what was claimed, and returns the jobs that are new here. */
  add<Job extends Lease>(claimed: readonly Job[], nowMs: number): Job[] {
    // A job whose lease ran out while we try it may be claimed again, even by us. That try goes on; there is no second one.
    const added = claimed.filter(({ id }) => !this.#held.has(id));
    for (const { id, token } of added) this.#held.set(id, { id, token, claimedAt: nowMs, renewedAt: nowMs });
    return added;
  }

  drop(jobs: readonly { id: string }[]): void {
    for (const { id } of jobs) this.#held.delete(id);
  }

  list(): Lease[] {
    return [...this.#held.values()];
  }

  /** The lease of a job, if a try that starts now ends before the lease could, even without another renewal. */
  findSafe(id: string, nowMs: number): HeldLease | undefined {
    const lease = this.#held.get(id);
    return lease && nowMs - lease.renewedAt <= this.#safeMs ? lease : undefined;
  }

  /** `renew` returns the ids of those that are still ours. */
  async renew(
    renew: (due: readonly Lease[]) => Promise<ReadonlySet<string>>,
    nowMs = performance.now(),
  ): Promise<void> {
    const due = [...this.#held.values()].filter(({ renewedAt }) => nowMs - renewedAt >= renewMs);
    if (due.length === 0) return;
    const ours = await renew(due);
    for (const lease of due) {
      if (ours.has(lease.id)) lease.renewedAt = nowMs;
      // Another process has the job now, or it was recorded meanwhile. If it waits here it is not tried; a try that is
      // under way goes on, and its outcome is not recorded.
      else if (this.#held.get(lease.id) === lease) this.#held.delete(lease.id);
    }
  }
}

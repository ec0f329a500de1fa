/**
 * The leases of this process. A claim writes a token and an end time into the row of each job. Until the end time no other
 * process can claim the job, and only the process with the token can record an outcome. A live process renews its leases
 * every 1.5 s. When a process dies, nobody renews its leases: they expire, and other processes claim the jobs and try them.
 */
export interface Lease {
  /** The job's id. */
  id: string;
  /** Every claim has a new token, so a lease cannot be confused with a later lease of the same job. */
  token: string;
}

interface OwnLease extends Lease {
  claimedAt: number;
  renewedAt: number;
  /** Only for jobs that wait: most tries start at once. */
  end?: AbortController;
}

export const renewMs = 1500;

/** The reason for which a wait was ended. */
export class LeaseEnded extends Error {
  constructor() {
    super('The lease was lost, or the process stops');
  }
}

export class Leases {
  readonly #byJobId = new Map<string, OwnLease>();
  readonly #safeMs: number;
  #isStopping = false;

  constructor({ leaseMs, maxTryMs }: { leaseMs: number; maxTryMs: number }) {
    this.#safeMs = leaseMs - maxTryMs;
  }

  /** Returns the jobs that this process did not have before. */
  add<Job extends Lease>(claimed: readonly Job[], nowMs: number): Job[] {
    // When a lease expires during a try, this process can claim the same job again. The running try continues, and no second try
    // starts. The outcome of the running try is not recorded, because the row has the token of the new claim.
    const added = claimed.filter(({ id }) => !this.#byJobId.has(id));
    for (const { id, token } of added)
      this.#byJobId.set(id, { id, token, claimedAt: nowMs, renewedAt: nowMs });
    return added;
  }

  drop(jobs: readonly { id: string }[]): void {
    for (const { id } of jobs) this.#forget(id);
  }

  #forget(id: string): void {
    const lease = this.#byJobId.get(id);
    this.#byJobId.delete(id);
    lease?.end?.abort(new LeaseEnded());
  }

  /** Aborts when the lease is lost or ended, and with `endWaits`. */
  endSignal(id: string): AbortSignal {
    const lease = this.#byJobId.get(id);
    if (!lease || this.#isStopping) return AbortSignal.abort(new LeaseEnded());
    lease.end ??= new AbortController();
    return lease.end.signal;
  }

  /** The process stops: jobs that wait are not tried any more. */
  endWaits(): void {
    this.#isStopping = true;
    for (const { end } of this.#byJobId.values()) end?.abort(new LeaseEnded());
  }

  list(): Lease[] {
    return [...this.#byJobId.values()];
  }

  /** The job's lease, if a try that starts now would end before the lease expires, even without another renewal. */
  findSafe(id: string, nowMs: number): OwnLease | undefined {
    const lease = this.#byJobId.get(id);
    return lease && nowMs - lease.renewedAt <= this.#safeMs ? lease : undefined;
  }

  /** `renew` returns the ids of the jobs whose lease is still ours. */
  async renew(
    renew: (due: readonly Lease[]) => Promise<ReadonlySet<string>>,
    nowMs = performance.now(),
  ): Promise<void> {
    const due = [...this.#byJobId.values()].filter(({ renewedAt }) => nowMs - renewedAt >= renewMs);
    if (due.length === 0) return;
    const ours = await renew(due);
    for (const lease of due) {
      if (ours.has(lease.id)) lease.renewedAt = nowMs;
      // Another process has the job, or its outcome was recorded meanwhile. A waiting job is then not tried; a running try
      // continues, but its outcome is not recorded.
      else if (this.#byJobId.get(lease.id) === lease) this.#forget(lease.id);
    }
  }
}

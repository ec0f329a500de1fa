/** When a job that failed is tried again. Pure: chance is an argument. */

/** Seconds until the next try, ±10 % so that jobs that failed together do not return together; null after the last wait. */
export function nextWaitSeconds(
  scheduleSeconds: readonly number[],
  /** Tries since the schedule began, before the one that failed. */
  tries: number,
  random: () => number,
): number | null {
  const scheduled = scheduleSeconds[tries];
  return scheduled === undefined ? null : scheduled * (0.9 + 0.2 * random());
}

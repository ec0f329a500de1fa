/** When a failed job is tried again. Pure: randomness is an argument. */

/** Seconds until the next try, or null after the last one. ±10 %, so that jobs that failed together do not return together. */
export function nextWaitSeconds(
  scheduleSeconds: readonly number[],
  /** Tries since the schedule began, without the one that just failed. */
  tries: number,
  random: () => number,
): number | null {
  const scheduled = scheduleSeconds[tries];
  return scheduled === undefined ? null : scheduled * (0.9 + 0.2 * random());
}

/** The wait before the next try: it doubles with each failure in a row, up to `max`. `failures`: how many in a row came before this one. */
export function backoff(failures: number, first: number, max: number): number {
  return Math.min(max, first * 2 ** failures);
}

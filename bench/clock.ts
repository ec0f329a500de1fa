/** The machine's monotonic clock in milliseconds. Times of different processes can be compared. */
export function machineMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

/** The machine's monotonic clock, in milliseconds: what one process notes can be held against what another does. */
export function machineMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

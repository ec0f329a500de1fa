/** How the parts of the service are stopped: the part that was started last stops first. */
import type { Log } from '../lib/log.ts';

/** Functions that stop a part, in the order in which the parts were started. */
export type Stops = (() => Promise<void>)[];

export async function stopEach(stops: Stops, log: Log): Promise<void> {
  for (const stop of stops.reverse())
    await stop().catch((err) => log.error({ err }, 'a part of the service failed to stop'));
}

export function stopLater<Part extends { stop(): Promise<void> }>(stops: Stops, part: Part): Part {
  stops.push(() => part.stop());
  return part;
}

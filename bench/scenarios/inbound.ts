/** Mail of 5 KB on kept connections: parsed, authenticated, committed, 250; against the parts alone, nothing kept. */
import { compareInbound } from '../mail.ts';
import { type Bench, concurrency, type Round } from '../scenario.ts';

export const name = 'inbound';
export const goal = 0.7;

export function run(bench: Bench): Promise<Round[]> {
  return compareInbound(bench, { sessions: concurrency, keep: true });
}

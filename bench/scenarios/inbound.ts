/** Mail of 5 KB on open connections: parsed, authenticated, committed, 250; against the libraries alone, nothing stored. */
import { compareInbound } from '../mail.ts';
import { type Bench, concurrency, type Round } from '../scenario.ts';

export const name = 'inbound';
export const goal = 1;

export function run(bench: Bench): Promise<Round[]> {
  return compareInbound(bench, { sessions: concurrency, keep: true });
}

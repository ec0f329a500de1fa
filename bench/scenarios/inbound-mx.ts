/**
 * The same mail as inbound, with a new connection for each message: 220, EHLO, the message, QUIT.
 *
 * smtp-server delays each greeting by 100 ms, to detect clients that send too early, and has no option to turn that off. With 400
 * parallel sessions the delay alone would allow 4,000 messages per second, several times the rate of the control. So the
 * processor limits the control, as on open connections, and not the delay.
 */
import { compareInbound } from '../mail.ts';
import type { Bench, Round } from '../scenario.ts';

export const name = 'inbound-mx';
export const goal = 1;

const sessions = 400;

export function run(bench: Bench): Promise<Round[]> {
  return compareInbound(bench, { sessions: bench.size(sessions), keep: false });
}

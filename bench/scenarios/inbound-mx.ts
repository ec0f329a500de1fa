/**
 * The same mail as inbound, with a new connection for each message: 220, EHLO, the message, QUIT.
 *
 * smtp-server holds back each greeting for 100 ms, to catch clients that talk too soon, and has no option against it. With 400
 * sessions under way at any moment, on either side, that wait alone would allow 4,000 messages a second, several times what the
 * control reaches: it is bound by its processor, as on kept connections, and not by waiting.
 */
import { compareInbound } from '../mail.ts';
import type { Bench, Round } from '../scenario.ts';

export const name = 'inbound-mx';
export const goal = 0.7;

const sessions = 400;

export function run(bench: Bench): Promise<Round[]> {
  return compareInbound(bench, { sessions, keep: false });
}

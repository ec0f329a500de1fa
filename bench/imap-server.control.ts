/**
 * A small IMAP server in its own process, with the argument `tls` with TLS from the start. For a list of messages it delivers one after the other, evenly spaced, and replies when
 * the EXISTS line of each was written. For `idling` it replies how often clients have started to wait with IDLE.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { makeSelfSigned } from '../src/net/self-signed.ts';
import { openImapServer } from '../test/imap-server.ts';
import { machineMs } from './clock.ts';

export type ImapQuestion = 'idling' | { messages: string[]; everyMs: number };

const certificate = process.argv[2] === 'tls' ? makeSelfSigned('localhost', new Date()) : undefined;
const server = await openImapServer('secret', certificate);
process.stdout.write(`port ${server.port}\n`);

async function deliver(messages: readonly string[], everyMs: number): Promise<number[]> {
  const toldMs: number[] = [];
  let delivered = 0;
  server.onNews = () => {
    const now = machineMs();
    while (toldMs.length < delivered) toldMs.push(now);
  };
  for (const message of messages) {
    delivered += 1;
    server.deliver('INBOX', message);
    await delay(everyMs);
  }
  while (toldMs.length < messages.length) await delay(everyMs);
  return toldMs;
}

process.on('message', async (question: ImapQuestion) => {
  if (question === 'idling') process.send?.(server.commands.filter((command) => command === 'IDLE').length);
  else process.send?.(await deliver(question.messages, question.everyMs));
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());

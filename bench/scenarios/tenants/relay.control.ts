/**
 * The operator's relay, in its own process. It takes 5 s for each message to `slow.example`. It replies to a number n when so many
 * messages to other domains have come, with the time of each by the local part of its recipient.
 */
import net, { type AddressInfo, type Socket } from 'node:net';
import { machineMs } from '../../clock.ts';

export type Arrivals = Record<string, number>;

const slowMs = 5000;
let arrivals: Arrivals = {};
let wanted = Number.POSITIVE_INFINITY;

function note(localPart: string): void {
  arrivals[localPart] = machineMs();
  if (Object.keys(arrivals).length < wanted) return;
  process.send?.(arrivals);
  arrivals = {};
}

function serve(socket: Socket): void {
  let unread = '';
  let isData = false;
  let localPart = '';
  let isSlow = false;
  const reply = (line: string) => {
    if (!socket.destroyed) socket.write(`${line}\r\n`);
  };
  socket.on('error', () => {}).setEncoding('latin1');
  socket.on('data', (text) => {
    unread += text;
    for (;;) {
      const mark = isData ? '\r\n.\r\n' : '\r\n';
      const end = unread.indexOf(mark);
      if (end === -1) return;
      const line = unread.slice(0, end);
      unread = unread.slice(end + mark.length);
      if (isData) {
        isData = false;
        if (!isSlow) note(localPart);
        setTimeout(reply, isSlow ? slowMs : 0, '250 2.0.0 Taken');
      } else if (line.startsWith('RCPT')) {
        [, localPart = ''] = /<([^@]*)@/.exec(line) ?? [];
        isSlow = line.includes('@slow.example');
        reply('250 2.1.5 Ok');
      } else if (line === 'DATA') {
        isData = true;
        reply('354 Go ahead');
      } else if (line === 'QUIT') socket.end('221 2.0.0 Bye\r\n');
      else reply(line.startsWith('EHLO') ? '250 relay.example' : '250 2.0.0 Ok');
    }
  });
  reply('220 relay.example ESMTP');
}

const server = net.createServer({ noDelay: true }, serve).listen(0, '127.0.0.1', () => {
  process.stdout.write(`port ${(server.address() as AddressInfo).port}\n`);
});
process.on('message', (count: number) => {
  wanted = count;
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());

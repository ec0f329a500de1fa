/**
 * A mail server in its own process that takes every message and keeps none. For a number n it replies when the first and the last of
 * n messages came. On 127.0.0.2, with the same port, it accepts connections and never says a word.
 */
import net, { type AddressInfo, type Socket } from 'node:net';

const endOfData = Buffer.from('\r\n.\r\n');
const hello = '250-sink.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 SIZE 50000000\r\n';

let wanted = 0;
let seen = 0;
let firstMs = 0;

function note(): void {
  seen += 1;
  if (seen === 1) firstMs = Date.now();
  if (seen === wanted) process.send?.({ firstMs, lastMs: Date.now() });
}

function serve(socket: Socket): void {
  let unread = Buffer.alloc(0);
  let isData = false;
  socket.on('error', () => {});
  socket.on('data', (chunk) => {
    unread = unread.length === 0 ? chunk : Buffer.concat([unread, chunk]);
    let replies = '';
    for (;;) {
      const at = unread.indexOf(isData ? endOfData : '\r\n');
      if (at === -1) break;
      const line = isData ? '' : unread.toString('latin1', 0, at);
      unread = unread.subarray(at + (isData ? endOfData.length : 2));
      if (isData) {
        isData = false;
        note();
        replies += '250 2.0.0 Taken\r\n';
      } else if (line === 'DATA') {
        isData = true;
        replies += '354 Go ahead\r\n';
      } else if (line.startsWith('EHLO')) replies += hello;
      else if (line === 'QUIT') socket.end('221 2.0.0 Bye\r\n');
      else replies += '250 2.0.0 Ok\r\n';
    }
    if (replies !== '') socket.write(replies);
  });
  socket.write('220 sink.example ESMTP\r\n');
}

const server = net.createServer({ noDelay: true }, serve).listen(0, '127.0.0.1', () => {
  const { port } = server.address() as AddressInfo;
  const silent = net.createServer((socket) => socket.on('error', () => {}));
  silent.listen(port, '127.0.0.2', () => process.stdout.write(`port ${port}\n`));
});

process.on('message', (count: number) => {
  wanted = count;
  seen = 0;
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());

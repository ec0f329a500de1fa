/** A receiver of webhooks in a process of its own. Asked for a number, it tells when the first and the last of so many came. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

let wanted = 0;
let seen = 0;
let firstMs = 0;

const server = createServer((request, response) => {
  request.resume();
  request.on('end', () => {
    // Never answered: what isolation has to bear.
    if (request.url?.startsWith('/hang')) return;
    response.end('ok');
    seen += 1;
    if (seen === 1) firstMs = Date.now();
    if (seen === wanted) process.send?.({ firstMs, lastMs: Date.now() });
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`port ${(server.address() as AddressInfo).port}\n`);
});

process.on('message', (count: number) => {
  wanted = count;
  seen = 0;
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());

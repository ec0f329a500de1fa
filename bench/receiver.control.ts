/**
 * A receiver of webhooks in a process of its own. Asked for a number, it tells when the first and the last of so many came;
 * of mail that came to `/mail`, also what it was told of each message. Asked `seen`, it tells how many came so far.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { machineMs } from './clock.ts';

export interface ToldMail {
  messageId: string;
  /** By the machine's clock, when the whole of the POST was there. */
  arrivedMs: number;
  /** Where its bytes and its attachments can be fetched. */
  links: string[];
}

let told: ToldMail[] = [];
let wanted = 0;
let seen = 0;
let firstMs = 0;

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  if (request.url === '/mail') request.on('data', (chunk: Buffer) => chunks.push(chunk));
  else request.resume();
  request.on('end', () => {
    if (request.url === '/mail') told.push(readMail(Buffer.concat(chunks), machineMs()));
    // Never answered: what isolation has to bear.
    if (request.url?.startsWith('/hang')) return;
    response.end('ok');
    seen += 1;
    if (seen === 1) firstMs = Date.now();
    if (seen === wanted) process.send?.({ firstMs, lastMs: Date.now(), told });
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`port ${(server.address() as AddressInfo).port}\n`);
});

function readMail(body: Buffer, arrivedMs: number): ToldMail {
  const { message, rawEmailUrl } = JSON.parse(body.toString()).data;
  const attachments = (message.attachments as { url: string }[]).map(({ url }) => url);
  return { messageId: message.messageId, arrivedMs, links: [rawEmailUrl, ...attachments] };
}

process.on('message', (question: number | 'seen') => {
  if (question === 'seen') {
    process.send?.(seen);
    return;
  }
  told = [];
  wanted = question;
  seen = 0;
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());

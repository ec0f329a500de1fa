/**
 * A webhook receiver in its own process. For a number n it replies when the first and the last of n POSTs came, and what the
 * POSTs to `/mail` contained. For `seen` it replies how many POSTs came so far.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { machineMs } from './clock.ts';

export interface ReceivedMail {
  messageId: string;
  /** When the whole POST had arrived, by the machine's clock. */
  arrivedMs: number;
  /** The URLs of the raw message and of its attachments. */
  links: string[];
}

/** For the scenario `tenants`: a second less than Posthorn waits. */
const slowMs = 14_000;
/** For the scenario `slow-endpoint`. */
const waitMs = 200;

let mails: ReceivedMail[] = [];
let wanted = 0;
let seen = 0;
let firstMs = 0;

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  if (request.url === '/mail') request.on('data', (chunk: Buffer) => chunks.push(chunk));
  else request.resume();
  request.on('end', () => {
    if (request.url === '/mail') mails.push(readMail(Buffer.concat(chunks), machineMs()));
    // No response, for the scenario `isolation`.
    if (request.url?.startsWith('/hang')) return;
    if (request.url?.startsWith('/slow')) setTimeout(() => response.end('ok'), slowMs);
    else if (request.url === '/after-200-ms') setTimeout(() => response.end('ok'), waitMs);
    else response.end('ok');
    seen += 1;
    if (seen === 1) firstMs = Date.now();
    if (seen === wanted) process.send?.({ firstMs, lastMs: Date.now(), mails });
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`port ${(server.address() as AddressInfo).port}\n`);
});

function readMail(body: Buffer, arrivedMs: number): ReceivedMail {
  const { message, rawEmailUrl } = JSON.parse(body.toString()).data;
  const attachments = (message.attachments as { url: string }[]).map(({ url }) => url);
  return { messageId: message.messageId, arrivedMs, links: [rawEmailUrl, ...attachments] };
}

process.on('message', (question: number | 'seen') => {
  if (question === 'seen') {
    process.send?.(seen);
    return;
  }
  mails = [];
  wanted = question;
  seen = 0;
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());

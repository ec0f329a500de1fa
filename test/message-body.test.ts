/** The body of `POST /inbound`: a client that sends it too slowly gets a 408 and is cut, so that it holds no memory. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { sendClientError } from '../src/http/errors.ts';
import { makeApp } from '../src/http/fastify.ts';
import { readMessageBody } from '../src/http/message-body.ts';
import { makeLog } from '../src/lib/log.ts';
import type { PaceLimits } from '../src/lib/pace.ts';
import { waitFor } from './harness.ts';

const hour = 3_600_000;
const maxBytes = 1_000_000;

/** An app that reads bodies with these limits, and answers with their length. */
async function start(given: Partial<PaceLimits>, requestTimeout = hour) {
  const limits = { dataTimeoutMs: hour, dataPortionBytes: 65_536, messageTimeoutMs: hour, ...given };
  const app = makeApp(makeLog({ level: 'silent', json: true }), {
    requestTimeout,
    clientErrorHandler: sendClientError,
    http: { requestTimeout, headersTimeout: requestTimeout, connectionsCheckingInterval: 50 },
  });
  after(() => {
    app.server.closeAllConnections();
    return app.close();
  });
  app.addContentTypeParser('message/rfc822', (_request, _payload, done) => done(null));
  const read: string[] = [];
  app.post('/', async ({ raw }) => {
    try {
      const body = await readMessageBody(raw, maxBytes, limits);
      read.push('whole');
      return { bytes: body.length };
    } catch (error) {
      read.push((error as Error).message);
      throw error;
    }
  });
  await app.listen({ host: '127.0.0.1', port: 0 });
  const { port } = app.server.address() as AddressInfo;
  const send = (bytes: number, text: string): Socket => {
    const socket = connect(port, '127.0.0.1');
    // A write may meet a connection that the server has closed.
    socket.on('error', () => {});
    after(() => socket.destroy());
    const head = `POST / HTTP/1.1\r\nhost: x\r\ncontent-type: message/rfc822\r\ncontent-length: ${bytes}\r\n\r\n`;
    socket.write(`${head}${text}`);
    return socket;
  };
  return { send, read };
}

/** Everything until the server closes the connection. */
async function readToEnd(socket: Socket): Promise<string> {
  let text = '';
  socket.on('data', (bytes) => {
    text += bytes;
  });
  // Not `once`: a byte that meets the closed connection is an error, and no matter.
  await new Promise((resolve) => socket.on('close', resolve));
  return text;
}

function assertTooSlow(answer: string): void {
  assert.match(answer, /^HTTP\/1\.1 408 Request Timeout\r\n/);
  assert.match(answer, /\r\nconnection: close\r\n/i);
  assert.match(answer, /\r\ncontent-type: application\/problem\+json/i);
  assert.match(answer, /"code":"request_timeout"/);
}

test('a body that stalls gets 408, and the connection is closed', { timeout: 60_000 }, async () => {
  const { send, read } = await start({ dataTimeoutMs: 500 });
  assertTooSlow(await readToEnd(send(500_000, 'Subject: half')));
  assert.equal(read.length, 1, 'the reader has ended, too');
});

test('a body slower than the slowest rate gets 408, though bytes keep coming', {
  timeout: 60_000,
}, async () => {
  const { send } = await start({ dataTimeoutMs: 500 });
  const socket = send(500_000, 'Subject: ');
  const drip = setInterval(() => socket.write('x'), 10);
  assertTooSlow(await readToEnd(socket).finally(() => clearInterval(drip)));
});

test('a body that takes longer than the whole may take gets 408', { timeout: 60_000 }, async () => {
  const { send } = await start({ dataPortionBytes: 1, messageTimeoutMs: 500 });
  const socket = send(500_000, 'Subject: ');
  const drip = setInterval(() => socket.write('x'), 10);
  assertTooSlow(await readToEnd(socket).finally(() => clearInterval(drip)));
});

test('the time-out of the HTTP server is a 408, too', { timeout: 60_000 }, async () => {
  const { send } = await start({}, 500);
  assertTooSlow(await readToEnd(send(500_000, 'Subject: half')));
});

test('a whole body is read, and the connection stays open', { timeout: 60_000 }, async () => {
  const { send } = await start({});
  const socket = send(200_000, 'x'.repeat(150_000));
  socket.write('x'.repeat(50_000));
  const [answer] = await once(socket, 'data');
  assert.match(String(answer), /^HTTP\/1\.1 200 /);
  assert.match(String(answer), /\{"bytes":200000\}$/);
  socket.write('POST / HTTP/1.1\r\nhost: x\r\ncontent-type: message/rfc822\r\ncontent-length: 1\r\n\r\nx');
  const [next] = await once(socket, 'data');
  assert.match(String(next), /\{"bytes":1\}$/);
});

test('a client that leaves ends the reading', { timeout: 60_000 }, async () => {
  const { send, read } = await start({});
  const socket = send(500_000, 'Subject: half');
  const other = send(1, 'x');
  // When another request has its answer, the server has read this one, too.
  await once(other, 'data');
  socket.destroy();
  await waitFor('the end of the reading', () => read.length === 2);
  assert.deepEqual(read, ['whole', 'aborted']);
});

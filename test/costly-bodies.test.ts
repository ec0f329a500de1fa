/** Bodies that cost the server more than the client: a body that nobody reads, and a body in tiny chunks. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import type { Readable } from 'node:stream';
import { after, describe, test } from 'node:test';
import { type BodyLimits, defaultBodyLimits } from '../src/http/costly-bodies.ts';
import { sendClientError } from '../src/http/errors.ts';
import { makeApp } from '../src/http/fastify.ts';
import { readJsonBodies } from '../src/http/json-body.ts';
import { readMessageBody } from '../src/http/message-body.ts';
import { makeLog } from '../src/lib/log.ts';
import { Problem } from '../src/problems.ts';

const hour = 3_600_000;
const timeout = 60_000;
const chunk = (text: string) => `${text.length.toString(16)}\r\n${text}\r\n`;
const end = '0\r\n\r\n';

async function start(given: Partial<BodyLimits> = {}) {
  const log = makeLog({ level: 'silent', json: true });
  const options = { clientErrorHandler: sendClientError, routerOptions: { maxParamLength: 20 } };
  const app = makeApp(log, options, { ...defaultBodyLimits, ...given });
  after(() => {
    app.server.closeAllConnections();
    return app.close();
  });
  const sockets: Socket[] = [];
  app.server.on('connection', (socket) => sockets.push(socket));
  readJsonBodies(app);
  const pace = { dataTimeoutMs: hour, dataPortionBytes: 65_536, messageTimeoutMs: hour };
  app.addContentTypeParser('message/rfc822', (_request, payload, done) => done(null, payload));
  app.post('/json', async ({ body }) => ({ length: JSON.stringify(body).length }));
  app.post('/message', async ({ body }) => {
    const { length } = await readMessageBody(body as Readable, 1_000_000, pace);
    return { length };
  });
  app.get('/unread', async () => 'fine');
  app.get('/named/:name', async () => 'fine');
  app.post('/refused', {
    onRequest: async () => {
      throw new Problem('missing_api_key');
    },
    handler: async () => 'never',
  });
  await app.listen({ host: '127.0.0.1', port: 0 });
  const { port } = app.server.address() as AddressInfo;
  const send = (request: string, headers: string, body = ''): Socket => {
    const socket = connect(port, '127.0.0.1');
    socket.on('error', () => {});
    after(() => socket.destroy());
    socket.write(`${request} HTTP/1.1\r\nhost: x\r\n${headers}\r\n\r\n${body}`);
    return socket;
  };
  return { send, sockets, port };
}

/** Everything until `event`: `end` is the end of what the server sends, `close` the end of the connection. */
async function readTo(event: 'end' | 'close', socket: Socket): Promise<string> {
  let text = '';
  socket.on('data', (bytes) => {
    text += bytes;
  });
  await new Promise((resolve) => socket.on(event, resolve));
  return text;
}

const chunked = 'transfer-encoding: chunked';

describe('after the answer to a request whose body is not read', () => {
  const tiny = chunk('x').repeat(2_000_000);
  const requests: [what: string, request: string, headers: string, status: number][] = [
    ['refused before the body', 'POST /refused', chunked, 401],
    ['a GET with a body', 'GET /unread', chunked, 200],
    ['no such route', 'GET /none', chunked, 404],
    ['a name that is too long', `GET /named/${'x'.repeat(50)}`, chunked, 404],
    ['a large announced body', 'POST /refused', 'content-length: 100000000', 401],
    [
      'a JSON body that is too large',
      'POST /json',
      'content-type: application/json\r\ncontent-length: 9999999',
      413,
    ],
  ];
  for (const [what, request, headers, status] of requests) {
    test(`${what}: the server reads no more, and the client can read the answer`, { timeout }, async () => {
      const { send, sockets } = await start({ lingerMs: hour });
      const answer = await readTo('end', send(request, headers, tiny));
      assert.match(answer, new RegExp(`^HTTP/1.1 ${status} `));
      assert.match(answer, /\r\nconnection: close\r\n/i);
      const [socket] = sockets;
      assert.ok(socket && !socket.destroyed && socket.bytesRead < 1_000_000, `${socket?.bytesRead} bytes`);
    });

    test(`${what}: the connection is destroyed`, { timeout }, async () => {
      const { send } = await start({ lingerMs: 10 });
      assert.match(await readTo('close', send(request, headers)), new RegExp(`^HTTP/1.1 ${status} `));
    });
  }

  test('bytes that are not HTTP: the connection is destroyed, though the client does not close it', {
    timeout,
  }, async () => {
    const { port } = await start();
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    after(() => socket.destroy());
    socket.on('error', () => {});
    socket.write('no request\r\n\r\n');
    assert.match(await readTo('end', socket), /^HTTP\/1.1 400 /);
    const drip = setInterval(() => socket.write('x'), 10);
    await new Promise((resolve) => socket.on('close', resolve)).finally(() => clearInterval(drip));
  });

  test('a small announced body leaves the connection open', { timeout }, async () => {
    const { send } = await start({ lingerMs: 0 });
    const socket = send('POST /refused', 'content-length: 5', 'small');
    for (let requests = 0; requests < 3; requests += 1) {
      const [answer] = await once(socket, 'data');
      assert.match(String(answer), /^HTTP\/1.1 401 /);
      socket.write('POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nsmall');
    }
  });
});

describe('a chunked body', () => {
  const routes = [
    ['POST /json', 'application/json'],
    ['POST /message', 'message/rfc822'],
  ] as const;
  for (const [request, type] of routes) {
    const headers = `${chunked}\r\ncontent-type: ${type}`;
    const body = (chunks: number, bytes: number) =>
      `${chunk('"')}${chunk('x'.repeat(bytes)).repeat(chunks - 2)}${chunk('"')}${end}`;

    test(`${request} refuses tiny chunks with 400, and closes the connection`, { timeout }, async () => {
      const { send } = await start({ lingerMs: 10 });
      for (const [chunks, bytes] of [
        [1001, 1],
        [1001, 63],
        [60_000, 1],
      ] as const) {
        const answer = await readTo('close', send(request, headers, body(chunks, bytes)));
        assert.match(answer, /^HTTP\/1.1 400 /);
        assert.match(answer, /"code":"bad_request"/);
        assert.match(answer, /after 1000 chunks the average must be 64 bytes/);
      }
    });

    test(`${request} reads few tiny chunks, and many larger ones`, { timeout }, async () => {
      const { send } = await start({ lingerMs: 10, freeChunks: 100 });
      for (const [chunks, bytes] of [
        [100, 1],
        [900, 66],
      ] as const) {
        const [answer] = await once(send(request, headers, body(chunks, bytes)), 'data');
        assert.match(String(answer), /^HTTP\/1.1 200 /);
        assert.match(String(answer), new RegExp(`\\{"length":${(chunks - 2) * bytes + 2}\\}$`));
      }
    });
  }

  test('of tiny chunks that a route does not read is no error', { timeout }, async () => {
    const { send } = await start({ lingerMs: 10, freeChunks: 5 });
    const answer = await readTo('close', send('GET /unread', chunked, chunk('x').repeat(1000)));
    assert.match(answer, /^HTTP\/1.1 200 /);
  });
});

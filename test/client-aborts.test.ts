/** A client that closes its connection during its request is no fault of the service or its database: nothing is logged. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net from 'node:net';
import { after, test } from 'node:test';
import { listen, makeApp } from '../src/http/fastify.ts';
import { readJsonBodies } from '../src/http/json-body.ts';
import { makeLog } from '../src/lib/log.ts';

const lines: string[] = [];
const stream = { write: (line: string) => lines.push(line) } as unknown as NodeJS.WritableStream;
const app = makeApp(makeLog({ level: 'info', json: true, stream }));
after(() => app.close());
readJsonBodies(app);
app.addContentTypeParser('message/rfc822', { parseAs: 'buffer' }, (_request, bytes, done) =>
  done(null, bytes),
);
app.post('/', async () => ({}));
let answered = Promise.withResolvers<number>();
app.addHook('onSend', async (_request, reply) => answered.resolve(reply.statusCode));
const { port } = new URL(await listen(app, '127.0.0.1', 0, 'PORT'));

const bodies: [what: string, headers: string, body: string][] = [
  ['a JSON body', 'content-type: application/json\r\ncontent-length: 100', '{"value":'],
  ['a chunked body', 'content-type: application/json\r\ntransfer-encoding: chunked', '9\r\n{"value":\r\n'],
  ['a message', 'content-type: message/rfc822\r\ncontent-length: 100', 'Subject: '],
];
const ways: [how: string, leave: (socket: net.Socket) => void][] = [
  ['ends', (socket) => socket.end()],
  ['is reset', (socket) => socket.resetAndDestroy()],
];
for (const [what, headers, body] of bodies) {
  for (const [how, leave] of ways) {
    test(`the connection ${how} during ${what}: 400, and nothing is logged`, {
      timeout: 60_000,
    }, async (t) => {
      answered = Promise.withResolvers();
      const socket = net.connect(Number(port), '127.0.0.1');
      t.after(() => socket.destroy());
      socket.write(`POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n${headers}\r\n\r\n`);
      // "100 Continue": the service waits for the body.
      await once(socket, 'data');
      await new Promise((resolve) => socket.write(body, resolve));
      leave(socket);
      assert.equal(await answered.promise, 400);
      assert.deepEqual(lines, []);
    });
  }
}

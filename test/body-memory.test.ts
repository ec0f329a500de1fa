/** The memory for large bodies: an owner that sends slowly gives it up when others wait for it. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { BodyMemory } from '../src/http/body-memory.ts';
import { abortOnClose } from '../src/http/client-gone.ts';
import { makeApp } from '../src/http/fastify.ts';
import { readMessageBody } from '../src/http/message-body.ts';
import { makeLog } from '../src/lib/log.ts';
import { chooseCut } from '../src/lib/shared-memory.ts';
import { waitFor } from './harness.ts';

const hour = 3_600_000;
const bodyBytes = 100_000;
const pace = { dataTimeoutMs: hour, dataPortionBytes: 65_536, messageTimeoutMs: hour };

test('two owners that send nothing have all memory: the bodies of a third are read, and theirs get 408', {
  timeout: 60_000,
}, async () => {
  const app = makeApp(makeLog({ level: 'silent', json: true }));
  after(() => {
    app.server.closeAllConnections();
    return app.close();
  });
  const memory = new BodyMemory({ inAll: 8 * bodyBytes, perOwner: 4 * bodyBytes, slowMs: 5 });
  let reading = 0;
  app.addContentTypeParser('message/rfc822', (_request, _payload, done) => done(null));
  app.post<{ Params: { owner: string } }>('/:owner', async ({ raw, params: { owner } }, reply) => {
    using _share = await memory.take(owner, bodyBytes, abortOnClose(reply));
    reading += 1;
    const read = (cut: AbortSignal) => readMessageBody(raw, bodyBytes, pace, cut);
    const { length } = await memory.read(owner, bodyBytes, read);
    return { length };
  });
  await app.listen({ host: '127.0.0.1', port: 0 });
  const { port } = app.server.address() as AddressInfo;
  const post = (owner: string, body: string): Socket => {
    const socket = connect(port, '127.0.0.1');
    // The server cuts it.
    socket.on('error', () => {});
    after(() => socket.destroy());
    const type = 'content-type: message/rfc822';
    socket.write(
      `POST /${owner} HTTP/1.1\r\nhost: x\r\n${type}\r\ncontent-length: ${bodyBytes}\r\n\r\n${body}`,
    );
    return socket;
  };
  const silent = ['a', 'b', 'a', 'b', 'a', 'b', 'a', 'b'].map((owner) => post(owner, 'Subject: '));
  await waitFor('all memory to be taken', () => reading === silent.length);
  const answered = silent.map(async (socket) => String((await once(socket, 'data'))[0]));

  const [answer] = await once(post('c', 'x'.repeat(bodyBytes)), 'data');
  assert.match(String(answer), /^HTTP\/1.1 200 /);
  const refused = await Promise.any(answered);
  assert.match(refused, /^HTTP\/1.1 408 /);
  assert.match(refused, /\r\nconnection: close\r\n/i);
  assert.match(refused, /"code":"request_timeout"/);
});

const limits = { inAll: 128, perOwner: 64, slowMs: 10 };
const open = (name: string, bytes: number, startedAt = 0) => ({
  name,
  ownerId: name[0] ?? '',
  bytes,
  startedAt,
});
const chosen = (bodies: ReturnType<typeof open>[], ownerId: string, bytes: number) =>
  chooseCut(bodies, { ownerId, bytes }, limits, 20).map(({ name }) => name);

test('cut are as many as are needed, the oldest of the owner that has most first', () => {
  const bodies = [open('b1', 30), open('b2', 30, 1), open('a2', 32, 2), open('a1', 32, 1)];
  assert.deepEqual(chosen(bodies, 'c', 1), ['a1']);
  assert.deepEqual(chosen(bodies, 'c', 33), ['a1', 'a2']);
  assert.deepEqual(chosen(bodies, 'c', 59), ['a1', 'a2']);
  assert.deepEqual(chosen([...bodies, open('a3', 0, 3)], 'c', 63), ['a1', 'a2']);
});

test('no body is cut that is not slow, or for an owner who has as much', () => {
  assert.deepEqual(chosen([open('a', 64, 10), open('b', 64, 15)], 'c', 1), []);
  assert.deepEqual(chosen([open('a', 64), open('b', 64)], 'c', 64), []);
  assert.deepEqual(chosen([open('a', 40), open('b', 40), open('c', 30)], 'c', 10), []);
});

test('an owner who has used up its own part waits for its own bodies', () => {
  assert.deepEqual(chosen([open('a', 64), open('b', 60)], 'b', 5), []);
  assert.deepEqual(chosen([open('a', 200)], 'b', 65), [], 'more than an owner can have waits for all others');
});

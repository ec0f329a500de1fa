/** Answers that clients do not read: their memory is counted for each owner, and a client that reads nothing is cut. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { type AnswerLimits, boundAnswers } from '../src/http/answer-memory.ts';
import { makeApp } from '../src/http/fastify.ts';
import { makeLog } from '../src/lib/log.ts';
import { waitFor } from './harness.ts';

/** More than the buffers of the system take for a connection. */
const largeBytes = 32 * 1024 * 1024;
const middlingBytes = 60 * 1024;
const hour = 3_600_000;

/** An app whose answers are large. The path has the owner. */
async function start(given: Partial<AnswerLimits> = {}) {
  const app = makeApp(makeLog({ level: 'silent', json: true }));
  after(() => app.close());
  after(() => app.server.closeAllConnections());
  const limits = {
    ...{ inAll: 4 * largeBytes, perOwner: 2 * largeBytes, waitMs: hour, stalledMs: hour, slowMs: hour },
    maxPipelined: 64,
    ...given,
  };
  app.decorateRequest('ownerId', '');
  app.decorateRequest('keyId', '');
  app.addHook('onRequest', (request, _reply, done) => {
    request.ownerId = (request.params as { owner: string }).owner;
    request.keyId = request.url.includes('link') ? '' : 'k';
    done();
  });
  const answers = boundAnswers(app, limits);
  const served: string[] = [];
  app.get('/large/:owner', async (request, reply) => {
    await answers.reserve(request, reply, largeBytes);
    served.push(request.ownerId);
    return reply.send(Buffer.alloc(largeBytes));
  });
  app.get('/small/:owner', async (request, reply) => {
    await answers.reserve(request, reply, largeBytes);
    return 'small';
  });
  app.get('/middling/:owner', async (request, reply) => {
    await answers.reserve(request, reply, middlingBytes);
    served.push(request.ownerId);
    return 'x'.repeat(middlingBytes);
  });
  await app.listen({ host: '127.0.0.1', port: 0 });
  const { port } = app.server.address() as AddressInfo;
  const ask = (path: string, times = 1): Socket => {
    const socket = connect(port, '127.0.0.1').pause();
    // The service cuts it.
    socket.on('error', () => {});
    socket.write(`GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(times));
    return socket;
  };
  const countServed = (owner: string) => served.filter((name) => name === owner).length;
  const read = (path: string) => fetch(`http://127.0.0.1:${port}${path}`);
  return { app, ask, read, countServed };
}

test('beyond its share an owner is refused with 503 and Retry-After, and another owner is served', async () => {
  const { ask, read, countServed } = await start({ waitMs: 10 });
  ask('/large/a');
  ask('/large/a');
  await waitFor('both answers', () => countServed('a') === 2);
  for (const path of ['/large/a', '/small/a']) {
    const refused = await read(path);
    assert.equal(refused.status, 503, path);
    assert.match(refused.headers.get('retry-after') ?? '', /^\d+$/);
    assert.equal(((await refused.json()) as { code: string }).code, 'answers_unread');
  }
  for (const path of ['/large/b', '/small/b']) {
    const answer = await read(path);
    assert.equal(answer.status, 200, path);
    await answer.arrayBuffer();
  }
});

test('what was read, or whose client is gone, is no longer counted; nor is what a client left while it waited', async () => {
  const { ask, read, countServed } = await start();
  const [one, two] = [ask('/large/a'), ask('/large/a')];
  await waitFor('both answers', () => countServed('a') === 2);
  const waiting = ask('/large/a');
  const waitingLate = ask('/large/a');
  await once(waiting, 'connect');
  waiting.destroy();
  one.destroy();
  await waitFor('the one that still waits', () => countServed('a') >= 3);
  two.destroy();
  waitingLate.destroy();
  for (let n = 0; n < 5; n += 1) await (await read('/large/a')).arrayBuffer();
  const before = countServed('a');
  ask('/large/a');
  ask('/large/a');
  await waitFor('a whole share', () => countServed('a') === before + 2);
});

test('an answer counts with its own size, not with what was reserved', async () => {
  const { read, ask, countServed } = await start({ waitMs: 10 });
  const answers = await Promise.all(Array.from({ length: 2 }, () => read('/small/a')));
  assert.deepEqual(await Promise.all(answers.map((answer) => answer.text())), ['small', 'small']);
  ask('/large/a');
  ask('/large/a');
  await waitFor('both answers', () => countServed('a') === 2);
});

test('a client that reads nothing is cut, and one that waits for its turn then gets it', async () => {
  const { app, ask, countServed } = await start({ stalledMs: 100, perOwner: largeBytes });
  const closed = new Promise((resolve) =>
    app.server.once('connection', (socket) => socket.once('close', resolve)),
  );
  ask('/large/a');
  await waitFor('the answer', () => countServed('a') === 1);
  ask('/large/a');
  await closed;
  await waitFor('the next answer', () => countServed('a') === 2);
});

test('small answers count too: a client can ask for many over one connection before it reads any', async () => {
  const { ask, read, countServed } = await start({ waitMs: 50, perOwner: largeBytes, maxPipelined: 2000 });
  ask('/middling/b', 1500);
  await waitFor('the refusals', async () => (await read('/middling/b')).status === 503);
  assert.ok(countServed('b') * middlingBytes < 1.5 * largeBytes, `${countServed('b')} answers`);
});

test('clients that read slowly are cut when another owner needs the room', async () => {
  const { ask, read, countServed } = await start({ inAll: 2 * largeBytes, waitMs: 5000, slowMs: 200 });
  const slow = [ask('/large/a'), ask('/large/a')];
  await waitFor('both answers', () => countServed('a') === 2);
  // Never without progress.
  const reading = setInterval(() => slow.map((socket) => socket.read(1000)), 20);
  after(() => clearInterval(reading));
  assert.equal((await read('/small/b')).status, 200);
  assert.equal((await read('/small/a')).status, 200);
});

test('the owner does not wait for clients that have a link and read slowly', async () => {
  const { ask, read, countServed } = await start({ waitMs: 1000, slowMs: 100 });
  ask('/large/a?link');
  ask('/large/a?link');
  await waitFor('both answers', () => countServed('a') === 2);
  assert.equal((await read('/small/a')).status, 200);
  ask('/large/a');
  ask('/large/a');
  await waitFor('the answers of the owner', () => countServed('a') === 4);
  assert.equal((await read('/small/a?link')).status, 503);
});

test('a client that sends far too many requests before it reads an answer is cut', async () => {
  const { app, ask } = await start();
  const closed = new Promise((resolve) =>
    app.server.once('connection', (socket) => socket.once('close', resolve)),
  );
  ask('/large/a').write('GET /small/a HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(100));
  await closed;
});

/** The memory that `POST /inbound` shares out comes back, however a request ends, and is divided among owners. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net from 'node:net';
import { after, test } from 'node:test';
import { startTestService, type TestUser } from './harness.ts';

const service = await startTestService({ POSTHORN_MAX_MESSAGE_BYTES: String(200 * 1024 * 1024) });
const { call } = service;
const { hostname, port, pathname } = new URL(service.url);
const largeBytes = 100 * 1024 * 1024;

/** Announces a body of so many bytes and sends its beginning. */
async function announce(bytes: number, as: TestUser): Promise<net.Socket> {
  const socket = net.connect({ host: hostname, port: Number(port) });
  after(() => socket.destroy());
  await once(socket, 'connect');
  const path = `${pathname === '/' ? '' : pathname}/inbound?recipient=a@in.example`;
  socket.write(
    `POST ${path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${as.apiKey}\r\n` +
      `content-type: message/rfc822\r\ncontent-length: ${bytes}\r\n\r\nSubject: x\r\n`,
  );
  // When another request has its answer, the server has read this one, too.
  assert.equal((await call('GET', '/me', { as })).status, 200);
  return socket;
}

async function close(sockets: net.Socket[]): Promise<void> {
  for (const socket of sockets) socket.destroy();
  assert.equal((await call('GET', '/me')).status, 200);
}

async function post(as: TestUser, body: string | Buffer) {
  const headers = { 'content-type': 'message/rfc822' };
  const { status } = await call('POST', '/inbound?recipient=a@in.example', { as, body, headers });
  return status;
}

const letter = Buffer.alloc(200_000, 'Subject: x\r\n');

test('clients that leave while they wait, and before, leave nothing behind', {
  timeout: 120_000,
}, async () => {
  for (let round = 0; round < 3; round += 1) {
    const sockets: net.Socket[] = [];
    for (let n = 0; n < 6; n += 1) sockets.push(await announce(largeBytes, service.user));
    await close(round % 2 === 0 ? sockets : sockets.reverse());
  }
  // The recipient is unknown: the request was read to its end.
  assert.equal(await post(service.user, letter), 400);
});

test('a message that is announced too large gets its 413, and takes no memory', {
  timeout: 120_000,
}, async () => {
  for (let n = 0; n < 3; n += 1) {
    const socket = await announce(300 * 1024 * 1024, service.user);
    const [answer] = await once(socket, 'data');
    assert.match(String(answer), /^HTTP\/1.1 413 /);
    socket.destroy();
  }
  assert.equal(await post(service.user, letter), 400);
});

test('a small message does not wait for large ones', { timeout: 120_000 }, async () => {
  const others = await Promise.all([service.makeUser(), service.makeUser()]);
  const sockets: net.Socket[] = [];
  for (const as of [...others, ...others]) sockets.push(await announce(largeBytes, as));
  assert.equal(await post(service.user, 'Subject: small\r\n\r\n'), 400);
  await close(sockets);
});

test('when the client of a large message leaves, the next owner does not wait for it', {
  timeout: 120_000,
}, async () => {
  const [first, second] = await Promise.all([service.makeUser(), service.makeUser()]);
  const holding = await announce(120 * 1024 * 1024, first);
  // Does not fit beside the first, so it reserves all that is left.
  const waiting = await announce(largeBytes, second);
  const posted = post(service.user, letter);
  await close([waiting]);
  assert.equal(await posted, 400);
  await close([holding]);
});

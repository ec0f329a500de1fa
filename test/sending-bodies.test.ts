/** The bodies of `POST /messages`: in chunks, in tiny chunks, and slow ones that take the memory of others. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net from 'node:net';
import { after, describe, test } from 'node:test';
import { startTestService, type TestUser } from './harness.ts';
import { openOutbox } from './outbox.ts';

const megabyte = 1024 * 1024;
const service = await startTestService({ POSTHORN_MAX_MESSAGE_BYTES: String(60 * megabyte) });
const { user, call } = service;
const identityId = await openOutbox(service).makeIdentity('ada@sender.example');
const timeout = 120_000;

const write = (text: string) => ({ identityId, to: 'bob@dest.example', subject: 'Hello', text });
const json = (text: string) => JSON.stringify(write(text));
const raw = (text: string) =>
  `From: ada@sender.example\r\nTo: bob@dest.example\r\nSubject: Hello\r\n\r\n${text}\r\n`;
const forms = [
  ['application/json', '', json],
  ['message/rfc822', `?identity_id=${identityId}`, raw],
] as const;

function connect(path: string, as: TestUser, headers: string): net.Socket {
  const { hostname, port, pathname } = new URL(service.url);
  const socket = net.connect({ host: hostname, port: Number(port) });
  after(() => socket.destroy());
  socket.on('error', () => {});
  const base = pathname === '/' ? '' : pathname;
  socket.write(
    `POST ${base}/messages${path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${as.apiKey}\r\n${headers}\r\n\r\n`,
  );
  return socket;
}

function writeChunks(socket: net.Socket, text: string, bytes: number): void {
  const parts = text.match(new RegExp(`[^]{1,${bytes}}`, 'g')) ?? [];
  const chunks = parts.map((part) => `${part.length.toString(16)}\r\n${part}\r\n`);
  socket.write(`${chunks.join('')}0\r\n\r\n`);
}

describe('a chunked body', () => {
  for (const [type, query, writeBody] of forms) {
    const headers = `content-type: ${type}\r\ntransfer-encoding: chunked`;

    test(`${type}: a large message is read to its end`, { timeout }, async () => {
      const socket = connect(query, user, headers);
      writeChunks(socket, writeBody(`${'A line of the text. '.repeat(4)}\r\n`.repeat(5000)), 16_000);
      const [answer] = await once(socket, 'data');
      assert.match(String(answer), /^HTTP\/1.1 202 /);
    });

    test(`${type}: tiny chunks are refused`, { timeout }, async () => {
      const socket = connect(query, user, headers);
      writeChunks(socket, writeBody('x'.repeat(5000)), 1);
      const [answer] = await once(socket, 'data');
      assert.match(String(answer), /^HTTP\/1.1 400 /);
      assert.match(String(answer), /chunks that are too small/);
    });
  }
});

test('two owners that send slowly do not keep the memory from a third', { timeout }, async () => {
  const owners = [await service.makeUser(), await service.makeUser()];
  const slow = owners.flatMap((as) =>
    [40 * megabyte, 24 * megabyte].map((bytes) =>
      connect('', as, `content-type: application/json\r\ncontent-length: ${bytes}`),
    ),
  );
  let refused = '';
  for (const socket of slow) {
    socket.once('data', (answer) => {
      refused ||= String(answer);
    });
  }
  // The first may come before the slow ones. The next must wait until one of them is cut.
  while (refused === '') {
    const { status, text } = await call('POST', '/messages', { body: write('x'.repeat(200_000)) });
    assert.equal(status, 202, text);
  }
  assert.match(refused, /^HTTP\/1.1 408 /);
  assert.match(refused, /other requests waited for the memory/);
});

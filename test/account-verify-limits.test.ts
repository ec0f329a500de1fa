/** POST /smtp-accounts/{id}/verify towards servers that never end: it costs its owner alone, and not for ever. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net, { type AddressInfo, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { openImap } from '../src/mailboxes/imap-client.ts';
import { makeEgress } from '../src/net/egress.ts';
import { startTestService, type TestUser, waitFor } from './harness.ts';
import { startImapScript } from './imap-script.ts';
import { startSink } from './smtp-sink.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const sink = await startSink({ extensions: ['AUTH PLAIN LOGIN'] });

/** An IMAP server that says something again and again, and never answers a command. */
async function startTalker() {
  const sockets = new Set<Socket>();
  const server = net.createServer((socket) => {
    sockets.add(socket);
    socket.write('* OK ready\r\n');
    const talking = setInterval(() => socket.write('* OK still there\r\n'), 20);
    socket.on('error', () => {});
    socket.on('data', () => {});
    socket.on('close', () => {
      clearInterval(talking);
      sockets.delete(socket);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, sockets };
}

async function makeAccount(as: TestUser, imapPort: number): Promise<string> {
  const login = { host: '127.0.0.1', username: 'ada@post.example', password: 'secret' };
  const body = { label: 'Post', smtp: { ...login, port: sink.port }, imap: { ...login, port: imapPort } };
  const made = await service.call('POST', '/smtp-accounts', { as, body });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}

test('a server that talks and never answers the login: timeout', { timeout: 60_000 }, async () => {
  const { port } = await startTalker();
  const server = { host: '127.0.0.1', port, secure: false, username: 'ada', login: { password: 'secret' } };
  const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: null });
  const timeouts = { connectMs: 30_000, greetingMs: 30_000, silenceMs: 30_000, loginMs: 200 };
  const opened = await openImap(server, { password: 'secret' }, { egress, production: false, timeouts });
  assert.equal('error' in opened && opened.error.code, 'timeout');
});

test('checks that hang make only their owner wait, and end when the client has gone', {
  timeout: 60_000,
}, async () => {
  const talker = await startTalker();
  const script = await startImapScript();
  const [one, other] = [await service.makeUser(), await service.makeUser()];
  const slow = await makeAccount(one, talker.port);
  const quick = await makeAccount(one, script.port);
  const foreign = await makeAccount(other, script.port);
  const leaving = new AbortController();
  const headers = { authorization: `Bearer ${one.apiKey}` };
  const hanging = Array.from({ length: 8 }, () =>
    fetch(`${service.url}/smtp-accounts/${slow}/verify`, { method: 'POST', headers, signal: leaving.signal }),
  );
  await waitFor('the checks', () => talker.sockets.size >= 3);
  const { body } = await service.call('POST', `/smtp-accounts/${foreign}/verify`, { as: other });
  assert.equal(body.receive.state, 'ok');
  assert.equal(talker.sockets.size, 3, 'so many of one owner at the same time');
  leaving.abort();
  await Promise.allSettled(hanging);
  await waitFor('the end of the checks', () => talker.sockets.size === 0);
  const after = await service.call('POST', `/smtp-accounts/${quick}/verify`, { as: one });
  assert.equal(after.body.receive.state, 'ok');
  const state = await service.call('GET', `/smtp-accounts/${slow}`, { as: one });
  assert.equal(state.body.receive.state, 'unknown', 'a check that was ended says nothing about the account');
});

/** POST /smtp-accounts/{id}/verify towards servers that never end: it costs its owner alone, and not for ever. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import net, { type AddressInfo, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { makeLog } from '../src/lib/log.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { openImap } from '../src/mailboxes/open-imap.ts';
import { Verifications } from '../src/mailboxes/verifications.ts';
import { verifyAccount } from '../src/mailboxes/verify-account.ts';
import { AccessTokens } from '../src/net/access-tokens.ts';
import { makeEgress } from '../src/net/egress.ts';
import { Problem } from '../src/problems.ts';
import { AccountServers } from '../src/sending/account-servers.ts';
import { assertProblem, startTestService, type TestUser, waitFor } from './harness.ts';
import { startImapScript } from './imap-script.ts';
import { makeImapThreads } from './imap-threads.ts';
import { startSink } from './smtp-sink.ts';

const key = randomBytes(32);
const sealer = makeSealer([key]);
const service = await startTestService({
  ...{ POSTHORN_ROLES: 'api', POSTHORN_SECRET_KEY: key.toString('base64') },
});
const sink = await startSink({ extensions: ['AUTH PLAIN LOGIN'] });

/** A server that says something again and again, and never answers a command. */
async function startTalker(text = '* OK still there\r\n') {
  const sockets = new Set<Socket>();
  const server = net.createServer((socket) => {
    sockets.add(socket);
    socket.write(text);
    const talking = setInterval(() => socket.write(text), 20);
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

async function makeAccount(as: TestUser, imapPort: number, smtpPort = sink.port): Promise<string> {
  const login = { host: '127.0.0.1', username: 'ada@post.example', password: 'secret' };
  const body = { label: 'Post', smtp: { ...login, port: smtpPort }, imap: { ...login, port: imapPort } };
  const made = await service.call('POST', '/smtp-accounts', { as, body });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}

test('a server that talks and never answers the login: timeout', { timeout: 60_000 }, async () => {
  const { port } = await startTalker();
  const server = { host: '127.0.0.1', port, secure: false, username: 'ada', login: { password: 'secret' } };
  const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: null });
  const timeouts = { connectMs: 30_000, greetingMs: 30_000, silenceMs: 30_000, loginMs: 200 };
  const opened = await openImap(
    'owner',
    server,
    { password: 'secret' },
    { egress, threads: makeImapThreads(), production: false, timeouts },
  );
  assert.equal('error' in opened && opened.error.code, 'timeout');
});

test('checks that hang take few places of their owner and none of others, and end when the client has gone', {
  timeout: 60_000,
}, async () => {
  const talker = await startTalker();
  const script = await startImapScript();
  const [one, other] = [await service.makeUser(), await service.makeUser()];
  const slow = await makeAccount(one, talker.port);
  const quick = await makeAccount(one, script.port);
  const foreign = await makeAccount(other, script.port);
  const credentials = { serverToken: '5a31b7fe-0000-4000-8000-000000000000' };
  const provider = await service.call('POST', '/providers', {
    as: one,
    body: { kind: 'postmark', credentials },
  });
  const leaving = new AbortController();
  const headers = { authorization: `Bearer ${one.apiKey}` };
  const hanging = Array.from({ length: 3 }, () =>
    fetch(`${service.url}/smtp-accounts/${slow}/verify`, { method: 'POST', headers, signal: leaving.signal }),
  );
  await waitFor('the checks', () => talker.sockets.size >= 3);
  for (const path of [`/smtp-accounts/${quick}`, `/providers/${provider.body.id}`]) {
    const refused = await service.call('POST', `${path}/verify`, { as: one });
    assertProblem(refused, 429, 'too_many_verifications');
    assert.match(refused.headers.get('retry-after') ?? '', /^\d+$/);
  }
  const { body } = await service.call('POST', `/smtp-accounts/${foreign}/verify`, { as: other });
  assert.equal(body.receive.state, 'ok');
  leaving.abort();
  await Promise.allSettled(hanging);
  await waitFor('the end of the checks', () => talker.sockets.size === 0);
  const after = await waitFor('a place', async () => {
    const tried = await service.call('POST', `/smtp-accounts/${quick}/verify`, { as: one });
    return tried.status === 200 ? tried : null;
  });
  assert.equal(after.body.receive.state, 'ok');
  const state = await service.call('GET', `/smtp-accounts/${slow}`, { as: one });
  assert.equal(state.body.receive.state, 'unknown', 'a check that was ended says nothing about the account');
});

/** As a check of a server that never answers: ends only with its signal. */
const hang = (signal: AbortSignal) => once(signal, 'abort').then(() => {});
const staying = new AbortController().signal;

test('servers that never answer have all places: the next owner gets one when the time of a check is over', async () => {
  const verifications = new Verifications({ inAll: 4, perOwner: 2, withinMs: 200 });
  const strangers = ['a', 'a', 'b', 'b'].map((owner) => verifications.run(owner, staying, hang));
  let isChecked = false;
  await verifications.run('c', staying, async () => {
    isChecked = true;
  });
  assert.ok(isChecked);
  await Promise.all(strangers);
});

test('the wait for a place has an end too', async () => {
  const verifications = new Verifications({ inAll: 1, perOwner: 1, withinMs: 100 });
  const never = new Promise<void>(() => {});
  void verifications.run('a', staying, () => never);
  const waiting = verifications.run('b', staying, async () => {});
  await assert.rejects(waiting, (error) => error instanceof Problem && error.code === 'verifications_busy');
});

function makeCheck(ref: { ownerId: string; accountId: string }) {
  const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: null });
  const tokens = new AccessTokens({ egress, allowHttp: true });
  const logins = { sql: service.sql, sealer, tokens };
  const accounts = new AccountServers({
    ...{ ...logins, egress, log: makeLog({ level: 'silent', json: true }) },
    ...{ heloName: 'mx.example', production: false },
  });
  return (signal: AbortSignal) =>
    verifyAccount(
      { ...logins, accounts, imap: { egress, threads: makeImapThreads(), production: false } },
      ref,
      signal,
    );
}

test('a check whose time is over is a timeout of both sides', { timeout: 60_000 }, async () => {
  const [talker, silent] = [await startTalker(), await startTalker('')];
  const user = await service.makeUser();
  const id = await makeAccount(user, talker.port, silent.port);
  const check = makeCheck({ ownerId: user.userId, accountId: id });
  await new Verifications({ withinMs: 500 }).run(user.userId, staying, check);
  const { body } = await service.call('GET', `/smtp-accounts/${id}`, { as: user });
  assert.equal(body.send.error?.code, 'timeout', JSON.stringify(body.send));
  assert.equal(body.receive.error?.code, 'timeout', JSON.stringify(body.receive));
  await waitFor('the end of the connections', () => talker.sockets.size + silent.sockets.size === 0);
});

test('a server that ignores the logout: the place is free when the time is over, and the login counts', {
  timeout: 60_000,
}, async () => {
  const script = await startImapScript({ ignoresLogout: true });
  const user = await service.makeUser();
  const id = await makeAccount(user, script.port);
  const check = makeCheck({ ownerId: user.userId, accountId: id });
  await new Verifications({ withinMs: 3000 }).run(user.userId, staying, check);
  assert.ok(script.commands.includes('LOGOUT'));
  const { body } = await service.call('GET', `/smtp-accounts/${id}`, { as: user });
  assert.equal(body.receive.state, 'ok');
});

test('what is deleted while its check waits for a place is no failure of the service', async () => {
  const user = await service.makeUser();
  const id = await makeAccount(user, sink.port);
  await service.call('DELETE', `/smtp-accounts/${id}`, { as: user });
  const ref = { ownerId: user.userId, accountId: id };
  await makeCheck(ref)(staying);
});

import assert from 'node:assert/strict';
import { once } from 'node:events';
import net, { type AddressInfo } from 'node:net';
import { after, beforeEach, describe, test } from 'node:test';
import tls from 'node:tls';
import { makeEgress } from '../src/net/egress.ts';
import { type PostErrorCode, Poster, type PostOutcome } from '../src/webhooks/post.ts';
import { startDeafServer } from './deaf-server.ts';
import { startDns } from './dns.ts';
import { waitFor } from './harness.ts';
import {
  answer,
  type Certificate,
  hang,
  hangUp,
  type Receiver,
  readAuthority,
  readCertificate,
  reset,
  startReceiver,
} from './receiver.ts';

const dns = await startDns();
after(() => dns.close());
beforeEach(() => dns.reset());
const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: [dns.address] });
const headers = { 'content-type': 'application/json' };
const body = Buffer.from('{}');

function startPoster(options: Partial<ConstructorParameters<typeof Poster>[0]> = {}) {
  const poster = new Poster({ egress, ca: readAuthority(), ...options });
  after(() => poster.close());
  return (url: string) => poster.post({ url, headers, body });
}

async function startHooks(options: Parameters<typeof startReceiver>[0] = {}): Promise<Receiver> {
  const receiver = await startReceiver(options);
  after(() => receiver.close());
  return receiver;
}

/** A port where nothing listens. */
async function findClosedPort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

function assertFailure(outcome: PostOutcome, error: PostErrorCode, detail: RegExp): void {
  assert.ok(outcome.kind === 'failure', JSON.stringify(outcome));
  assert.equal(outcome.error, error, JSON.stringify(outcome));
  assert.match(outcome.detail, detail);
}

function assertDelivered(outcome: PostOutcome): void {
  assert.ok(outcome.kind === 'response' && outcome.status === 204, JSON.stringify(outcome));
}

describe('whom it connects to', () => {
  test('a name that resolves to what is allowed', async () => {
    const [post, hooks] = [startPoster(), await startHooks()];
    dns.answer('hooks.example', { A: ['127.0.0.1'] });
    assertDelivered(await post(`http://hooks.example:${hooks.port}/`));
    assert.equal(hooks.requests[0]?.headers.host, `hooks.example:${hooks.port}`);
  });

  test('what egress refuses is not connected to', async () => {
    const hooks = await startHooks();
    const post = startPoster({ egress: makeEgress({ allowTargets: [], dnsServers: [dns.address] }) });
    dns.answer('inside.example', { A: ['8.8.8.8', '127.0.0.1'] });
    for (const host of ['127.0.0.1', '2130706433', 'localhost', 'inside.example', '[::ffff:127.0.0.1]']) {
      assertFailure(await post(`http://${host}:${hooks.port}/`), 'target_refused', /Use a public address/);
    }
    assert.equal(hooks.requests.length, 0);
    assert.equal(hooks.openConnections(), 0);
  });

  test('the address that was checked, whatever DNS answers next', async () => {
    const [checked, rebound] = [await startHooks(), await startHooks({ host: '127.0.0.2' })];
    const post = startPoster();
    // The first question gets the address to check; any later one would lead elsewhere.
    dns.answerType('hooks.example', 'A', { A: ['127.0.0.1'] }, { A: ['127.0.0.2'] });
    dns.answerType('hooks.example', 'AAAA', {});
    assertDelivered(await post(`http://hooks.example:${checked.port}/`));
    assert.equal(dns.count('hooks.example', 'A'), 1);
    assert.equal(checked.requests.length, 1);
    assert.equal(rebound.requests.length, 0);
  });

  test('each new connection is checked anew: public first, private then, is refused', async () => {
    const hooks = await startHooks();
    const post = startPoster();
    hooks.behave(answer(204, { connection: 'close' }));
    dns.answer('hooks.example', { A: ['127.0.0.1'] });
    assertDelivered(await post(`http://hooks.example:${hooks.port}/`));
    dns.answer('hooks.example', { A: ['10.0.0.5'] });
    assertFailure(await post(`http://hooks.example:${hooks.port}/`), 'target_refused', /not public/);
    assert.equal(hooks.requests.length, 1);
  });

  test('the next address when one does not take the connection', async () => {
    const hooks = await startHooks({ host: '127.0.0.3' });
    dns.answer('hooks.example', { A: ['127.0.0.1', '127.0.0.2', '127.0.0.3'] });
    assertDelivered(await startPoster()(`http://hooks.example:${hooks.port}/`));
  });

  test('no address takes it: connect_failed, all of them named', async () => {
    const port = await findClosedPort();
    dns.answer('hooks.example', { A: ['127.0.0.1', '127.0.0.2'] });
    const outcome = await startPoster()(`http://hooks.example:${port}/`);
    assertFailure(
      outcome,
      'connect_failed',
      /ECONNREFUSED 127\.0\.0\.1.*ECONNREFUSED 127\.0\.0\.2|127\.0\.0\.2.*127\.0\.0\.1/,
    );
  });

  test('nobody takes the connection: connect_timeout', async () => {
    const port = await startDeafServer();
    assertFailure(
      await startPoster({ timeoutMs: 2000 })(`http://127.0.0.1:${port}/`),
      'connect_timeout',
      /in time/,
    );
  });

  test('DNS says no: dns_failed', async () => {
    assertFailure(
      await startPoster()('https://missing.example/'),
      'dns_failed',
      /missing\.example does not exist/,
    );
  });
});

describe('TLS', () => {
  test('a good certificate for the name, for localhost and for the address', async () => {
    const hooks = await startHooks({ tls: readCertificate('good') });
    dns.answer('hooks.example', { A: ['127.0.0.1'] });
    const post = startPoster();
    for (const host of ['hooks.example', 'hooks.example.', 'localhost', '127.0.0.1']) {
      assertDelivered(await post(`https://${host}:${hooks.port}/`));
    }
  });

  test('names are sent as SNI, addresses are not', async () => {
    const names: (string | false)[] = [];
    const server = tls.createServer(readCertificate('good'), (socket) => {
      names.push((socket as tls.TLSSocket & { servername: string | false }).servername);
      socket.on('error', () => {}).end('HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n');
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    after(() => server.close());
    const { port } = server.address() as AddressInfo;
    dns.answer('hooks.example', { A: ['127.0.0.1'] });
    const post = startPoster();
    assertDelivered(await post(`https://hooks.example:${port}/`));
    assertDelivered(await post(`https://127.0.0.1:${port}/`));
    assert.deepEqual(names, ['hooks.example', false]);
  });

  const bad: [Certificate, string, RegExp][] = [
    ['self-signed', 'hooks.example', /self-signed certificate/],
    ['expired', 'hooks.example', /expired/],
    ['other-name', 'hooks.example', /hooks\.example\. is not in the cert's altnames: DNS:other\.example/],
    ['other-name', '127.0.0.1', /127\.0\.0\.1 is not in the cert's list/],
    ['good', 'another.example', /another\.example\. is not in/],
  ];
  for (const [certificate, host, reason] of bad) {
    test(`a certificate that is ${certificate}, for ${host}: tls_failed`, async () => {
      const hooks = await startHooks({ tls: readCertificate(certificate) });
      dns.answer(host, { A: ['127.0.0.1'] });
      assertFailure(await startPoster()(`https://${host}:${hooks.port}/`), 'tls_failed', reason);
      assert.equal(hooks.requests.length, 0);
    });
  }

  test('an authority that nobody knows: tls_failed', async () => {
    const hooks = await startHooks({ tls: readCertificate('good') });
    const poster = new Poster({ egress });
    after(() => poster.close());
    const outcome = await poster.post({ url: `https://localhost:${hooks.port}/`, headers, body });
    assertFailure(outcome, 'tls_failed', /unable to verify|unable to get (local )?issuer/);
  });

  test('http where https was expected: tls_failed', async () => {
    const hooks = await startHooks();
    assertFailure(
      await startPoster()(`https://127.0.0.1:${hooks.port}/`),
      'tls_failed',
      /wrong version number/,
    );
  });

  test('https where http was expected: no answer that is HTTP, or none', async () => {
    const hooks = await startHooks({ tls: readCertificate('good') });
    const outcome = await startPoster()(`http://127.0.0.1:${hooks.port}/`);
    assert.ok(outcome.kind === 'failure');
    assert.match(outcome.error, /^(invalid_response|connection_lost)$/);
  });

  test('a connection closed in the handshake: tls_failed', async () => {
    const server = net.createServer((socket) =>
      socket.on('error', () => {}).once('data', () => socket.end()),
    );
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    after(() => server.close());
    const { port } = server.address() as AddressInfo;
    assertFailure(await startPoster()(`https://127.0.0.1:${port}/`), 'tls_failed', /disconnected|closed/);
  });

  test('a handshake that does not end: tls_timeout', async () => {
    const sockets: net.Socket[] = [];
    const server = net.createServer((socket) => sockets.push(socket.on('error', () => {}).resume()));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    after(() => server.close());
    const { port } = server.address() as AddressInfo;
    assertFailure(
      await startPoster({ timeoutMs: 2000 })(`https://127.0.0.1:${port}/`),
      'tls_timeout',
      /handshake/,
    );
    await waitFor('our side to hang up', () =>
      sockets.every((socket) => socket.readableEnded || socket.destroyed),
    );
  });
});

describe('kept connections', () => {
  test('are used again', async () => {
    const [post, hooks] = [startPoster(), await startHooks()];
    for (let turn = 0; turn < 20; turn++) assertDelivered(await post(hooks.url()));
    assert.equal(Math.max(...hooks.requests.map(({ connection }) => connection)), 1);
  });

  test('are as many as POSTs at once, and used again', async () => {
    const [post, hooks] = [startPoster(), await startHooks()];
    for (let turn = 0; turn < 5; turn++) {
      for (const outcome of await Promise.all(Array.from({ length: 40 }, () => post(hooks.url()))))
        assertDelivered(outcome);
    }
    assert.equal(hooks.requests.length, 200);
    assert.equal(Math.max(...hooks.requests.map(({ connection }) => connection)), 40);
  });

  test('one POST that hangs does not hold up the others', async () => {
    const [post, hooks] = [startPoster(), await startHooks()];
    hooks.behaveAt('/hang', hang());
    const hanging = Array.from({ length: 30 }, () => post(hooks.url('/hang')));
    await hooks.received(30);
    assertDelivered(await post(hooks.url('/')));
    hooks.dropConnections();
    for (const outcome of await Promise.all(hanging)) assertFailure(outcome, 'connection_lost', /./);
  });

  test('only so many are kept without work', async () => {
    const [post, hooks] = [startPoster({ maxIdleConnections: 3 }), await startHooks()];
    await Promise.all(Array.from({ length: 10 }, () => post(hooks.url())));
    await waitFor('the surplus to be closed', () => hooks.openConnections() === 3);
    assertDelivered(await post(hooks.url()));
    assert.equal(hooks.openConnections(), 3);
  });

  test('belong to one origin', async () => {
    const [post, one, other] = [startPoster(), await startHooks(), await startHooks()];
    for (const hooks of [one, other, one, other]) assertDelivered(await post(hooks.url()));
    assert.equal(one.requests.length, 2);
    assert.equal(other.requests.length, 2);
  });

  for (const [how, behaviour] of [
    ['closed', hangUp()],
    ['reset', reset()],
  ] as const) {
    test(`one that is ${how} just as we send: once more on a new one`, async () => {
      const [post, hooks] = [startPoster(), await startHooks()];
      assertDelivered(await post(hooks.url()));
      // As the stale one looks from our side: the request is out, no byte came back.
      hooks.behave((request, response, socket) =>
        request.connection === 1
          ? behaviour(request, response, socket)
          : answer(204)(request, response, socket),
      );
      assertDelivered(await post(hooks.url()));
      assert.deepEqual(
        hooks.requests.map(({ connection }) => connection),
        [1, 1, 2],
      );
    });
  }

  test('one that is closed as we send, and the new one too: connection_lost, and no third', async () => {
    const [post, hooks] = [startPoster(), await startHooks()];
    assertDelivered(await post(hooks.url()));
    hooks.behave(hangUp());
    assertFailure(await post(hooks.url()), 'connection_lost', /closed/);
    assert.equal(hooks.requests.length, 3);
  });

  test('a new connection that is closed is not tried again', async () => {
    const [post, hooks] = [startPoster(), await startHooks()];
    hooks.behave(hangUp());
    assertFailure(await post(hooks.url()), 'connection_lost', /closed/);
    assert.equal(hooks.requests.length, 1);
  });

  test('closed while idle, by a restart: the next POST goes over a new one', async () => {
    const [post, hooks] = [startPoster(), await startHooks()];
    for (let turn = 0; turn < 5; turn++) {
      assertDelivered(await post(hooks.url()));
      hooks.dropConnections();
    }
    assertDelivered(await post(hooks.url()));
  });
});

describe('closing', () => {
  test('ends idle connections, fails what is under way, refuses what comes', async () => {
    const hooks = await startHooks();
    const poster = new Poster({ egress });
    const post = (path: string) => poster.post({ url: hooks.url(path), headers, body });
    await Promise.all([post('/'), post('/'), post('/')]);
    hooks.behaveAt('/hang', hang());
    const hanging = post('/hang');
    await hooks.received(4);
    await poster.close();
    assertFailure(await hanging, 'connection_lost', /shutting down/);
    assertFailure(await post('/'), 'connection_lost', /shutting down/);
    await waitFor('all connections to be gone', () => hooks.openConnections() === 0);
    assert.equal(hooks.requests.length, 4);
  });
});

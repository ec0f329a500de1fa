import assert from 'node:assert/strict';
import { after, beforeEach, describe, test } from 'node:test';
import { makeDnsClient } from '../src/net/dns.ts';
import { makeEgress } from '../src/net/egress.ts';
import { makeMtaSts } from '../src/net/mta-sts.ts';
import { findMailHosts } from '../src/net/mx.ts';
import { resolveOperatorHost } from '../src/net/operator-host.ts';
import { makeSelfSigned } from '../src/net/self-signed.ts';
import { Connections } from '../src/sending/connections.ts';
import { DeadDestinations } from '../src/sending/dead-destinations.ts';
import { findDirectServers } from '../src/sending/direct.ts';
import type { OutgoingMail } from '../src/sending/outgoing-mail.ts';
import { makeTlsContexts, type Server, standardTimeouts } from '../src/sending/transmit.ts';
import { makeWay } from '../src/sending/way.ts';
import { startDns } from './dns.ts';
import { waitFor } from './harness.ts';
import { answer, startReceiver } from './receiver.ts';
import { hang, hangUp, type Step, startSink } from './smtp-sink.ts';

const dnsServer = await startDns();
after(() => dnsServer.close());
beforeEach(() => {
  dnsServer.reset();
  for (const name of ['mx', 'mx1', 'mx2']) dnsServer.answer(`${name}.dest.example`, { A: ['127.0.0.1'] });
});
const dnsServers = [dnsServer.address];
const dns = makeDnsClient({ dnsServers });
const loopback = makeEgress({ allowTargets: ['127.0.0.0/8', '::1'], dnsServers });
const own = makeSelfSigned('mx.dest.example', new Date());
const contexts = makeTlsContexts(own.cert);
const never = new AbortController().signal;
const message = Buffer.from('From: ada@example.com\r\n\r\nHello\r\n');

function makeMail(rcptTo = 'bob@dest.example', ownerId = 'a'): OutgoingMail {
  const size = {
    content: [message],
    size: message.length,
    eightBit: false,
    smtpUtf8: false,
    mayEnd: () => true,
  };
  return { messageId: 'm', ownerId, mailFrom: 'bounces@us.example', rcptTo, signature: '', ...size };
}

function start(
  options: ConstructorParameters<typeof Connections>[1] = {},
  egress = loopback,
  timeouts = standardTimeouts,
) {
  const resolve = (host: string) => egress.resolve(host);
  const connections = new Connections(
    { resolve, heloName: 'us.example', contexts, timeouts, dead: new DeadDestinations() },
    // Only the tests of idleness let it pass.
    { idleMs: 600_000, ...options },
  );
  after(() => connections.close());
  return connections;
}

function at(port: number, host = 'mx.dest.example', change: Partial<Server> = {}): Server {
  return { host, port, isImplicitTls: false, security: 'opportunistic', login: null, ...change };
}

describe('reuse', () => {
  test('messages to one host share a connection', async () => {
    const [sink, connections] = [await startSink(), start()];
    for (let n = 0; n < 5; n++) {
      const reply = await connections.send([at(sink.port)], makeMail(`user${n}@dest${n}.example`), never);
      assert.equal(reply.kind, 'accepted');
    }
    assert.deepEqual(
      sink.mails.map(({ connection, rcpt }) => [connection, rcpt]),
      [0, 1, 2, 3, 4].map((n) => [1, `RCPT TO:<user${n}@dest${n}.example>`]),
    );
  });

  test('an idle connection is closed with QUIT', async () => {
    const [sink, connections] = [await startSink(), start({ idleMs: 50 })];
    await connections.send([at(sink.port)], makeMail(), never);
    await sink.got(/^QUIT$/);
    await waitFor('the end of the connection', () => sink.openConnections() === 0);
  });

  test('a connection carries at most so many messages', async () => {
    const [sink, connections] = [await startSink(), start({ maxMails: 2 })];
    for (let n = 0; n < 5; n++) await connections.send([at(sink.port)], makeMail(), never);
    assert.deepEqual(
      sink.mails.map(({ connection }) => connection),
      [1, 1, 2, 2, 3],
    );
    await sink.got(/^QUIT$/, 2);
  });

  test('close ends idle connections, and the others after their message', async () => {
    const [sink, connections] = [await startSink(), start()];
    await connections.send([at(sink.port)], makeMail(), never);
    sink.behave('.', ({ say }) => {
      connections.close();
      say('250 Ok');
    });
    assert.equal((await connections.send([at(sink.port)], makeMail(), never)).kind, 'accepted');
    await sink.got(/^QUIT$/);
    assert.equal(sink.connections(), 1);
  });

  test('hosts, ports and users do not share', async () => {
    const extensions = ['AUTH PLAIN'];
    const [one, other] = [await startSink({ extensions }), await startSink()];
    const connections = start();
    const login = { user: 'ada', password: 'x' };
    await connections.send([at(one.port)], makeMail(), never);
    await connections.send([at(one.port, 'mx1.dest.example')], makeMail(), never);
    await connections.send([at(one.port, 'mx.dest.example', { login })], makeMail(), never);
    await connections.send([at(other.port)], makeMail(), never);
    assert.deepEqual([one.connections(), other.connections()], [3, 1]);
  });

  test('verified mail does not go over a connection that was not verified; the other way round it does', async () => {
    const [sink, connections] = [await startSink({ tls: own }), start()];
    const verified = at(sink.port, 'mx.dest.example', { security: 'verified' });
    await connections.send([at(sink.port)], makeMail(), never);
    await connections.send([verified], makeMail(), never);
    assert.equal(sink.connections(), 2);
    await connections.send([verified], makeMail(), never);
    await connections.send([at(sink.port)], makeMail(), never);
    await connections.send([at(sink.port)], makeMail(), never);
    assert.equal(sink.connections(), 2);
    assert.deepEqual(
      sink.mails.map(({ connection }) => connection),
      [1, 2, 2, 2, 2],
    );
  });
});

describe('connections that end', () => {
  for (const [title, ending] of [
    ['is closed while idle', hangUp],
    ['is answered with 421 and closed', '421 4.4.2 Idle for too long'],
  ] as const) {
    test(`a reused connection that ${title}: the message goes over a new one, once`, async () => {
      const [sink, connections] = [await startSink({ extensions: [] }), start()];
      sink.behave('MAIL', '250 Ok', ending, '250 Ok');
      await connections.send([at(sink.port)], makeMail(), never);
      const reply = await connections.send([at(sink.port)], makeMail(), never);
      assert.equal(reply.kind, 'accepted', JSON.stringify(reply));
      assert.deepEqual(
        sink.mails.map(({ connection }) => connection),
        [1, 2],
      );
    });
  }

  test('421 while idle: the connection is not used again', async () => {
    const [sink, connections] = [await startSink(), start()];
    sink.behave('.', ({ say, socket }) => {
      say('250 Ok');
      say('421 4.3.2 Going down');
      socket.end();
    });
    await connections.send([at(sink.port)], makeMail(), never);
    await waitFor('the end of the connection', () => sink.openConnections() === 0);
    const reply = await connections.send([at(sink.port)], makeMail(), never);
    assert.equal(reply.kind, 'accepted');
    assert.equal(sink.mails.length, 2);
  });

  test('a new connection that is refused at MAIL is not tried again', async () => {
    const [sink, connections] = [await startSink(), start()];
    sink.behave('MAIL', '421 4.7.0 Too many');
    const reply = await connections.send([at(sink.port)], makeMail(), never);
    assert.equal(reply.response?.code, 421);
    assert.equal(sink.connections(), 1);
  });

  test('a connection that dies after the final dot: no second copy at once', async () => {
    const [sink, connections] = [await startSink(), start()];
    await connections.send([at(sink.port)], makeMail(), never);
    sink.behave('.', hangUp);
    const reply = await connections.send([at(sink.port)], makeMail(), never);
    assert.deepEqual([reply.error, reply.uncertain], ['connection_lost', true]);
    assert.equal(sink.mails.length, 2);
  });
});

describe('limits', () => {
  test('at most so many connections of an owner to a host; the rest waits and goes over the same ones', async () => {
    const [sink, connections] = [await startSink({ extensions: [] }), start({ maxPerOwner: 3 })];
    const held: (() => void)[] = [];
    sink.behave('MAIL', ({ say }) => held.push(() => say('250 Ok')));
    const sent = Array.from({ length: 8 }, () => connections.send([at(sink.port)], makeMail(), never));
    await sink.got(/^MAIL/, 3);
    assert.equal(sink.connections(), 3);
    for (let n = 1; n <= 8; n++) {
      await sink.got(/^MAIL/, n);
      held[n - 1]?.();
    }
    const replies = await Promise.all(sent);
    assert.ok(replies.every(({ kind }) => kind === 'accepted'));
    assert.equal(sink.connections(), 3);
  });

  test('idle connections of another kind make room', async () => {
    const [sink, connections] = [await startSink({ tls: own, extensions: [] }), start({ maxPerOwner: 1 })];
    const held: (() => void)[] = [];
    sink.behave('MAIL', ({ say }) => held.push(() => say('250 Ok')));
    const sent = ['a', 'b'].map((owner) =>
      connections.send([at(sink.port)], makeMail('bob@dest.example', owner), never),
    );
    await sink.got(/^MAIL/, 2);
    for (const reply of held) reply();
    await Promise.all(sent);
    sink.behave('MAIL', '250 Ok');
    const verified = at(sink.port, 'mx.dest.example', { security: 'verified' });
    await connections.send([verified], makeMail(), never);
    await sink.got(/^QUIT$/);
    await waitFor('one connection less', () => sink.openConnections() === 2);
  });

  test('an owner whose mail is taken slowly leaves connections to others, and these leave some too', async () => {
    const [sink, connections] = [await startSink({ extensions: [] }), start()];
    sink.behave('.', hang);
    const sendTen = (ownerId: string) =>
      Array.from({ length: 10 }, () =>
        connections.send([at(sink.port)], makeMail('x@a.example', ownerId), never),
      );
    for (const [ownerId, inAll] of [
      ['a', 10],
      ['b', 15],
      ['c', 18],
      ['d', 19],
      ['e', 20],
    ] as const) {
      sendTen(ownerId);
      await sink.got(/^DATA/, inAll);
    }
    assert.equal(sink.connections(), 20);
  });

  test('owners take turns at a connection that becomes free', async () => {
    const [sink, connections] = [await startSink({ extensions: [] }), start({ maxPerOwner: 1 })];
    const held: (() => void)[] = [];
    sink.behave('MAIL', ({ say }) => held.push(() => say('250 Ok')));
    const owners = ['a', 'b', 'b', 'b', 'c'];
    const sent = owners.map((owner) =>
      connections.send([at(sink.port)], makeMail(`${owner}@dest.example`, owner), never),
    );
    for (let n = 1; n <= owners.length; n++) {
      await sink.got(/^MAIL/, n);
      // The connection of `a` is never free.
      if (n > 1) held[n - 1]?.();
    }
    held[0]?.();
    await Promise.all(sent);
    const order = sink.mails.map(({ rcpt }) => rcpt);
    assert.deepEqual(order.slice(0, 2), ['RCPT TO:<b@dest.example>', 'RCPT TO:<c@dest.example>']);
  });

  test('the signal ends the wait for a place', async () => {
    const [sink, connections] = [await startSink({ extensions: [] }), start({ maxPerOwner: 1 })];
    const stop = new AbortController();
    sink.behave('MAIL', () => {});
    const sent = [1, 2, 3].map(() => connections.send([at(sink.port)], makeMail(), stop.signal));
    await sink.got(/^MAIL/);
    stop.abort();
    const replies = await Promise.all(sent);
    assert.deepEqual(
      replies.map(({ error }) => error),
      ['stopped', 'stopped', 'stopped'],
    );
    assert.equal(sink.connections(), 1);
  });
});

describe('a dead address', () => {
  /** Each domain has a mail server with a name of its own. */
  function sendTo(connections: Connections, port: number, n: number, change: Partial<Server> = {}) {
    dnsServer.answer(`mx.dest${n}.example`, { A: ['127.0.0.1'] });
    return connections.send([at(port, `mx.dest${n}.example`, change)], makeMail(`a@dest${n}.example`), never);
  }

  test('is not called again for other names, whose mail is put off at once', async () => {
    const [sink, connections] = [await startSink(), start()];
    sink.behave('connect', hangUp);
    for (let n = 0; n < 5; n++) await sendTo(connections, sink.port, n);
    assert.equal(sink.connections(), 5);
    const reply = await sendTo(connections, sink.port, 5);
    assert.deepEqual([reply.error, reply.host], ['connection_lost', 'mx.dest5.example']);
    assert.match(reply.detail ?? '', /^Not tried, because the last connections failed: /);
    assert.equal(sink.connections(), 5);
  });

  for (const step of ['connect', 'EHLO'] satisfies Step[]) {
    test(`is also one that takes the connection and hangs at ${step}`, async () => {
      const timeouts = { ...standardTimeouts, greetingMs: 200, commandMs: 200 };
      const [sink, connections] = [await startSink(), start({}, loopback, timeouts)];
      sink.behave(step, hang);
      for (let n = 0; n < 6; n++) {
        const reply = await sendTo(connections, sink.port, n);
        assert.equal(reply.error, 'reply_timeout');
      }
      assert.equal(sink.connections(), 5);
    });
  }

  test('is not one that hangs after TLS: which server answers may depend on the name that TLS gives', async () => {
    const timeouts = { ...standardTimeouts, commandMs: 500 };
    const [sink, connections] = [await startSink({ tls: own }), start({}, loopback, timeouts)];
    for (let n = 0; n < 6; n++) {
      sink.behave('EHLO', '250-sink.example\r\n250 STARTTLS', hang);
      const reply = await sendTo(connections, sink.port, n);
      assert.deepEqual([reply.phase, reply.error], ['ehlo', 'reply_timeout']);
    }
    assert.equal(sink.connections(), 6);
  });

  test('does not count for a host that has another address too', async () => {
    const dead = await startSink();
    const alive = await startSink({ host: '127.0.0.2', port: dead.port });
    const connections = start();
    dead.behave('connect', hangUp);
    for (let n = 0; n < 6; n++) await sendTo(connections, dead.port, n);
    await dead.close();
    dnsServer.answer('mx.dest.example', { A: ['127.0.0.1', '127.0.0.2'] });
    const reply = await connections.send([at(dead.port)], makeMail(), never);
    assert.equal(reply.kind, 'accepted', JSON.stringify(reply));
    assert.equal(alive.mails.length, 1);
  });

  test('is not one whose certificate is for another name: anybody can point a name there', async () => {
    const [sink, connections] = [await startSink({ tls: own }), start()];
    for (let n = 0; n < 6; n++) {
      const reply = await sendTo(connections, sink.port, n, { security: 'verified' });
      assert.deepEqual([reply.phase, reply.error], ['tls', 'tls_failed']);
    }
    assert.equal((await connections.send([at(sink.port)], makeMail(), never)).kind, 'accepted');
  });
});

test('mail that waits for a connection to a relay that hangs is put off when the first connections have failed', async () => {
  const sink = await startSink();
  sink.behave('EHLO', hang);
  const mtaSts = makeMtaSts({ dns, egress: loopback, now: () => new Date() });
  const relay = makeWay({
    ...{
      outbound: 'relay',
      relay: at(sink.port, '127.0.0.1'),
      heloName: 'us.example',
      mxPort: 25,
      dns,
      mtaSts,
    },
    ...{ egress: loopback, timeouts: { ...standardTimeouts, commandMs: 200 } },
  });
  const replies = await Promise.all(Array.from({ length: 20 }, () => relay.send(makeMail(), never)));
  assert.ok(replies.every((reply) => 'error' in reply && reply.error === 'reply_timeout'));
  // Ten at once, and one more for each of the first four failures.
  assert.ok(sink.connections() <= 14, `${sink.connections()} connections`);
});

describe('several hosts', () => {
  /** Of an MX look-up, all on one port: by 127.0.0.1, 127.0.0.2 and ::1. */
  async function send(domain: string, port: number, connections: Connections) {
    const found = await findMailHosts(domain, { dns, random: () => 0, signal: never });
    assert.ok(found.kind === 'hosts', JSON.stringify(found));
    const [first = '', ...others] = found.hosts;
    return connections.send([at(port, first), ...others.map((host) => at(port, host))], makeMail(), never);
  }

  beforeEach(() => {
    dnsServer.answer('dest.example', { MX: ['10 mx1.dest.example', '20 mx2.dest.example'] });
    dnsServer.answer('mx1.dest.example', { A: ['127.0.0.1'] });
    dnsServer.answer('mx2.dest.example', { A: ['127.0.0.2'] });
  });

  test('the first takes it', async () => {
    const first = await startSink();
    const second = await startSink({ host: '127.0.0.2', port: first.port });
    const reply = await send('dest.example', first.port, start());
    assert.deepEqual([reply.host, reply.address], ['mx1.dest.example', '127.0.0.1']);
    assert.equal(second.connections(), 0);
  });

  test('nothing listens at the first', async () => {
    const second = await startSink({ host: '127.0.0.2' });
    const reply = await send('dest.example', second.port, start());
    assert.deepEqual([reply.kind, reply.host], ['accepted', 'mx2.dest.example']);
  });

  for (const [step, reply] of [
    ['connect', '554 5.7.1 Not you'],
    ['connect', '421 4.3.2 Busy'],
    ['EHLO', '450 4.3.2 Not now'],
    ['EHLO', hangUp],
  ] as const) {
    test(`the first says ${reply === hangUp ? 'nothing' : reply} at ${step}`, async () => {
      const first = await startSink();
      const second = await startSink({ host: '127.0.0.2', port: first.port });
      first.behave(step, reply);
      assert.equal((await send('dest.example', first.port, start())).host, 'mx2.dest.example');
      assert.equal(second.mails.length, 1);
    });
  }

  test('a refusal of the recipient counts: the next host is not asked', async () => {
    const first = await startSink();
    const second = await startSink({ host: '127.0.0.2', port: first.port });
    first.behave('RCPT', '550 5.1.1 No such user');
    assert.equal((await send('dest.example', first.port, start())).response?.code, 550);
    assert.equal(second.connections(), 0);
  });

  test('no further host is tried after a time', async () => {
    const second = await startSink({ host: '127.0.0.2' });
    const reply = await send('dest.example', second.port, start({ maxOpeningMs: 0 }));
    assert.deepEqual([reply.error, reply.host], ['connect_failed', 'mx1.dest.example']);
    assert.equal(second.connections(), 0);
  });

  test('all are dead: the first failure is returned', async () => {
    const sink = await startSink();
    await sink.close();
    const reply = await send('dest.example', sink.port, start());
    assert.deepEqual([reply.error, reply.host], ['connect_failed', 'mx1.dest.example']);
  });

  test('in production a host at a private address is not called', async () => {
    const sink = await startSink();
    const strict = makeEgress({ allowTargets: [], dnsServers });
    const reply = await send('dest.example', sink.port, start({}, strict));
    assert.deepEqual([reply.error, reply.phase], ['target_refused', 'connect']);
    assert.match(reply.detail ?? '', /not public/);
    assert.equal(sink.connections(), 0);
  });

  test('a host that can never be reached does not hide a failure that may pass', async () => {
    dnsServer.answer('mx1.dest.example', 'NXDOMAIN');
    dnsServer.answer('mx2.dest.example', 'SERVFAIL');
    assert.equal((await send('dest.example', 25, start())).error, 'dns_failed');
    dnsServer.answer('mx1.dest.example', 'SERVFAIL');
    dnsServer.answer('mx2.dest.example', 'NXDOMAIN');
    assert.equal((await send('dest.example', 25, start())).error, 'dns_failed');
    dnsServer.answer('mx1.dest.example', 'NXDOMAIN');
    assert.equal((await send('dest.example', 25, start())).error, 'no_such_host');
  });

  test('IPv6 where IPv4 is dead, and without an MX record', async () => {
    const sink = await startSink({ host: '::1' });
    dnsServer.answer('six.example', { A: ['127.0.0.9'], AAAA: ['::1'] });
    const reply = await send('six.example', sink.port, start());
    assert.deepEqual([reply.kind, reply.host, reply.address], ['accepted', 'six.example', '::1']);
  });
});

describe('the direct way, with MTA-STS', () => {
  const policyHost = 'mta-sts.dest.example';
  const webCertificate = makeSelfSigned(policyHost, new Date());
  const other = makeSelfSigned('other.example', new Date());
  const ca = webCertificate.cert;

  /** Two hosts: mx.dest.example at 127.0.0.1, whose certificate is `first`, and mx2.dest.example at 127.0.0.2 without TLS. */
  async function sendDirect(mode: string, mx: string, first: { key: string; cert: string }) {
    const web = await startReceiver({ tls: webCertificate });
    after(() => web.close());
    const policy = `version: STSv1\nmode: ${mode}\nmx: ${mx}\nmax_age: 86400\n`;
    web.behave(answer(200, { 'content-type': 'text/plain' }, policy));
    dnsServer.answer(policyHost, { A: ['127.0.0.1'] });
    dnsServer.answer('_mta-sts.dest.example', { TXT: ['v=STSv1; id=1'] });
    dnsServer.answer('dest.example', { MX: ['10 mx.dest.example', '20 mx2.dest.example'] });
    dnsServer.answer('mx2.dest.example', { A: ['127.0.0.2'] });
    const sink = await startSink({ tls: first });
    const plain = await startSink({ host: '127.0.0.2', port: sink.port });
    const mtaSts = makeMtaSts({ dns, egress: loopback, now: () => new Date(), ca, port: web.port });
    const parts = { dns, mtaSts, random: () => 0, signal: never, port: sink.port };
    const found = await findDirectServers('dest.example', parts);
    const reply = found.kind === 'servers' ? await start().send(found.servers, makeMail(), never) : null;
    return { found, reply, taken: [...sink.mails, ...plain.mails] };
  }

  test('enforce, and a valid certificate: sent', async () => {
    const { reply, taken } = await sendDirect('enforce', '*.dest.example', own);
    assert.deepEqual([reply?.kind, reply?.host, taken.length], ['accepted', 'mx.dest.example', 1]);
    assert.equal(taken[0]?.isSecure, true);
  });

  test('enforce, and a certificate for another name: no host gets it, also none without TLS', async () => {
    const { reply, taken } = await sendDirect('enforce', '*.dest.example', other);
    assert.deepEqual([reply?.error, reply?.phase, reply?.host], ['tls_failed', 'tls', 'mx.dest.example']);
    assert.deepEqual(taken, []);
  });

  test('enforce, and a host that the policy does not name: it is not called', async () => {
    const { found, taken } = await sendDirect('enforce', 'mx2.dest.example', own);
    assert.deepEqual(found.kind === 'servers' && found.servers.map(({ host }) => host), ['mx2.dest.example']);
    assert.deepEqual(taken, []);
  });

  test('enforce, and no host of the policy: temporary', async () => {
    const { found, taken } = await sendDirect('enforce', 'mx.elsewhere.example', own);
    assert.equal(found.kind, 'temporary');
    assert.deepEqual(taken, []);
  });

  for (const mode of ['testing', 'none']) {
    test(`${mode}: sent with any certificate`, async () => {
      const { reply, taken } = await sendDirect(mode, 'mx.elsewhere.example', other);
      assert.deepEqual([reply?.kind, reply?.host, taken.length], ['accepted', 'mx.dest.example', 1]);
    });
  }

  test('the signal ends the wait for the policy, and nothing can be sent without it', async () => {
    const web = await startReceiver({ tls: webCertificate });
    after(() => web.close());
    const stop = new AbortController();
    web.behave(() => stop.abort());
    dnsServer.answer(policyHost, { A: ['127.0.0.1'] });
    dnsServer.answer('_mta-sts.dest.example', { TXT: ['v=STSv1; id=1'] });
    dnsServer.answer('dest.example', { MX: ['10 mx.dest.example'] });
    const fetchWithinMs = 600_000;
    const now = () => new Date();
    const mtaSts = makeMtaSts({ dns, egress: loopback, now, ca, port: web.port, fetchWithinMs });
    const parts = { dns, mtaSts, random: () => 0, signal: stop.signal, port: 25 };
    const found = await findDirectServers('dest.example', parts);
    // Not a failed try: on the last one of the schedule the mail would bounce because this process stops.
    assert.equal('code' in found && found.code, 'stopped');
  });

  test('a null MX stays permanent', async () => {
    dnsServer.answer('null.example', { MX: ['0 .'] });
    const mtaSts = makeMtaSts({ dns, egress: loopback, now: () => new Date() });
    const parts = { dns, mtaSts, random: () => 0, signal: never, port: 25 };
    const found = await findDirectServers('null.example', parts);
    assert.equal(found.kind, 'permanent');
  });
});

test('a host of the operator is resolved as the system does', async () => {
  const found = await resolveOperatorHost('localhost');
  assert.ok(
    found.ok && found.addresses.some(({ address }) => address === '127.0.0.1'),
    JSON.stringify(found),
  );
  const literal = await resolveOperatorHost('10.0.0.5');
  assert.deepEqual(literal, { ok: true, addresses: [{ address: '10.0.0.5', family: 4 }] });
  const missing = await resolveOperatorHost('no such name');
  assert.ok(!missing.ok && missing.code === 'dns_failed' && !missing.isAbsent);
});

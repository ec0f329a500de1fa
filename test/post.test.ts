import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { makeEgress } from '../src/net/egress.ts';
import { type PostErrorCode, Poster, type PostOutcome } from '../src/webhooks/post.ts';
import { startDns } from './dns.ts';
import { waitFor } from './harness.ts';
import {
  answer,
  type Behaviour,
  drip,
  dripHead,
  flood,
  floodHead,
  hang,
  hangUp,
  raw,
  reset,
  startReceiver,
} from './receiver.ts';

const dns = await startDns();
const receiver = await startReceiver();
const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: [dns.address] });
const poster = new Poster({ egress });
const hastyMs = 2000;
const hasty = new Poster({ egress, timeoutMs: hastyMs });
after(async () => {
  await poster.close();
  await hasty.close();
  await receiver.close();
  await dns.close();
});

const headers = { 'content-type': 'application/json', 'webhook-id': 'evt_1' };
const body = Buffer.from('{"event":"message.received","data":{}}');

function post(path: string, behaviour: Behaviour, by = poster): Promise<PostOutcome> {
  receiver.behaveAt(path, behaviour);
  return by.post({ url: receiver.url(path), headers, body });
}

function assertResponse(outcome: PostOutcome, status: number) {
  assert.equal(outcome.kind, 'response', JSON.stringify(outcome));
  assert.equal(outcome.status, status);
  return outcome as Extract<PostOutcome, { kind: 'response' }>;
}

function assertFailure(outcome: PostOutcome, error: PostErrorCode, detail = /./) {
  assert.ok(outcome.kind === 'failure', JSON.stringify(outcome));
  assert.equal(outcome.error, error, JSON.stringify(outcome));
  assert.match(outcome.detail, detail);
  return outcome;
}

describe('answers', () => {
  test('what was sent is what arrives', async () => {
    const url = `${receiver.url('/exactly')}?a=1&b=%20`;
    assertResponse(await poster.post({ url, headers, body }), 204);
    const [request] = await receiver.received(1, (one) => one.url === '/exactly?a=1&b=%20');
    assert.equal(request?.method, 'POST');
    assert.deepEqual(request?.body, body);
    assert.equal(request?.headers['content-type'], 'application/json');
    assert.equal(request?.headers['webhook-id'], 'evt_1');
    assert.equal(request?.headers['content-length'], String(body.length));
    assert.equal(request?.headers.host, `127.0.0.1:${receiver.port}`);
  });

  for (const status of [200, 201, 204, 299, 304, 400, 410, 429, 500, 503, 599]) {
    test(`${status} is an answer`, async () => {
      const outcome = assertResponse(await post(`/${status}`, answer(status)), status);
      assert.equal(outcome.body, '');
      assert.ok(Number.isInteger(outcome.durationMs) && outcome.durationMs >= 0);
    });
  }

  test('status, headers, Retry-After and body are told', async () => {
    const outcome = assertResponse(
      await post(
        '/told',
        answer(503, { 'Retry-After': '120', 'X-Who': 'me', 'Set-Cookie': ['a=1', 'b=2'] }, 'busy'),
      ),
      503,
    );
    assert.equal(outcome.headers['retry-after'], '120');
    assert.equal(outcome.headers['x-who'], 'me');
    assert.equal(outcome.headers['set-cookie'], 'a=1, b=2');
    assert.equal(outcome.body, 'busy');
  });

  for (const status of [301, 302, 303, 307, 308]) {
    test(`${status}: the redirect is not followed`, async () => {
      const elsewhere = receiver.url(`/elsewhere-${status}`);
      assertResponse(await post(`/redirect-${status}`, answer(status, { location: elsewhere })), status);
      assertResponse(await post(`/after-${status}`, answer(204)), 204);
      assert.equal(receiver.requests.filter(({ url }) => url === `/elsewhere-${status}`).length, 0);
    });
  }

  test('informational answers before it are passed over', async () => {
    const bytes = 'HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';
    const outcome = assertResponse(await post('/hints', raw(bytes, 'close')), 200);
    assert.equal(outcome.body, 'ok');
    assert.deepEqual(outcome.headers, { 'content-length': '2' });
  });

  test('a body in chunks, in pieces, and one that ends with the connection', async () => {
    const chunked = 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n';
    assert.equal(assertResponse(await post('/chunked', raw(chunked, 'close')), 200).body, 'abcdef');
    const closed = 'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nthe end';
    assert.equal(assertResponse(await post('/to-the-end', raw(closed, 'close')), 200).body, 'the end');
    const old = 'HTTP/1.0 200 OK\r\n\r\nold';
    assert.equal(assertResponse(await post('/old', raw(old, 'close')), 200).body, 'old');
  });

  test('bytes that are no UTF-8 are replaced, NULs left out', async () => {
    const bytes = Buffer.from([0x61, 0x00, 0xff, 0xc3, 0xa4, 0x00, 0x62]);
    assert.equal(assertResponse(await post('/bytes', answer(200, {}, bytes)), 200).body, 'a\ufffdäb');
  });

  test('of a body 16 KiB are kept', async () => {
    const exact = assertResponse(await post('/exact', answer(200, {}, 'x'.repeat(16_384))), 200);
    assert.equal(exact.body, 'x'.repeat(16_384));
    const more = assertResponse(await post('/more', answer(200, {}, `${'x'.repeat(16_384)}yz`)), 200);
    assert.equal(more.body, 'x'.repeat(16_384));
  });

  test('of headers 16 KiB are kept, and more are no reason to fail', async () => {
    const long = Object.fromEntries(
      Array.from({ length: 40 }, (_, index) => [`x-${index}`, 'v'.repeat(1000)]),
    );
    const outcome = assertResponse(await post('/long-headers', answer(200, long)), 200);
    const size = Object.entries(outcome.headers).reduce(
      (sum, [name, value]) => sum + name.length + value.length,
      0,
    );
    assert.ok(size <= 16_384 && size > 14_000, String(size));
  });

  test('a header named __proto__ is a header', async () => {
    const bytes = 'HTTP/1.1 200 OK\r\n__proto__: a\r\nx: 1\r\nx: 2\r\ncontent-length: 0\r\n\r\n';
    const { headers: kept } = assertResponse(await post('/proto', raw(bytes, 'close')), 200);
    assert.deepEqual(Object.entries(kept).sort(), [
      ['__proto__', 'a'],
      ['content-length', '0'],
      ['x', '1, 2'],
    ]);
  });
});

describe('failures after the connection', () => {
  const failures: [string, Behaviour, PostErrorCode][] = [
    ['reset before the answer', reset(), 'connection_lost'],
    ['hung up before the answer', hangUp(), 'connection_lost'],
    ['reset in the head', raw('HTTP/1.1 200 OK\r\nx-half', 'reset'), 'connection_lost'],
    ['closed in the head', raw('HTTP/1.1 200 OK\r\nx-half', 'close'), 'connection_lost'],
    ['garbage', raw('SSH-2.0-OpenSSH_9.2\r\n'), 'invalid_response'],
    ['binary garbage', raw('\x15\x03\x01\x00\x02\x02\x50\x00\x00', 'close'), 'invalid_response'],
    ['a bad status', raw('HTTP/1.1 abc Whatever\r\n\r\n'), 'invalid_response'],
    ['a bad header', raw('HTTP/1.1 200 OK\r\nno colon here\r\n\r\n'), 'invalid_response'],
    [
      'two lengths',
      raw('HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n'),
      'invalid_response',
    ],
    [
      'an upgrade',
      raw('HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n'),
      'invalid_response',
    ],
    ['headers without end', floodHead(), 'invalid_response'],
  ];
  for (const [title, behaviour, error] of failures) {
    test(`${title}: ${error}`, async () => {
      const outcome = assertFailure(await post(`/${title.replaceAll(' ', '-')}`, behaviour), error);
      assert.equal(outcome.status, undefined);
      assert.equal(outcome.body, undefined);
    });
  }

  const cut: [string, string][] = [
    ['with a length', 'content-length: 100\r\n\r\nhalf'],
    ['with a length, to be closed', 'connection: close\r\ncontent-length: 100\r\n\r\nhalf'],
    ['in chunks', 'transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n'],
    ['in chunks, to be closed', 'connection: close\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n'],
  ];
  for (const [title, rest] of cut) {
    for (const end of ['close', 'reset'] as const) {
      test(`a body ${title}, cut by ${end}: connection_lost, and what came is told`, async () => {
        const bytes = `HTTP/1.1 200 OK\r\nx-who: me\r\n${rest}`;
        const path = `/cut-${title.replaceAll(/\W+/g, '-')}-${end}`;
        const outcome = assertFailure(await post(path, raw(bytes, end)), 'connection_lost');
        assert.equal(outcome.status, 200);
        assert.equal(outcome.headers?.['x-who'], 'me');
        assert.equal(outcome.body, 'half');
      });
    }
  }
});

describe('time', () => {
  test('no answer: response_timeout', async () => {
    assertFailure(await post('/hang', hang(), hasty), 'response_timeout');
  });

  test('a head that drips: response_timeout', async () => {
    assertFailure(await post('/drip-head', dripHead(20), hasty), 'response_timeout');
  });

  test('hints and then no answer: response_timeout', async () => {
    const outcome = await post('/hints-only', raw('HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n'), hasty);
    assert.equal(assertFailure(outcome, 'response_timeout').status, undefined);
  });

  test('a body that drips: body_timeout, and what came is told', async () => {
    const outcome = assertFailure(await post('/drip', drip(20), hasty), 'body_timeout');
    assert.equal(outcome.status, 200);
    assert.match(outcome.body ?? '', /^\.+$/);
  });

  test('DNS that does not answer: dns_failed', async () => {
    dns.answer('silent.example', 'DROP');
    assertFailure(
      await hasty.post({ url: 'http://silent.example/', headers, body }),
      'dns_failed',
      /in time/,
    );
  });

  test('a connection that timed out is closed', async () => {
    receiver.dropConnections();
    await waitFor('all connections to be gone', () => receiver.openConnections() === 0);
    const outcome = post('/hang-on', hang(), hasty);
    await receiver.received(1, ({ url }) => url === '/hang-on');
    assert.equal(receiver.openConnections(), 1);
    assertFailure(await outcome, 'response_timeout');
    await waitFor('the connection to be closed', () => receiver.openConnections() === 0);
  });

  test('a deadline is each POST’s own, on a connection that was kept for longer too', async () => {
    const hooks = await startReceiver();
    after(() => hooks.close());
    const url = hooks.url();
    for (let rounds = 0; rounds < 3; rounds += 1) {
      assertResponse(await hasty.post({ url, headers, body }), 204);
      const answeredAt = performance.now();
      await waitFor('most of a deadline to pass', () => performance.now() > answeredAt + 0.7 * hastyMs);
    }
    hooks.behave(hang());
    assertFailure(await hasty.post({ url, headers, body }), 'response_timeout');
    assert.ok(hooks.requests.every(({ connection }) => connection === 1));
  });
});

describe('a flood', () => {
  test('of 1 GB costs next to nothing, and is an answer', async () => {
    const torrent = await startReceiver();
    after(() => torrent.close());
    let sent = 0;
    torrent.behave(
      flood(2 ** 30, (bytes) => {
        sent += bytes;
      }),
    );
    const round = () =>
      Promise.all(Array.from({ length: 16 }, () => poster.post({ url: torrent.url(), headers, body })));
    await round();
    const before = process.memoryUsage();
    sent = 0;
    for (let turn = 0; turn < 10; turn++) {
      for (const outcome of await round()) {
        assert.match(assertResponse(outcome, 200).body, /^(flood )+flo/);
        assert.equal(outcome.body?.length, 16_384);
      }
    }
    await waitFor('the connections to be closed', () => torrent.openConnections() === 0);
    const growth = process.memoryUsage().rss - before.rss;
    assert.ok(growth < 50 * 2 ** 20, `${Math.round(growth / 2 ** 20)} MB more`);
    // What fits into the buffers of the system on the way.
    assert.ok(sent < 160 * 16 * 2 ** 20, `${Math.round(sent / 2 ** 20)} MB were sent`);
  });
});

describe('what it cannot send', () => {
  for (const url of ['ftp://127.0.0.1/', 'not a url', 'file:///etc/passwd', '']) {
    test(`${url || 'nothing'}: target_refused`, async () => {
      assertFailure(await poster.post({ url, headers, body }), 'target_refused');
    });
  }

  test('a header that is none: connect_failed, and the poster goes on', async () => {
    const url = receiver.url('/bad-header');
    assertFailure(await poster.post({ url, headers: { 'x-bad': 'a\r\nb' }, body }), 'connect_failed');
    assertResponse(await poster.post({ url, headers, body }), 204);
  });
});

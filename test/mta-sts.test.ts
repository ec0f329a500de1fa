import assert from 'node:assert/strict';
import { after, beforeEach, describe, test } from 'node:test';
import { makeDnsClient } from '../src/net/dns.ts';
import { makeEgress } from '../src/net/egress.ts';
import { makeMtaSts, matchesPolicy, readPolicy, readRecordId } from '../src/net/mta-sts.ts';
import { makeSelfSigned } from '../src/net/self-signed.ts';
import { startDns } from './dns.ts';
import { answer, type Behaviour, hang, hangUp, startReceiver } from './receiver.ts';

const policyHost = 'mta-sts.dest.example';
const own = makeSelfSigned(policyHost, new Date());
const other = makeSelfSigned('www.dest.example', new Date());
const dnsServer = await startDns();
const web = await startReceiver({ tls: own });
const wrongWeb = await startReceiver({ tls: other });
after(() => Promise.all([dnsServer.close(), web.close(), wrongWeb.close()]));

const signal = new AbortController().signal;
const dns = makeDnsClient({ dnsServers: [dnsServer.address] });
const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: [dnsServer.address] });
const text = (mode: string, mx = 'mx.dest.example', maxAge = 86_400) =>
  `version: STSv1\r\nmode: ${mode}\r\nmx: ${mx}\r\nmax_age: ${maxAge}\r\n`;
const serve = (body: string, type = 'text/plain') => web.behave(answer(200, { 'content-type': type }, body));
const publish = (id: string) => dnsServer.answer('_mta-sts.dest.example', { TXT: [`v=STSv1; id=${id};`] });

/** An endless policy, slowly. */
const drip: Behaviour = (_request, response) => {
  response.writeHead(200, { 'content-type': 'text/plain' });
  const timer = setInterval(() => response.write('x'), 5);
  response.on('close', () => clearInterval(timer));
};

let now = 0;
beforeEach(() => {
  now = 1_700_000_000_000;
  web.requests.length = 0;
  dnsServer.reset();
  dnsServer.answer(policyHost, { A: ['127.0.0.1'] });
  publish('one');
  serve(text('enforce'));
});

function open(options: Partial<Parameters<typeof makeMtaSts>[0]> = {}) {
  const ca = own.cert + other.cert;
  const sts = makeMtaSts({ dns, egress, now: () => new Date(now), ca, port: web.port, ...options });
  return (domain = 'dest.example') => sts.find(domain, signal);
}

test('a policy is fetched by its well-known address', async () => {
  const policy = await open()();
  assert.deepEqual(policy, { mode: 'enforce', mx: ['mx.dest.example'], maxAgeSeconds: 86_400 });
  assert.equal(web.requests[0]?.url, '/.well-known/mta-sts.txt');
  assert.equal(web.requests[0]?.headers.host, policyHost);
});

test('without a TXT record no policy is asked for', async () => {
  dnsServer.answer('_mta-sts.dest.example', { TXT: ['hello'] });
  assert.equal(await open()(), null);
  assert.equal(web.requests.length, 0);
});

describe('the cache', () => {
  test('a policy is fetched once for its id, also when many mails ask at once', async () => {
    const find = open();
    await Promise.all([find(), find(), find()]);
    await find();
    assert.equal(web.requests.length, 1);
  });

  test('another id fetches again', async () => {
    const find = open();
    await find();
    publish('two');
    serve(text('testing'));
    assert.equal((await find())?.mode, 'testing');
  });

  test('after max_age it is fetched again', async () => {
    const find = open();
    await find();
    now += 86_401_000;
    serve(text('none'));
    assert.equal((await find())?.mode, 'none');
  });

  test('the old policy stays when the new one cannot be fetched, until its max_age', async () => {
    const find = open();
    await find();
    publish('two');
    web.behave(answer(500));
    assert.equal((await find())?.mode, 'enforce');
    now += 86_401_000;
    assert.equal(await find(), null);
  });

  for (const gone of ['SERVFAIL', 'NXDOMAIN'] as const) {
    test(`the policy stays when DNS says ${gone}`, async () => {
      const find = open();
      await find();
      dnsServer.answer('_mta-sts.dest.example', gone);
      assert.equal((await find())?.mode, 'enforce');
    });
  }

  test('a failed fetch is not repeated for five minutes', async () => {
    const find = open();
    web.behave(answer(500));
    assert.equal(await find(), null);
    serve(text('enforce'));
    assert.equal(await find(), null);
    assert.equal(web.requests.length, 1);
    now += 5 * 60_000 + 1;
    assert.equal((await find())?.mode, 'enforce');
  });

  test('it has a bound: the oldest policy leaves', async () => {
    const find = open({ maxCached: 1 });
    await find();
    dnsServer.answer('_mta-sts.b.example', { TXT: ['v=STSv1; id=b'] });
    assert.equal(await find('b.example'), null);
    await find();
    assert.equal(web.requests.length, 2);
  });
});

describe('no policy comes from', () => {
  const cases: [string, Behaviour][] = [
    ['a redirect', answer(302, { location: `https://${policyHost}/elsewhere` })],
    ['another status', answer(404, { 'content-type': 'text/plain' }, text('enforce'))],
    ['html', answer(200, { 'content-type': 'text/html' }, text('enforce'))],
    [
      'a file over 64 KiB',
      answer(200, { 'content-type': 'text/plain' }, text('enforce') + 'x'.repeat(70_000)),
    ],
    ['text that is not a policy', answer(200, { 'content-type': 'text/plain' }, 'hello')],
    ['a connection that is closed', hangUp()],
    [
      'a file that is cut short',
      (_request, response, socket) => {
        response.writeHead(200, { 'content-type': 'text/plain', 'content-length': 4000 });
        response.write(text('enforce'), () => socket.destroy());
      },
    ],
  ];
  for (const [title, behaviour] of cases) {
    test(title, async () => {
      web.behave(behaviour);
      assert.equal(await open()(), null);
    });
  }

  for (const [title, behaviour] of [
    ['a server that does not answer', hang()],
    ['a server that answers byte by byte', drip],
  ] as const) {
    test(title, async () => {
      web.behave(behaviour);
      assert.equal(await open({ fetchWithinMs: 300 })(), null);
    });
  }

  test('a certificate for another name', async () => {
    assert.equal(await open({ port: wrongWeb.port })(), null);
    assert.equal(wrongWeb.requests.length, 0);
  });

  test('a certificate of an unknown authority', async () => {
    assert.equal(await open({ ca: other.cert })(), null);
    assert.equal(web.requests.length, 0);
  });

  test('an address that egress refuses', async () => {
    const strict = makeEgress({ allowTargets: [], dnsServers: [dnsServer.address] });
    assert.equal(await open({ egress: strict })(), null);
    assert.equal(web.requests.length, 0);
  });
});

describe('reading', () => {
  const records: [string[], string | null][] = [
    [['v=STSv1; id=20260101T000000;'], '20260101T000000'],
    [['v=STSv1;id=a'], 'a'],
    [['other', 'v=STSv1; id=a'], 'a'],
    [['v=STSv1; id=a', 'v=STSv1; id=b'], null],
    [['v=STSv1; id=a b'], null],
    [['v=STSv1;'], null],
    [['v=STSv2; id=a'], null],
    [['id=a; v=STSv1'], null],
  ];
  for (const [given, id] of records) {
    test(`record ${JSON.stringify(given)}`, () => assert.equal(readRecordId(given), id));
  }

  const invalid = [
    '',
    'version: STSv2\nmode: enforce\nmx: a.example\nmax_age: 1',
    'version: STSv1\nmode: strict\nmx: a.example\nmax_age: 1',
    'version: STSv1\nmode: enforce\nmax_age: 1',
    'version: STSv1\nmode: enforce\nmx: a.example',
    'version: STSv1\nmode: enforce\nmx: a.example\nmax_age: -1',
    'version: STSv1\nmode: enforce\nmx: *.*.example\nmax_age: 1',
    'version: STSv1\nmode: enforce\nmx: mx*.example\nmax_age: 1',
  ];
  for (const policy of invalid) {
    test(`not a policy: ${JSON.stringify(policy)}`, () => assert.equal(readPolicy(policy), null));
  }

  test('an unknown field is ignored, and max_age has a bound', () => {
    const policy = readPolicy('version: STSv1\nfuture: x\nmode: none\nmax_age: 9999999999\n');
    assert.deepEqual(policy, { mode: 'none', mx: [], maxAgeSeconds: 31_557_600 });
  });

  const hosts: [string, string, boolean][] = [
    ['mx.dest.example', 'mx.dest.example', true],
    ['mx.dest.example', 'MX.dest.example.', true],
    ['mx.dest.example', 'a.mx.dest.example', false],
    ['*.dest.example', 'mx.dest.example', true],
    ['*.dest.example', 'a.mx.dest.example', false],
    ['*.dest.example', 'dest.example', false],
    ['*.example', 'example', false],
  ];
  for (const [pattern, host, matches] of hosts) {
    test(`${pattern} ${matches ? 'matches' : 'does not match'} ${host}`, () => {
      assert.equal(matchesPolicy({ mode: 'enforce', mx: [pattern], maxAgeSeconds: 1 }, host), matches);
    });
  }
});

import assert from 'node:assert/strict';
import { after, beforeEach, describe, test } from 'node:test';
import { makeEgress } from '../src/net/egress.ts';
import { startDns } from './dns.ts';

const dns = await startDns();
after(() => dns.close());
beforeEach(() => dns.reset());

const strict = makeEgress({ allowTargets: [], dnsServers: [dns.address] });
const onLoopback = makeEgress({ allowTargets: ['127.0.0.0/8', '::1'], dnsServers: [dns.address] });
const hostOf = (address: string) => (address.includes(':') ? `[${address}]` : address);
const faultOf = (text: string, egress = strict) => egress.findRefusal(new URL(text).hostname);

describe('literal addresses', () => {
  const publicOnes = [
    '1.1.1.1',
    '8.8.8.8',
    '9.255.255.255',
    '11.0.0.0',
    '100.63.255.255',
    '100.128.0.0',
    '126.255.255.255',
    '128.0.0.1',
    '169.253.255.255',
    '169.255.0.0',
    '172.15.255.255',
    '172.32.0.0',
    '192.0.1.0',
    '192.167.255.255',
    '192.169.0.0',
    '198.17.255.255',
    '198.20.0.0',
    '223.255.255.255',
    '2001:200::1',
    '2606:4700:4700::1111',
    '2a00:1450:4001:830::200e',
    '2001:4860:4860::8888',
    '3ffe::1',
    // Forms with a public IPv4 inside.
    '::ffff:8.8.8.8',
    '64:ff9b::8.8.8.8',
    '2002:808:808::1',
    '2606:4700::5efe:8.8.8.8',
  ];
  for (const address of publicOnes) {
    test(`${address} may be called`, async () => {
      assert.equal(await faultOf(`https://${hostOf(address)}/`), null);
      const resolution = await strict.resolve(address);
      assert.ok(resolution.ok);
      assert.equal(resolution.addresses.length, 1);
    });
  }

  const refusedOnes: [string, RegExp][] = [
    ['127.0.0.1', /loopback/],
    ['127.255.255.255', /loopback/],
    ['::1', /loopback/],
    ['0.0.0.0', /unspecified/],
    ['0.1.2.3', /unspecified/],
    ['::', /unspecified/],
    ['10.0.0.0', /private/],
    ['10.255.255.255', /private/],
    ['172.16.0.1', /private/],
    ['172.31.255.255', /private/],
    ['192.168.0.1', /private/],
    ['192.168.255.255', /private/],
    ['fc00::1', /private/],
    ['fdff:ffff::1', /private/],
    ['fec0::1', /private/],
    ['169.254.0.1', /link-local/],
    ['169.254.255.255', /link-local/],
    ['fe80::1', /link-local/],
    ['febf::1', /link-local/],
    ['169.254.169.254', /metadata/],
    ['168.63.129.16', /metadata/],
    ['100.100.100.200', /metadata/],
    ['192.0.0.192', /metadata/],
    ['fd00:ec2::254', /metadata/],
    ['100.64.0.0', /carrier-grade/],
    ['100.127.255.255', /carrier-grade/],
    ['224.0.0.1', /multicast/],
    ['239.255.255.255', /multicast/],
    ['ff02::1', /multicast/],
    ['255.255.255.255', /broadcast/],
    ['240.0.0.1', /reserved/],
    ['254.255.255.255', /reserved/],
    ['192.0.0.1', /reserved/],
    ['192.0.2.1', /documentation/],
    ['198.51.100.7', /documentation/],
    ['203.0.113.255', /documentation/],
    ['2001:db8::1', /documentation/],
    ['3fff::1', /documentation/],
    ['198.18.0.1', /benchmarking/],
    ['198.19.255.255', /benchmarking/],
    ['2001:2::1', /benchmarking/],
    ['192.88.99.1', /relay/],
    ['192.175.48.1', /relay/],
    ['100::1', /without a host/],
    ['2001:10::1', /without a host/],
    ['2001:20::1', /without a host/],
    ['2001:1ff::1', /reserved/],
    ['4000::1', /reserved/],
    ['5f00::1', /reserved/],
    ['8000::1', /reserved/],
    ['1fff::1', /reserved/],
    // Forms with another address inside.
    ['::ffff:127.0.0.1', /loopback/],
    ['::ffff:10.1.2.3', /private/],
    ['::ffff:169.254.169.254', /metadata/],
    ['::127.0.0.1', /reserved/],
    ['::8.8.8.8', /reserved/],
    ['::ffff:0:127.0.0.1', /reserved/],
    ['64:ff9b::127.0.0.1', /loopback address \(127\.0\.0\.1\) in IPv6 form/],
    ['64:ff9b::10.0.0.5', /private/],
    ['64:ff9b::a9fe:a9fe', /metadata/],
    ['64:ff9b:1::8.8.8.8', /NAT64/],
    ['2002:7f00:1::1', /loopback/],
    ['2002:a00:5::1', /private/],
    ['2002:a9fe:a9fe::', /metadata/],
    ['2001:0:808:808::f7f7:f7f7', /Teredo/],
    ['2606:4700::5efe:10.0.0.5', /private address \(10\.0\.0\.5\)/],
    ['2606:4700::200:5efe:127.0.0.1', /loopback/],
    ['fe80::5efe:8.8.8.8', /link-local/],
  ];
  for (const [address, kind] of refusedOnes) {
    test(`${address} is refused`, async () => {
      assert.match((await faultOf(`https://${hostOf(address)}/`)) ?? '', kind);
      const resolution = await strict.resolve(address);
      assert.ok(!resolution.ok);
      assert.equal(resolution.code, 'target_refused');
      assert.match(resolution.reason, kind);
    });
  }
});

describe('spellings of loopback', () => {
  const spellings = [
    'http://127.1/',
    'http://127.0.1/',
    'http://2130706433/',
    'http://0x7f000001/',
    'http://0x7f.0.0.1/',
    'http://0177.0.0.1/',
    'http://017700000001/',
    'http://0x7F.1/',
    'http://127.0.0.1./',
    'http://%31%32%37.0.0.1/',
    'http://１２７.0.0.1/',
    'http://127。0。0。1/',
    'http://①②⑦.⓪.⓪.①/',
    'http://[::1]/',
    'http://[0:0:0:0:0:0:0:1]/',
    'http://[0000::0001]/',
    'http://[::ffff:127.0.0.1]/',
    'http://[::ffff:7f00:1]/',
    'http://[0:0:0:0:0:ffff:7f00:0001]/',
    'http://localhost/',
    'http://LOCALHOST/',
    'http://localhost./',
    'http://app.localhost/',
    'http://ｌｏｃａｌｈｏｓｔ/',
    'http://loc%61lhost/',
  ];
  for (const spelling of spellings) {
    test(`${spelling} is refused, and allowed where loopback is`, async () => {
      const { hostname } = new URL(spelling);
      assert.notEqual(await faultOf(spelling), null);
      assert.equal(await faultOf(spelling, onLoopback), null);
      const resolution = await onLoopback.resolve(hostname);
      assert.ok(resolution.ok);
      for (const { address } of resolution.addresses)
        assert.match(address, /^(127\.0\.0\.1|::1|::ffff:7f00:1)$/);
    });
  }

  test('0 is not loopback, but reaches this machine all the same: refused', async () => {
    assert.match((await faultOf('http://0/', onLoopback)) ?? '', /unspecified/);
  });
});

describe('names', () => {
  const refused = [
    'intranet',
    'intranet.',
    'metadata.google.internal',
    'METADATA.google.INTERNAL.',
    'printer.local',
    'router.home.arpa',
    'example.onion',
    'internal',
    'local..',
  ];
  for (const name of refused) {
    test(`${name} is refused without asking DNS`, async () => {
      const plain = name.toLowerCase().replace(/\.+$/, '');
      dns.answer(plain, { A: ['8.8.8.8'] });
      for (const egress of [strict, onLoopback]) {
        assert.match(
          (await faultOf(`https://${name}/`, egress)) ?? '',
          /has no meaning on the public internet/,
        );
        assert.equal((await egress.resolve(name)).ok, false);
      }
      assert.equal(dns.count(plain), 0);
    });
  }

  for (const name of ['mylocal.example', 'localhost.example', 'internal.example', 'arpa.example']) {
    test(`${name} is a name like any other`, async () => {
      dns.answer(name, { A: ['8.8.8.8'] });
      assert.equal(await faultOf(`https://${name}/`), null);
      assert.ok((await strict.resolve(name)).ok);
    });
  }

  test('localhost is never asked of DNS, whatever DNS would say', async () => {
    dns.answer('localhost', { A: ['8.8.8.8'] });
    dns.answer('app.localhost', { A: ['8.8.8.8'] });
    for (const name of ['localhost', 'app.localhost']) {
      assert.deepEqual(await onLoopback.resolve(name), {
        ok: true,
        addresses: [
          { address: '127.0.0.1', family: 4 },
          { address: '::1', family: 6 },
        ],
      });
      assert.equal(dns.count(name), 0);
    }
  });

  test('localhost has only the loopback address that is allowed', async () => {
    const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: [dns.address] });
    assert.deepEqual(await egress.resolve('localhost'), {
      ok: true,
      addresses: [{ address: '127.0.0.1', family: 4 }],
    });
  });
});

describe('what the operator allows', () => {
  const egress = makeEgress({
    allowTargets: ['10.1.0.0/16', 'fd12::/32', '192.168.7.7'],
    dnsServers: [dns.address],
  });

  for (const address of ['10.1.0.0', '10.1.255.255', 'fd12::5', '192.168.7.7', '::ffff:10.1.2.3']) {
    test(`${address} is within`, async () =>
      assert.equal(await faultOf(`http://${hostOf(address)}/`, egress), null));
  }
  for (const address of [
    '10.0.255.255',
    '10.2.0.0',
    'fd13::1',
    '192.168.7.8',
    '127.0.0.1',
    '64:ff9b::a01:203',
  ]) {
    test(`${address} is not`, async () =>
      assert.notEqual(await faultOf(`http://${hostOf(address)}/`, egress), null));
  }

  test('a name may lead there', async () => {
    dns.answer('inside.example', { A: ['10.1.2.3'] });
    assert.equal(await egress.findRefusal('inside.example'), null);
  });

  test('a range that is none is told when it is made', () => {
    for (const range of [
      '10.0.0.0/33',
      '10.0.0.0/',
      '10.0.0.0/8/8',
      'fd00::/129',
      'example.com',
      '10.0.0',
      '',
    ]) {
      assert.throws(() => makeEgress({ allowTargets: [range], dnsServers: null }), /is not an address range/);
    }
  });
});

import assert from 'node:assert/strict';
import { after, beforeEach, describe, test } from 'node:test';
import { makeEgress } from '../src/net/egress.ts';
import { type Answer, startDns } from './dns.ts';
import { makeTestLog } from './harness.ts';

const dns = await startDns();
after(() => dns.close());
beforeEach(() => dns.reset());
const { log, logged } = makeTestLog();
const egress = makeEgress({ allowTargets: [], dnsServers: [dns.address], log });

test('a name gives all its addresses, IPv4 first', async () => {
  dns.answer('hooks.example', { A: ['8.8.8.8', '1.1.1.1'], AAAA: ['2606:4700::1111'] });
  const resolution = await egress.resolve('hooks.example');
  assert.ok(resolution.ok);
  assert.deepEqual(resolution.addresses.map(({ address, family }) => `${family} ${address}`).sort(), [
    '4 1.1.1.1',
    '4 8.8.8.8',
    '6 2606:4700::1111',
  ]);
  assert.equal(resolution.addresses.at(-1)?.family, 6);
});

test('an alias is followed to its addresses', async () => {
  dns.answer('hooks.example', { CNAME: ['lb.example'], A: ['8.8.8.8'] });
  const resolution = await egress.resolve('hooks.example');
  assert.deepEqual(resolution, { ok: true, addresses: [{ address: '8.8.8.8', family: 4 }] });
});

test('an alias that leads inside is refused', async () => {
  dns.answer('hooks.example', { CNAME: ['db.internal'], A: ['10.0.0.5'] });
  const resolution = await egress.resolve('hooks.example');
  assert.ok(!resolution.ok && resolution.code === 'target_refused');
});

describe('one address of several that is not public refuses the name', () => {
  const mixed: [string, Answer, string][] = [
    ['private among public', { A: ['8.8.8.8', '10.0.0.5', '1.1.1.1'] }, '10.0.0.5'],
    ['public IPv4, loopback IPv6', { A: ['8.8.8.8'], AAAA: ['::1'] }, '::1'],
    ['private IPv4, public IPv6', { A: ['192.168.1.1'], AAAA: ['2606:4700::1111'] }, '192.168.1.1'],
    ['mapped metadata', { AAAA: ['2606:4700::1111', '::ffff:169.254.169.254'] }, '169.254.169.254'],
    ['private behind NAT64', { A: ['8.8.8.8'], AAAA: ['64:ff9b::10.0.0.5'] }, '10.0.0.5'],
  ];
  for (const [title, answer, address] of mixed) {
    test(title, async () => {
      dns.answer('hooks.example', answer);
      const resolution = await egress.resolve('hooks.example');
      assert.ok(!resolution.ok);
      assert.equal(resolution.code, 'target_refused');
      assert.ok(!resolution.reason.includes(address), 'the owner of the webhook does not learn the address');
      assert.equal(await egress.findRefusal('hooks.example'), resolution.reason);
      const { host, msg } = logged.at(-1) ?? {};
      assert.equal(host, 'hooks.example');
      assert.ok(String(msg).includes(address), `the operator finds the address in the log: ${msg}`);
    });
  }
});

test('the refusal is a sentence that says what to do', async () => {
  dns.answer('hooks.example', { A: ['10.0.0.5'] });
  assert.equal(
    await egress.findRefusal('hooks.example'),
    'hooks.example resolves to an address that is not public. ' +
      'Use a public address; the operator can allow others with POSTHORN_ALLOW_TARGETS.',
  );
});

describe('failures of DNS', () => {
  const kinds: [string, Answer, RegExp][] = [
    ['NXDOMAIN', 'NXDOMAIN', /does not exist/],
    ['SERVFAIL', 'SERVFAIL', /SERVFAIL/],
    ['REFUSED', 'REFUSED', /REFUSED/],
    ['no addresses', {}, /has no address/],
    ['only other records', { TXT: ['hello'], MX: ['10 mail.example'] }, /has no address/],
  ];
  for (const [title, answer, reason] of kinds) {
    test(`${title}: dns_failed, and accepted at registration`, async () => {
      dns.answer('hooks.example', answer);
      const resolution = await egress.resolve('hooks.example');
      assert.ok(!resolution.ok);
      assert.equal(resolution.code, 'dns_failed');
      assert.match(resolution.reason, reason);
      assert.equal(await egress.findRefusal('hooks.example'), null);
    });
  }

  test('silence: dns_failed when the time is over, and accepted at registration', async () => {
    dns.answer('silent.example', 'DROP');
    const resolution = await egress.resolve('silent.example', 50);
    assert.ok(!resolution.ok);
    assert.equal(resolution.code, 'dns_failed');
    assert.match(resolution.reason, /DNS did not answer in time/);
    assert.equal(await egress.findRefusal('silent.example', 50), null);
  });

  test('silence ends by itself', async () => {
    dns.answer('hooks.example', 'DROP');
    assert.equal((await egress.resolve('hooks.example', 2 ** 30)).ok, false);
  });

  test('a lost question is asked again', async () => {
    dns.answer('hooks.example', 'DROP', 'DROP', { A: ['8.8.8.8'] });
    assert.ok((await egress.resolve('hooks.example', 60_000)).ok);
  });

  test('names that DNS cannot hold', async () => {
    for (const name of [`${'a'.repeat(64)}.example`, `${'a.'.repeat(130)}example`, 'a..example']) {
      const resolution = await egress.resolve(name);
      assert.ok(!resolution.ok && resolution.code === 'dns_failed', name);
    }
  });

  test('no server at all', async () => {
    const other = await startDns();
    await other.close();
    const alone = makeEgress({ allowTargets: [], dnsServers: [other.address] });
    const resolution = await alone.resolve('hooks.example');
    assert.ok(!resolution.ok && resolution.code === 'dns_failed');
  });
});

describe('one family answers, the other does not', () => {
  for (const failure of ['NXDOMAIN', 'SERVFAIL', 'REFUSED', {}, 'DROP'] as Answer[]) {
    test(`AAAA: ${JSON.stringify(failure)}`, async () => {
      dns.answer('half.example', { A: ['8.8.8.8'] });
      dns.answerType('half.example', 'AAAA', failure);
      const resolution = await egress.resolve('half.example', failure === 'DROP' ? 3000 : undefined);
      assert.deepEqual(resolution, { ok: true, addresses: [{ address: '8.8.8.8', family: 4 }] });
    });
  }

  test('what has come is checked though the other is still out', async () => {
    dns.answer('late.example', { A: ['10.0.0.5'] });
    dns.answerType('late.example', 'AAAA', 'DROP');
    assert.match((await egress.findRefusal('late.example', 3000)) ?? '', /not public/);
  });
});

test('every look asks anew: nothing is remembered from the last', async () => {
  dns.answer('hooks.example', { A: ['8.8.8.8'] });
  assert.ok((await egress.resolve('hooks.example')).ok);
  dns.answer('hooks.example', { A: ['127.0.0.1'] });
  assert.equal((await egress.resolve('hooks.example')).ok, false);
  assert.equal(dns.count('hooks.example', 'A'), 2);
});

test('looks at the same moment share one question', async () => {
  dns.answer('hooks.example', { A: ['8.8.8.8'] });
  const resolutions = await Promise.all(Array.from({ length: 50 }, () => egress.resolve('hooks.example')));
  assert.ok(resolutions.every(({ ok }) => ok));
  assert.equal(dns.count('hooks.example', 'A'), 1);
  assert.equal(dns.count('hooks.example', 'AAAA'), 1);
});

test('many names at once are all answered', async () => {
  const names = Array.from({ length: 120 }, (_, index) => `n${index}.example`);
  for (const [index, name] of names.entries()) dns.answer(name, { A: [`9.0.0.${index}`] });
  const resolutions = await Promise.all(names.map((name) => egress.resolve(name)));
  for (const [index, resolution] of resolutions.entries()) {
    assert.deepEqual(resolution, {
      ok: true,
      addresses: [{ address: `9.0.0.${index}`, family: 4 }],
    });
  }
});

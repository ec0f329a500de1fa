import assert from 'node:assert/strict';
import { after, beforeEach, describe, test } from 'node:test';
import { makeDnsClient } from '../src/net/dns.ts';
import { makeEgress } from '../src/net/egress.ts';
import { findMailHosts } from '../src/net/mx.ts';
import { type Answer, startDns } from './dns.ts';

const server = await startDns();
after(() => server.close());
beforeEach(() => server.reset());
const dns = makeDnsClient({ dnsServers: [server.address], roundsMs: [60_000] });
const impatient = makeDnsClient({ dnsServers: [server.address], roundsMs: [200] });
const signal = new AbortController().signal;
const find = (domain: string, random = () => 0.5) => findMailHosts(domain, { dns, random, signal });

test('hosts come by preference', async () => {
  server.answer('dest.example', { MX: ['20 b.example', '10 A.Example.', '30 c.example'] });
  assert.deepEqual(await find('dest.example'), {
    kind: 'hosts',
    hosts: ['a.example', 'b.example', 'c.example'],
  });
});

test('hosts of one preference come in the order that the random function gives', async () => {
  server.answer('dest.example', { MX: ['10 a.example', '10 b.example', '5 first.example'] });
  const order = async (...turns: number[]) => {
    const found = await find('dest.example', () => turns.shift() ?? 0);
    return found.kind === 'hosts' ? found.hosts : [];
  };
  assert.deepEqual(await order(0.1, 0.2, 0.3), ['first.example', 'a.example', 'b.example']);
  assert.deepEqual(await order(0.2, 0.1, 0.3), ['first.example', 'b.example', 'a.example']);
});

test('at most ten hosts, the preferred ones, and each once', async () => {
  const many = Array.from({ length: 30 }, (_, n) => `${30 - n} mx${30 - n}.example`);
  server.answer('dest.example', { MX: [...many, '1 mx1.example'] });
  const found = await find('dest.example');
  assert.deepEqual(found, {
    kind: 'hosts',
    hosts: Array.from({ length: 10 }, (_, n) => `mx${n + 1}.example`),
  });
});

test('without MX the domain itself is the host', async () => {
  server.answer('dest.example', { A: ['192.0.2.1'] });
  assert.deepEqual(await find('dest.example'), { kind: 'hosts', hosts: ['dest.example'] });
});

describe('permanent', () => {
  const cases: [string, Answer, string][] = [
    ['a null MX', { MX: ['0 .'] }, 'null_mx'],
    ['a domain that does not exist', 'NXDOMAIN', 'no_such_domain'],
    ['an MX that is an IPv4 address', { MX: ['10 192.0.2.1'] }, 'no_mail_server'],
    ['an MX that is localhost', { MX: ['10 localhost', '20 mail.localhost'] }, 'no_mail_server'],
  ];
  for (const [title, answer, code] of cases) {
    test(title, async () => {
      server.answer('dest.example', answer);
      const found = await find('dest.example');
      assert.equal(found.kind === 'permanent' && found.code, code, JSON.stringify(found));
      assert.ok(found.kind === 'permanent' && found.reason.includes('dest.example'));
    });
  }

  test('a name that DNS cannot have', async () => {
    const found = await find(`${'a'.repeat(64)}.example`);
    assert.equal(found.kind === 'permanent' && found.code, 'no_such_domain');
  });
});

test('an MX that cannot be called does not hide the others', async () => {
  server.answer('dest.example', { MX: ['0 .', '5 localhost', '6 127.0.0.1', '10 a.example'] });
  assert.deepEqual(await find('dest.example'), { kind: 'hosts', hosts: ['a.example'] });
});

describe('temporary', () => {
  for (const answer of ['SERVFAIL', 'REFUSED', 'DROP'] as const) {
    test(answer, async () => {
      server.answer('dest.example', answer);
      const found = await findMailHosts('dest.example', { dns: impatient, random: () => 0, signal });
      assert.equal(found.kind, 'temporary');
    });
  }

  test('the signal ends the wait', async () => {
    server.answer('dest.example', 'DROP');
    const stop = new AbortController();
    const found = findMailHosts('dest.example', { dns, random: () => 0, signal: stop.signal });
    stop.abort();
    assert.equal((await found).kind, 'temporary');
  });
});

test('egress says whether asking again for the addresses of a host makes sense', async () => {
  const egress = makeEgress({ allowTargets: [], dnsServers: [server.address] });
  server.answer('empty.example', { TXT: ['no address'] });
  server.answer('broken.example', 'SERVFAIL');
  server.answer('half.example', {});
  server.answerType('half.example', 'AAAA', 'SERVFAIL');
  const isAbsent = async (host: string) => {
    const resolution = await egress.resolve(host);
    return !resolution.ok && resolution.isAbsent;
  };
  assert.equal(await isAbsent('missing.example'), true);
  assert.equal(await isAbsent('empty.example'), true);
  assert.equal(await isAbsent('broken.example'), false);
  assert.equal(await isAbsent('half.example'), false);
  assert.equal(await isAbsent('10.0.0.5'), false);
});

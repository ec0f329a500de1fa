import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Answer } from './dns.ts';
import { check, dns, none, plain, smtp } from './signing.ts';

describe('SPF', () => {
  const nobody = Object.fromEntries(
    Array.from({ length: 11 }, (_, index) => [`i${index}.example`, { TXT: ['v=spf1 ?all'] }]),
  );
  const cases: [string, Record<string, Answer>, string][] = [
    ['the address is listed', { 'example.com': { TXT: ['v=spf1 ip4:192.0.2.0/24 -all'] } }, 'pass'],
    [
      'the address is that of the MX',
      {
        'example.com': { TXT: ['hello', 'v=spf1 mx -all'], MX: ['10 mx.example.com'] },
        'mx.example.com': { A: ['192.0.2.7'] },
      },
      'pass',
    ],
    [
      'an included record lists it',
      {
        'example.com': { TXT: ['v=spf1 include:esp.example -all'] },
        'esp.example': { TXT: ['v=spf1 ip4:192.0.2.7 -all'] },
      },
      'pass',
    ],
    ['it is not listed', { 'example.com': { TXT: ['v=spf1 ip4:198.51.100.1 -all'] } }, 'fail'],
    ['it is not listed, softly', { 'example.com': { TXT: ['v=spf1 ~all'] } }, 'softfail'],
    ['the record says neither', { 'example.com': { TXT: ['v=spf1 ?all'] } }, 'neutral'],
    ['the record ends without a word', { 'example.com': { TXT: ['v=spf1 ip4:198.51.100.1'] } }, 'neutral'],
    ['no such domain', {}, 'none'],
    ['no record', { 'example.com': { TXT: ['hello'] } }, 'none'],
    ['SERVFAIL', { 'example.com': 'SERVFAIL' }, 'temperror'],
    ['REFUSED', { 'example.com': 'REFUSED' }, 'temperror'],
    [
      'SERVFAIL in an included record',
      { 'example.com': { TXT: ['v=spf1 include:esp.example -all'] }, 'esp.example': 'SERVFAIL' },
      'temperror',
    ],
    ['two records', { 'example.com': { TXT: ['v=spf1 -all', 'v=spf1 +all'] } }, 'permerror'],
    ['a word that is not SPF', { 'example.com': { TXT: ['v=spf1 ip5:192.0.2.7 -all'] } }, 'permerror'],
    ['an address that is none', { 'example.com': { TXT: ['v=spf1 ip4:192.0.2.777 -all'] } }, 'permerror'],
    [
      'more than ten look-ups',
      {
        'example.com': {
          TXT: [
            `v=spf1 ${Object.keys(nobody)
              .map((name) => `include:${name}`)
              .join(' ')} -all`,
          ],
        },
        ...nobody,
      },
      'permerror',
    ],
    [
      'a record that includes itself',
      { 'example.com': { TXT: ['v=spf1 include:example.com'] } },
      'permerror',
    ],
  ];
  for (const [title, answers, result] of cases) {
    test(`${title}: ${result}`, async () => {
      for (const [name, answer] of Object.entries(answers)) dns.answer(name, answer);
      assert.deepEqual((await check(plain, smtp)).spf, { result, domain: 'example.com' });
    });
  }

  test('no answer: temperror', async () => {
    dns.answer('example.com', 'DROP');
    const { spf, dmarc } = await check(plain, smtp);
    assert.deepEqual(spf, { result: 'temperror', domain: 'example.com' });
    assert.deepEqual(dmarc, none, 'what was answered is kept');
  });

  test('for <> the HELO name is checked', async () => {
    dns.answer('mail.example.com', { TXT: ['v=spf1 ip4:192.0.2.7 -all'] });
    const { spf } = await check(plain, { ...smtp, mailFrom: null });
    assert.deepEqual(spf, { result: 'pass', domain: 'mail.example.com' });
  });

  test('for <> with an IP address as HELO name there is nothing to check', async () => {
    for (const helo of ['[192.0.2.7]', '192.0.2.7', '2001:db8::7', '-', '']) {
      const { spf } = await check(plain, { ...smtp, mailFrom: null, helo });
      assert.deepEqual(spf, { result: 'none', domain: null }, helo);
    }
  });

  test('an IPv4-mapped IPv6 address counts as IPv4', async () => {
    dns.answer('example.com', { TXT: ['v=spf1 ip4:192.0.2.7 -all'] });
    assert.equal((await check(plain, { ...smtp, remoteIp: '::ffff:192.0.2.7' })).spf.result, 'pass');
  });

  test('IPv6', async () => {
    dns.answer('example.com', { TXT: ['v=spf1 a -all'], AAAA: ['2001:db8::7'] });
    assert.equal((await check(plain, { ...smtp, remoteIp: '2001:db8::7' })).spf.result, 'pass');
    assert.equal((await check(plain, { ...smtp, remoteIp: '2001:db8::8' })).spf.result, 'fail');
  });

  test('mail over HTTP has no client address, and DNS is not queried', async () => {
    dns.answer('example.com', { TXT: ['v=spf1 +all'] });
    const { spf } = await check(plain, { ...smtp, remoteIp: null });
    assert.deepEqual(spf, { result: 'none', domain: null });
    assert.equal(dns.count('example.com'), 0);
  });

  test('a record that leads to hundreds of names is not followed to its end', async () => {
    const hosts = Array.from({ length: 10 }, (_, index) => `m${index}.example`);
    dns.answer('example.com', { TXT: [`v=spf1 ${hosts.map((host) => `mx:${host}`).join(' ')} -all`] });
    for (const host of hosts) {
      const names = hosts.map((_, index) => `h${index}.${host}`);
      dns.answer(host, { MX: names.map((name) => `10 ${name}`) });
      for (const name of names) dns.answer(name, { A: ['198.51.100.1'] });
    }
    assert.equal((await check(plain, smtp)).spf.result, 'temperror');
    const asked = hosts.flatMap((host) => hosts.map((_, index) => dns.count(`h${index}.${host}`)));
    assert.ok(asked.reduce((sum, count) => sum + count, 0) <= 50);
  });
});

import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';
import type { Answer } from './dns.ts';
import { check, dns, none, plain, smtp } from './signing.ts';

beforeEach(() => dns.reset());

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

  test('an empty TXT record beside the SPF record', async () => {
    for (const empty of ['', null]) {
      dns.answer('example.com', { TXT: [empty, 'v=spf1 ip4:192.0.2.7 -all'] });
      assert.equal((await check(plain, smtp)).spf.result, 'pass', JSON.stringify(empty));
    }
  });

  describe('the limits of RFC 7208 §4.6.4', () => {
    /** A record with `terms` mx terms, each with `hosts` hosts, of which the last has `address`. */
    function answerMx(terms: number, hosts: number, address: string): string[] {
      const domains = Array.from({ length: terms }, (_, index) => `m${index}.example`);
      const names = domains.flatMap((domain) => Array.from({ length: hosts }, (_, n) => `h${n}.${domain}`));
      dns.answer('example.com', {
        TXT: [`v=spf1 ${domains.map((domain) => `mx:${domain}`).join(' ')} -all`],
      });
      for (const domain of domains) {
        const own = names.filter((name) => name.endsWith(`.${domain}`));
        dns.answer(domain, { MX: own.map((name, n) => `${n} ${name}`) });
      }
      for (const name of names)
        dns.answer(name, { A: [name === names.at(-1) ? address : '198.51.100.1'], AAAA: ['2001:db8::1'] });
      return names;
    }
    const cases: [terms: number, hosts: number, remoteIp: string, result: string][] = [
      [4, 10, '192.0.2.7', 'pass'],
      [4, 10, '192.0.2.8', 'fail'],
      [10, 10, '192.0.2.7', 'pass'],
      [10, 10, '2001:db8::1', 'pass'],
      [10, 10, '2001:db8::2', 'fail'],
      [11, 1, '192.0.2.7', 'permerror'],
      [1, 11, '192.0.2.7', 'permerror'],
      [20, 20, '192.0.2.7', 'permerror'],
    ];
    for (const [terms, hosts, remoteIp, result] of cases) {
      test(`${terms} mx terms of ${hosts} hosts, ${remoteIp}: ${result}`, async () => {
        const names = answerMx(terms, hosts, '192.0.2.7');
        assert.equal((await check(plain, { ...smtp, remoteIp })).spf.result, result);
        for (const name of names) assert.ok(dns.count(name) <= 2, name);
        assert.ok(dns.questions.length <= 220, `${dns.questions.length} questions`);
      });
    }

    test('a sender whose record needs too much does not escape the policy', async () => {
      answerMx(11, 10, '192.0.2.7');
      dns.answer('_dmarc.example.com', { TXT: ['v=DMARC1; p=reject'] });
      const { spf, dmarc } = await check(plain, smtp);
      assert.deepEqual([spf.result, dmarc.result], ['permerror', 'fail']);
    });
  });

  describe('names that DNS allows and host names do not', () => {
    const sender = { ...smtp, mailFrom: 'ada+x=y%z@example.com' };
    const records: [title: string, spf: string, asked: string, type: 'A' | 'MX' | 'TXT'][] = [
      ['the local part in a name', 'v=spf1 exists:%{l}._spf.%{d} -all', 'ada+x=y%z._spf.example.com', 'A'],
      ['an escaped local part', 'v=spf1 exists:%{L}._spf.%{d} -all', 'ada%2bx%3dy%25z._spf.example.com', 'A'],
      [
        'the address',
        'v=spf1 exists:%{S}.%{i}._spf.%{d} -all',
        'ada%2bx%3dy%25z%40example.com.192.0.2.7._spf.example.com',
        'A',
      ],
      ['a colon and a slash', 'v=spf1 a:foo:bar/baz.example.com -all', 'foo:bar/baz.example.com', 'A'],
      ['a backslash', 'v=spf1 a:foo\\bar.example.com -all', 'foo\\bar.example.com', 'A'],
      ['a space', 'v=spf1 exists:a%_b.example.com -all', 'a b.example.com', 'A'],
      ['of mail servers', 'v=spf1 mx:a+b.example.com -all', 'a+b.example.com', 'MX'],
      ['in an include', 'v=spf1 include:a=b.example.com -all', 'a=b.example.com', 'TXT'],
      ['in a redirect', 'v=spf1 redirect=a=b.example.com', 'a=b.example.com', 'TXT'],
    ];
    for (const [title, record, asked, type] of records) {
      test(`${title}: ${asked}`, async () => {
        dns.answer('example.com', { TXT: [record] });
        dns.answer('mx.example.com', { A: ['192.0.2.7'] });
        assert.notEqual((await check(plain, sender)).spf.result, 'pass');
        assert.ok(dns.count(asked, type) > 0, 'the name was asked');
        dns.answer(asked, {
          ...{ A: ['192.0.2.7'], MX: ['10 mx.example.com'], TXT: ['v=spf1 ip4:192.0.2.7 -all'] },
        });
        assert.equal((await check(plain, sender)).spf.result, 'pass');
        dns.answer(asked, 'SERVFAIL');
        assert.equal((await check(plain, sender)).spf.result, 'temperror');
      });
    }
  });
});

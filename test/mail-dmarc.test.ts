import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';
import { describeUnverified } from '../src/mailauth/signatures.ts';
import type { Answer } from './dns.ts';
import { check, dns, none, plain, publish, rsa, sign, smtp } from './signing.ts';

beforeEach(() => dns.reset());

describe('DMARC', () => {
  const record = (tags: string): Answer => ({ TXT: [`v=DMARC1; ${tags}`] });
  const reject = { result: 'fail', policy: 'reject', aligned: false };

  test('pass by SPF', async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    dns.answer('example.com', { TXT: ['v=spf1 ip4:192.0.2.7 -all'] });
    assert.deepEqual((await check(plain, smtp)).dmarc, { result: 'pass', policy: 'reject', aligned: true });
  });

  test('pass by DKIM', async () => {
    dns.answer('_dmarc.example.com', record('p=quarantine'));
    publish(rsa.publicKey);
    const { dmarc } = await check(await sign(plain));
    assert.deepEqual(dmarc, { result: 'pass', policy: 'quarantine', aligned: true });
  });

  for (const policy of ['none', 'quarantine', 'reject']) {
    test(`fail under p=${policy}`, async () => {
      dns.answer('_dmarc.example.com', record(`p=${policy}`));
      dns.answer('example.com', { TXT: ['v=spf1 -all'] });
      assert.deepEqual((await check(plain, smtp)).dmarc, { result: 'fail', policy, aligned: false });
    });
  }

  test('a pass of another domain does not count for the author', async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    dns.answer('esp.example', { TXT: ['v=spf1 ip4:192.0.2.7 -all'] });
    publish(rsa.publicKey, { domain: 'esp.example' });
    const signed = await sign(plain, { domain: 'esp.example' });
    const { spf, dkim, dmarc } = await check(signed, { ...smtp, mailFrom: 'bounce@esp.example' });
    assert.equal(spf.result, 'pass');
    assert.deepEqual(
      dkim.map(({ result, aligned }) => [result, aligned]),
      [['pass', false]],
    );
    assert.deepEqual(dmarc, reject);
  });

  const fromSub = plain.replace('ada@example.com', 'ada@news.example.com');
  const alignments: [string, string, string, string, boolean][] = [
    ['relaxed, of the parent', fromSub, 'example.com', 'p=reject', true],
    ['relaxed, of a sister', fromSub, 'mail.example.com', 'p=reject', true],
    ['relaxed, of a child', plain, 'mail.example.com', 'p=reject; adkim=r', true],
    ['strict, the same', plain, 'example.com', 'p=reject; adkim=s', true],
    ['strict, of a child', plain, 'mail.example.com', 'p=reject; adkim=s', false],
    ['strict, of the parent', fromSub, 'example.com', 'p=reject; adkim=s', false],
    ['a name that only ends alike', plain, 'notexample.com', 'p=reject', false],
  ];
  for (const [title, message, domain, tags, aligned] of alignments) {
    test(`alignment of DKIM: ${title}`, async () => {
      dns.answer('_dmarc.example.com', record(tags));
      publish(rsa.publicKey, { domain });
      const signed = await sign(message, { domain });
      const { dkim, dmarc } = await check(signed);
      assert.deepEqual(dkim, [{ result: 'pass', domain, selector: 's1', aligned }]);
      assert.deepEqual(dmarc, { result: aligned ? 'pass' : 'fail', policy: 'reject', aligned });
      // It is the domain that is aligned, whether or not the signature is good.
      const changed = await check(`${signed}And more.\r\n`);
      assert.deepEqual(changed.dkim, [{ result: 'fail', domain, selector: 's1', aligned }]);
      assert.deepEqual(changed.dmarc, reject);
    });
  }

  for (const [tags, result] of [
    ['p=reject', 'pass'],
    ['p=reject; aspf=s', 'fail'],
  ] as const) {
    test(`alignment of SPF: a child under ${tags}: ${result}`, async () => {
      dns.answer('_dmarc.example.com', record(tags));
      dns.answer('bounce.example.com', { TXT: ['v=spf1 ip4:192.0.2.7 -all'] });
      const { dmarc } = await check(plain, { ...smtp, mailFrom: 'x@bounce.example.com' });
      assert.equal(dmarc.result, result);
    });
  }

  test('without a record, signatures are compared by organization', async () => {
    publish(rsa.publicKey, { domain: 'mail.example.com' });
    const { dkim, dmarc } = await check(await sign(plain, { domain: 'mail.example.com' }));
    assert.equal(dkim[0]?.aligned, true);
    assert.deepEqual(dmarc, none);
  });

  test('a subdomain takes sp=, or else p=', async () => {
    dns.answer('_dmarc.example.com', record('p=reject; sp=quarantine'));
    assert.equal((await check(fromSub)).dmarc.policy, 'quarantine');
    assert.equal((await check(plain)).dmarc.policy, 'reject');
    dns.answer('_dmarc.example.com', record('p=reject'));
    assert.equal((await check(fromSub)).dmarc.policy, 'reject');
  });

  test("a subdomain's own record comes first", async () => {
    dns.answer('_dmarc.example.com', record('p=reject; sp=reject'));
    dns.answer('_dmarc.news.example.com', record('p=none'));
    assert.equal((await check(fromSub)).dmarc.policy, 'none');
  });

  const unread: [string, Answer][] = [
    ['no such name', 'NXDOMAIN'],
    ['a record of another kind', { TXT: ['hello'] }],
    ['two records', { TXT: ['v=DMARC1; p=reject', 'v=DMARC1; p=none'] }],
    ['a policy that is none', { TXT: ['v=DMARC1; p=refuse'] }],
  ];
  for (const [title, answer] of unread) {
    test(`${title}: none`, async () => {
      dns.answer('_dmarc.example.com', answer);
      assert.deepEqual((await check(plain)).dmarc, none);
    });
  }

  for (const answer of ['SERVFAIL', 'REFUSED', 'DROP'] as const) {
    test(`${answer} for the record: temperror`, async () => {
      dns.answer('_dmarc.example.com', answer);
      assert.deepEqual((await check(plain)).dmarc, { ...none, result: 'temperror' });
    });
  }

  test('a key that DNS did not answer is not a failure', async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    dns.answer('s1._domainkey.example.com', 'SERVFAIL');
    const { dkim, dmarc } = await check(await sign(plain), smtp);
    assert.deepEqual(dkim, [{ result: 'temperror', domain: 'example.com', selector: 's1', aligned: true }]);
    assert.deepEqual(dmarc, { result: 'temperror', policy: 'reject', aligned: null });
  });

  test('an SPF record that DNS did not answer is not a failure', async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    dns.answer('example.com', 'SERVFAIL');
    assert.deepEqual((await check(plain, smtp)).dmarc, {
      result: 'temperror',
      policy: 'reject',
      aligned: null,
    });
  });

  test('DNS names of a forger that do not answer hide nothing', async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    dns.answer('s1._domainkey.forger.example', 'DROP');
    dns.answer('forger.example', 'DROP');
    const { spf, dmarc } = await check(
      await sign(plain, { domain: 'forger.example' }),
      { ...smtp, mailFrom: 'x@forger.example' },
      5000,
    );
    assert.equal(spf.result, 'temperror');
    assert.deepEqual(dmarc, reject);
  });

  describe('a forger cannot avoid DMARC', () => {
    beforeEach(() => {
      dns.answer('_dmarc.example.com', record('p=reject'));
      dns.answer('example.com', { TXT: ['v=spf1 -all'] });
    });

    test('with a long line in the header', async () => {
      const { dkim, dmarc } = await check(`X: ${'y'.repeat(200_000)}\r\n${plain}`, smtp);
      assert.deepEqual(dkim, []);
      assert.deepEqual(dmarc, reject);
    });

    test('with ten signatures that each need another body hash', async () => {
      publish(rsa.publicKey);
      const signed = await sign(plain);
      const signature = signed.slice(0, -plain.length);
      const ten = Array.from({ length: 10 }, (_, i) => signature.replace(' s=', ` l=${999_999 + i}; s=`));
      const body = `${'x'.repeat(70)}\r\n`.repeat(160_000);
      const { dkim, dmarc } = await check(`${ten.join('')}${plain}${body}`, smtp);
      assert.deepEqual(
        dkim.map(({ result }) => result),
        [...Array(4).fill('fail'), ...Array(6).fill('policy')],
      );
      assert.deepEqual(dmarc, reject);
    });

    test('with a message that breaks the worker', async () => {
      const signed = await sign(plain);
      const { spf, dkim, dmarc } = await check(signed, smtp, 5000, async (raw) => describeUnverified(raw));
      assert.equal(spf.result, 'fail');
      assert.deepEqual(dkim, [{ result: 'policy', domain: 'example.com', selector: 's1', aligned: true }]);
      assert.deepEqual(dmarc, reject);
    });

    test('with a signature whose key name can be read in two ways', async () => {
      const signed = await sign(plain);
      for (const raw of [` ${signed}`, signed.replace('d=example.com;', 'd=example.com; D=example.com;')]) {
        assert.deepEqual((await check(raw, smtp)).dmarc, reject);
      }
    });

    test('with two addresses: the forger owns the first, the second is shown', async () => {
      dns.answer('forger.example', { TXT: ['v=spf1 +all'] });
      dns.answer('_dmarc.forger.example', record('p=reject'));
      const { spf, dmarc } = await check(plain.replace('Ada', '<eve@forger.example>'), {
        ...smtp,
        mailFrom: 'eve@forger.example',
      });
      assert.equal(spf.result, 'pass');
      assert.deepEqual(dmarc, reject);
    });
  });

  const authors: [string, string, policy: string | null][] = [
    ['no From', plain.replace(/^From: .*\r\n/, ''), null],
    ['an empty From', plain.replace(/^From: .*\r\n/, 'From: \r\n'), null],
    ['two From fields', `From: eve@example.com\r\n${plain}`, 'reject'],
    ['authors of two domains', plain.replace('Ada <', 'eve@example.net, <'), 'reject'],
    ['no header', '\r\nhello', null],
    ['nothing', '', null],
  ];
  for (const [title, message, policy] of authors) {
    test(`${title}: permerror`, async () => {
      dns.answer('_dmarc.example.com', record('p=reject'));
      assert.deepEqual((await check(message)).dmarc, { result: 'permerror', policy, aligned: null });
    });
  }

  test('a signature is not aligned with an author that it does not cover', async () => {
    publish(rsa.publicKey);
    const { dkim } = await check(`From: ceo@example.com\r\n${await sign(plain)}`);
    assert.deepEqual(
      dkim.map(({ result, aligned }) => [result, aligned]),
      [['policy', false]],
    );
  });

  test('two authors of one domain count as one', async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    publish(rsa.publicKey);
    const signed = await sign(plain.replace('Ada <', 'eve@example.com, <'));
    assert.equal((await check(signed)).dmarc.result, 'pass');
  });
});

/** Mail with several authors, or with a From that cannot be read, does not escape the policy of any of its authors. */
import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';
import { splitMessage } from '../src/mailauth/dkim.ts';
import { readUnsigned } from '../src/mailauth/signatures.ts';
import { parseMessage } from '../src/mime/parse.ts';
import { composeMessage } from '../src/receiving/compose.ts';
import { check, checkWithReasons, dns, plain, publish, rsa, sign, smtp } from './signing.ts';

beforeEach(() => dns.reset());

const identity = {
  ...{ id: 'i', publicId: 'p', ownerId: 'o', kind: 'email' as const, value: 'bob@example.net' },
  ...{ valueKey: 'bob@example.net', verified: true, inboxId: 'inbox', spamId: 'spam' },
};

/** What a user sees of a message with these lines as its From. */
async function receive(...from: string[]) {
  const raw = plain.replace('From: Ada <ada@example.com>', from.join('\r\n'));
  const authentication = await checkWithReasons(raw, { ...smtp, mailFrom: 'x@evil.example' });
  const parsed = await parseMessage(Buffer.from(raw));
  const { mailbox, ...message } = composeMessage({
    ...{ id: 'm', threadId: 't', source: 'smtp', size: raw.length, tag: null, receivedAt: new Date(0) },
    envelope: { ...smtp, rcptTo: ['bob@example.net'], tls: null },
    ...{ identity, parsed, authentication },
  });
  return {
    mailbox: mailbox.kind,
    from: message.from,
    dmarc: (message.authentication ?? authentication).dmarc,
  };
}

beforeEach(() => {
  dns.answer('_dmarc.bank.example', { TXT: ['v=DMARC1; p=reject'] });
  dns.answer('_dmarc.shop.example', { TXT: ['v=DMARC1; p=quarantine'] });
  dns.answer('_dmarc.open.example', { TXT: ['v=DMARC1; p=none'] });
  dns.answer('evil.example', { TXT: ['v=spf1 +all'] });
});

describe('where an author has a policy that enforces, the mail is spam', () => {
  const cases: [title: string, from: string[], policy: string, fault: RegExp][] = [
    ['two authors', ['From: ceo@bank.example, a@evil.example'], 'reject', /authors of 2 domains/],
    ['the other one first', ['From: a@evil.example, ceo@bank.example'], 'reject', /authors of 2 domains/],
    ['the strictest counts', ['From: a@shop.example, a@bank.example'], 'reject', /authors of 2 domains/],
    ['quarantine', ['From: a@evil.example, a@shop.example'], 'quarantine', /authors of 2 domains/],
    ['of a subdomain', ['From: a@evil.example, a@pay.bank.example'], 'reject', /authors of 2 domains/],
    ['in a group', ['From: Us: ceo@bank.example, a@evil.example;'], 'reject', /authors of 2 domains/],
    ['two From fields', ['From: a@evil.example', 'From: ceo@bank.example'], 'reject', /2 From fields/],
    ['of one domain', ['From: a@bank.example', 'From: b@bank.example'], 'reject', /2 From fields/],
    ['a comment', ['From: Name,(<ceo@bank.example>)'], 'reject', /cannot be read/],
    ['a quoted domain', ['From: ceo@"bank.example"'], 'reject', /cannot be read/],
    ['a quoted address with a name', ['From: <"Bank <ceo@bank.example>">'], 'reject', /cannot be read/],
    ['an apostrophe', ["From: 'ceo@bank.example'"], 'reject', /cannot be read/],
    ['another at sign', ['From: ceo＠bank.example'], 'reject', /cannot be read/],
    ['a soft hyphen', ['From: ceo@ba\u00adnk.example'], 'reject', /cannot be read/],
    ['a space without width', ['From: <ceo@ba\u200bnk.example>'], 'reject', /cannot be read/],
    ['an ideographic full stop', ['From: <ceo@bank\u3002example>'], 'reject', /cannot be read/],
    ['a wide full stop', ['From: <ceo@bank\uff0eexample>'], 'reject', /cannot be read/],
    ['a letter in a circle', ['From: <ceo@\u24d1ank.example>'], 'reject', /cannot be read/],
    ['a domain in brackets', ['From: <ceo@[bank.example]>'], 'reject', /cannot be read/],
    ['two dots', ['From: <ceo@bank..example>'], 'reject', /cannot be read/],
    ['a name alone', ['From: "bank.example"'], 'reject', /cannot be read/],
    ['encoded', ['From: =?utf-8?q?ceo=40bank=2Eexample?='], 'reject', /cannot be read/],
    ['and one that can be read', ['From: a@evil.example', 'From: "bank.example"'], 'reject', /2 From fields/],
    ...['/', '#', '?', '\\'].flatMap((sign): typeof cases => [
      [
        `"${sign}" after the domain`,
        [`From: ceo@bank.example${sign}evil.example`],
        'reject',
        /cannot be read/,
      ],
      [`"${sign}" before it`, [`From: a@evil.example${sign}@bank.example`], 'reject', /cannot be read/],
    ]),
  ];
  for (const [title, from, policy, fault] of cases) {
    test(`${title}: ${from.join(' ')}`, async () => {
      const { mailbox, dmarc } = await receive(...from);
      assert.equal(mailbox, 'spam');
      assert.deepEqual([dmarc.result, dmarc.policy, dmarc.aligned], ['permerror', policy, null]);
      assert.match(dmarc.reason ?? '', fault);
      assert.match(dmarc.reason ?? '', policy === 'reject' ? /bank\.example asks/ : /shop\.example asks/);
    });
  }

  test('more domains than are looked up', async () => {
    const authors = Array.from({ length: 30 }, (_, n) => `a@n${n}.example`);
    const { mailbox, dmarc } = await receive(`From: ${authors.join(', ')}, ceo@bank.example`);
    assert.equal(mailbox, 'spam');
    assert.match(dmarc.reason ?? '', /too many/);
    assert.ok(dns.questions.length < 60, `${dns.questions.length} questions`);
  });

  test('more addresses than are read', async () => {
    const { mailbox, dmarc } = await receive(`From: ${'a@evil.example, '.repeat(200)}ceo@bank.example`);
    assert.equal(mailbox, 'spam');
    assert.match(dmarc.reason ?? '', /too many/);
  });

  test('a longer field than is read', async () => {
    const { mailbox, dmarc } = await receive(`From: ${'x'.repeat(20_000)} <ceo@bank.example>`);
    assert.equal(mailbox, 'spam');
    assert.match(dmarc.reason ?? '', /too long/);
  });

  test('a domain of the forger that does not answer hides nothing', async () => {
    dns.answer('_dmarc.slow.example', 'DROP');
    const { mailbox, dmarc } = await receive('From: a@slow.example, ceo@bank.example');
    assert.deepEqual([mailbox, dmarc.policy], ['spam', 'reject']);
  });
});

describe('where none enforces, the mail stays in the inbox, with the reason', () => {
  for (const [from, reason] of [
    ['From: a@evil.example, a@none.example', /authors of 2 domains/],
    ['From: Mail Delivery Subsystem <MAILER-DAEMON>', /cannot be read/],
    ['From: ', /cannot be read/],
    ['X-From: a@bank.example', /no From field/],
  ] as const) {
    test(from, async () => {
      const { mailbox, dmarc } = await receive(from);
      assert.equal(mailbox, 'inbox');
      assert.deepEqual([dmarc.result, dmarc.policy, dmarc.aligned], ['permerror', null, null]);
      assert.match(dmarc.reason ?? '', reason);
    });
  }
});

test('policies that do not enforce are shown, and keep no mail out of the inbox', async () => {
  const { mailbox, dmarc } = await receive('From: a@evil.example, a@open.example');
  assert.deepEqual([mailbox, dmarc.result, dmarc.policy], ['inbox', 'permerror', 'none']);
});

describe('a quoted address is read as the address that it means', () => {
  for (const from of [
    '<"ceo@bank.example">',
    'Bank <"ceo@bank.example">',
    '"ceo@bank.example"',
    '<"ceo\\@bank.example">',
  ]) {
    test(from, async () => {
      const received = await receive(`From: ${from}`);
      assert.equal(received.mailbox, 'spam');
      assert.equal(received.from?.address, 'ceo@bank.example');
      assert.deepEqual([received.dmarc.result, received.dmarc.policy], ['fail', 'reject']);
      assert.match(received.dmarc.reason ?? '', /bank\.example/);
    });
  }

  test('a quoted name stays a name', async () => {
    const { from, dmarc } = await receive('From: "ceo@bank.example" <a@evil.example>');
    assert.deepEqual(from, { name: 'ceo@bank.example', address: 'a@evil.example' });
    assert.equal(dmarc.result, 'none');
    const { to } = await parseMessage(Buffer.from('To: "bob@example.com" bob@example.net\r\n\r\n'));
    assert.deepEqual(to, [{ name: 'bob@example.com', address: 'bob@example.net' }]);
  });
});

describe('a domain is the one that is shown', () => {
  test('a signature of the part before a "/" is not aligned', async () => {
    publish(rsa.publicKey, { domain: 'evil.example' });
    for (const sign_ of ['/', '#', '?', '\\']) {
      const raw = await sign(plain.replace('ada@example.com', `a@evil.example${sign_}open.example`), {
        domain: 'evil.example',
      });
      const { dkim, dmarc } = await check(raw);
      assert.deepEqual([dkim[0]?.result, dkim[0]?.aligned], ['pass', false], sign_);
      assert.equal(dmarc.result, 'permerror');
    }
  });

  test('Unicode and A-labels are the same domain, whoever writes which', async () => {
    dns.answer('_dmarc.xn--bcher-kva.example', { TXT: ['v=DMARC1; p=reject'] });
    publish(rsa.publicKey, { domain: 'xn--bcher-kva.example' });
    const from = plain.replace(
      'ada@example.com',
      'a@xn--bcher-kva.example, b@bücher.example, c@BÜCHER.example',
    );
    const { dkim, dmarc } = await check(await sign(from, { domain: 'xn--bcher-kva.example' }));
    assert.deepEqual([dkim[0]?.result, dkim[0]?.aligned, dmarc.result], ['pass', true, 'pass']);
  });
});

test('authors that need the charset of the body are left to the worker: its structure is read for them', () => {
  const read = (from: string) => {
    const raw = Buffer.from(`From: ${from} <ada@example.com>\r\n\r\nx`, 'latin1');
    return readUnsigned(raw, splitMessage(raw));
  };
  assert.equal(read('\xe4'), null);
  assert.deepEqual(read('Ada')?.authors.domains, ['example.com']);
});

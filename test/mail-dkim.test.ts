import assert from 'node:assert/strict';
import {
  createHash,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  sign as signBytes,
} from 'node:crypto';
import { beforeEach, describe, test } from 'node:test';
import { hashBody } from '../src/mailauth/canonical.ts';
import type { Answer } from './dns.ts';
import { checkDkim, checkWithReasons, dns, otherRsa, plain, publish, rsa, sign } from './signing.ts';

beforeEach(() => dns.reset());

const weakRsa = generateKeyPairSync('rsa', { modulusLength: 512 });
const ed25519 = generateKeyPairSync('ed25519');

/** A signer for signatures that a normal signer refuses to write. Signs From only, and an empty body. */
async function signWith(tags: string, key: KeyObject): Promise<string> {
  const bodyHash = createHash('sha256').update('').digest('base64');
  const field = `DKIM-Signature: v=1; a=rsa-sha256; c=simple/relaxed; h=from; bh=${bodyHash}; ${tags}; b=`;
  const from = 'From: Ada <ada@example.com>';
  const signature = signBytes('sha256', Buffer.from(`${from}\r\n${field}`), key).toString('base64');
  return `${field}${signature}\r\n${from}\r\n\r\n`;
}

describe('DKIM', () => {
  const passed = { result: 'pass', domain: 'example.com', selector: 's1', aligned: true };

  test('rsa-sha256', async () => {
    publish(rsa.publicKey);
    assert.deepEqual(await checkDkim(await sign(plain)), [passed]);
  });

  test('ed25519-sha256', async () => {
    publish(ed25519.publicKey);
    assert.deepEqual(await checkDkim(await sign(plain, { key: ed25519.privateKey })), [passed]);
  });

  test('simple canonicalization, where every byte counts', async () => {
    publish(rsa.publicKey);
    const message = plain.replace('Subject: ', 'SUBJECT:  ').replace('Nothing', ' Nothing  ');
    const signed = await sign(message, { canonicalization: 'simple/simple' });
    assert.match(signed, /c=simple\/simple/);
    assert.deepEqual(await checkDkim(signed), [passed]);
    assert.deepEqual(await checkDkim(signed.replaceAll('\r\n', '\n')), [passed]);
    assert.equal((await checkDkim(signed.replace('SUBJECT:  ', 'SUBJECT: ')))[0]?.result, 'fail');
  });

  test('a key that does not fit into UDP', async () => {
    const long = generateKeyPairSync('rsa', { modulusLength: 4096 });
    publish(long.publicKey);
    assert.deepEqual(await checkDkim(await sign(plain, { key: long.privateKey })), [passed]);
  });

  test('bare LF, and no line end after the last line', async () => {
    publish(rsa.publicKey);
    const signed = await sign(plain);
    assert.deepEqual(await checkDkim(signed.replaceAll('\r\n', '\n')), [passed]);
    assert.deepEqual(await checkDkim(signed.replace(/\r\n$/, '')), [passed]);
    assert.deepEqual(await checkDkim(signed.replace(/\r\n$/, '').replaceAll('\r\n', '\n')), [passed]);
    const unended = await sign(plain.replace(/\r\n$/, ''));
    assert.deepEqual(await checkDkim(unended), [passed]);
  });

  test('a header alone', async () => {
    publish(rsa.publicKey);
    const signed = await sign('From: ada@example.com\r\n\r\n');
    assert.deepEqual(await checkDkim(signed), [passed]);
    assert.deepEqual(await checkDkim(signed.replace(/\r\n\r\n$/, '')), [passed]);
  });

  for (const [title, end] of [
    ['CRLF', '\r\n'],
    ['LF', '\n'],
  ] as const) {
    test(`a body of many chunks, by ${title}`, async () => {
      publish(rsa.publicKey);
      // Every place in a line, CR and LF apart among them, is once at the end of a chunk of 64 KiB.
      const line = `${'a b  c'.repeat(10)}é\r\n`;
      const signed = await sign(`${plain}${line.repeat(8000)}`);
      assert.deepEqual(await checkDkim(signed.replaceAll('\r\n', end)), [passed]);
    });
  }

  const broken: [string, (signed: string) => string][] = [
    ['a changed body', (signed) => signed.replace('algebraic', 'floral')],
    ['a longer body', (signed) => `${signed}And more.\r\n`],
    ['a changed header', (signed) => signed.replace('Notes', 'Votes')],
    ['another From', (signed) => signed.replace('ada@example.com', 'eve@example.com')],
  ];
  for (const [title, change] of broken) {
    test(`${title}: fail`, async () => {
      publish(rsa.publicKey);
      const signed = await sign(plain);
      assert.notEqual(change(signed), signed);
      assert.deepEqual(await checkDkim(change(signed)), [{ ...passed, result: 'fail' }]);
    });
  }

  test('the key of another signer: fail', async () => {
    publish(otherRsa.publicKey);
    assert.deepEqual(await checkDkim(await sign(plain)), [{ ...passed, result: 'fail' }]);
  });

  test('an expired signature: fail', async () => {
    publish(rsa.publicKey);
    const signed = await sign(plain, { expires: new Date(Date.now() - 86_400_000) });
    assert.match(signed, /; x=\d+/);
    assert.deepEqual(await checkDkim(signed), [{ ...passed, result: 'fail' }]);
    const fresh = await sign(plain, { expires: new Date(Date.now() + 86_400_000) });
    assert.deepEqual(await checkDkim(fresh), [passed]);
  });

  const key = rsa.publicKey.export({ type: 'spki', format: 'der' }).toString('base64');
  const keys: [string, Answer, string][] = [
    ['no such name', 'NXDOMAIN', 'permerror'],
    ['no record', { A: ['192.0.2.1'] }, 'permerror'],
    ['a revoked key', { TXT: ['v=DKIM1; k=rsa; p='] }, 'permerror'],
    ['no key in the record', { TXT: ['hello'] }, 'permerror'],
    ['a key that is none', { TXT: ['v=DKIM1; k=rsa; p=AAAA'] }, 'permerror'],
    ['a key of another version', { TXT: [`v=DKIM2; k=rsa; p=${key}`] }, 'permerror'],
    ['a key for something else', { TXT: [`v=DKIM1; s=chat; p=${key}`] }, 'permerror'],
    ['a key for SHA-1 only', { TXT: [`v=DKIM1; h=sha1; p=${key}`] }, 'permerror'],
    ['SERVFAIL', 'SERVFAIL', 'temperror'],
    ['REFUSED', 'REFUSED', 'temperror'],
    ['no answer', 'DROP', 'temperror'],
  ];
  for (const [title, answer, result] of keys) {
    test(`${title}: ${result}`, async () => {
      dns.answer('s1._domainkey.example.com', answer);
      assert.deepEqual(await checkDkim(await sign(plain)), [{ ...passed, result }]);
    });
  }

  test('a selector that is not a valid DNS name: permerror', async () => {
    const selector = 'x'.repeat(64);
    const signed = (await sign(plain)).replace('s=s1;', `s=${selector};`);
    assert.deepEqual(await checkDkim(signed), [{ ...passed, selector, result: 'permerror' }]);
  });

  test('RSA of 512 bits: policy', async () => {
    publish(weakRsa.publicKey);
    const signed = await sign(plain, { key: weakRsa.privateKey });
    assert.deepEqual(await checkDkim(signed), [{ ...passed, result: 'policy' }]);
  });

  test('body text after the signed length: policy', async () => {
    publish(rsa.publicKey);
    const signed = await sign(plain, { maxBodyLength: 10 });
    assert.match(signed, /; l=10;/);
    assert.deepEqual(await checkDkim(signed), [{ ...passed, result: 'policy' }]);
  });

  test('From is not signed: permerror', async () => {
    publish(rsa.publicKey);
    const signed = (await sign(plain)).replace('To: From;', 'To;');
    assert.deepEqual(await checkDkim(signed), [{ ...passed, result: 'permerror' }]);
  });

  test('two signatures, one of which verifies, in the order of the message', async () => {
    publish(rsa.publicKey);
    publish(otherRsa.publicKey, { domain: 'esp.example', selector: 'k2' });
    const inner = await sign(plain);
    const signed = await sign(inner.replace(/ b=..../, ' b=AAAA'), {
      domain: 'esp.example',
      selector: 'k2',
      key: otherRsa.privateKey,
    });
    assert.deepEqual(await checkDkim(signed), [
      { result: 'pass', domain: 'esp.example', selector: 'k2', aligned: false },
      { ...passed, result: 'fail' },
    ]);
  });

  test('a key that DNS does not answer delays no other', async () => {
    publish(rsa.publicKey);
    dns.answer('k2._domainkey.esp.example', 'DROP');
    const signed = await sign(await sign(plain), { domain: 'esp.example', selector: 'k2' });
    const results = await checkDkim(signed);
    assert.deepEqual(
      results.map(({ result }) => result),
      ['temperror', 'pass'],
    );
  });

  test('only the first ten signatures are verified, and one entry says how many are not', async () => {
    publish(rsa.publicKey);
    let signed = plain;
    for (let count = 0; count < 12; count += 1) signed = await sign(signed, { selector: `s${count}` });
    const { dkim } = await checkWithReasons(signed);
    assert.deepEqual(
      dkim.map(({ selector }) => selector),
      ['s11', 's10', 's9', 's8', 's7', 's6', 's5', 's4', 's3', 's2', null],
    );
    assert.deepEqual(dkim.at(-1), {
      ...{ result: 'policy', domain: null, selector: null, aligned: false },
      reason: 'Only the first 10 signatures are checked; the message has 2 more.',
    });
    assert.equal(dns.count('s0._domainkey.example.com'), 0);
  });

  test('an invalid name is not returned', async () => {
    const signed = (await sign(plain)).replace('d=example.com;', 'd=exa\u0000mple com;');
    const [signature] = await checkDkim(signed);
    assert.equal(signature?.domain, null);
  });

  const tags: [string, (signed: string) => string, string][] = [
    ['another version', (signed) => signed.replace(' v=1;', ' v=2;'), 'neutral'],
    ['no version', (signed) => signed.replace(' v=1;', ''), 'neutral'],
    ['an unknown algorithm', (signed) => signed.replace('a=rsa-sha256', 'a=rsa-md5'), 'neutral'],
    ['an unknown canonicalization', (signed) => signed.replace('c=relaxed/relaxed', 'c=nofws'), 'neutral'],
    ['a length that is no number', (signed) => signed.replace(' s=s1;', ' s=s1; l=ten;'), 'neutral'],
    ['for another domain', (signed) => signed.replace(' s=s1;', ' s=s1; i=@example.net;'), 'permerror'],
    ['for nobody', (signed) => signed.replace(' s=s1;', ' s=s1; i=5;'), 'permerror'],
    ['a length beyond the body', (signed) => signed.replace(' s=s1;', ' s=s1; l=99999;'), 'fail'],
  ];
  for (const [title, change, result] of tags) {
    test(`${title}: ${result}`, async () => {
      publish(rsa.publicKey);
      const signed = await sign(plain);
      assert.match(signed, /^DKIM-Signature:\s+v=1; a=rsa-sha256; c=relaxed\/relaxed;/);
      assert.notEqual(change(signed), signed);
      assert.equal((await checkDkim(change(signed)))[0]?.result, result);
    });
  }

  test('a tag given twice: the signature cannot be read', async () => {
    publish(rsa.publicKey);
    const signed = (await sign(plain)).replace(' s=s1;', ' s=s1; s=s1;');
    assert.deepEqual(await checkDkim(signed), [
      { result: 'neutral', domain: null, selector: null, aligned: false },
    ]);
  });

  test('a key in the form of the RFC (RSAPublicKey)', async () => {
    const key = rsa.publicKey.export({ type: 'pkcs1', format: 'der' }).toString('base64');
    dns.answer('s1._domainkey.example.com', { TXT: [`p=${key}`] });
    assert.deepEqual(await checkDkim(await sign(plain)), [passed]);
  });

  test('the signed sample of RFC 8463', async () => {
    const rsaKey = [
      'MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRiGs5V6NpP3idY6Wk08a5qhdR6wy5bdOKb2jLQiY/J16JYi0Qvx/b',
      'yYzCNb3W91y3FutACDfzwQ/BC/e/8uBsCR+yz1Lxj+PL6lHvqMKrM3rG4hstT5QjvHO9PzoxZyVYLzBfO2EeC3Ip3G+2kryOTIKT+l',
      '/K4w3QIDAQAB',
    ].join('');
    const domain = 'football.example.com';
    dns.answer(`brisbane._domainkey.${domain}`, {
      TXT: ['v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo='],
    });
    dns.answer(`test._domainkey.${domain}`, { TXT: [`v=DKIM1; k=rsa; p=${rsaKey}`] });
    const message = [
      'DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed;',
      ' d=football.example.com; i=@football.example.com;',
      ' q=dns/txt; s=brisbane; t=1528637909; h=from : to :',
      ' subject : date : message-id : from : subject : date;',
      ' bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;',
      ' b=/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11Bus',
      ' Fa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw==',
      'DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed;',
      ' d=football.example.com; i=@football.example.com;',
      ' q=dns/txt; s=test; t=1528637909; h=from : to : subject :',
      ' date : message-id : from : subject : date;',
      ' bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;',
      ' b=F45dVWDfMbQDGHJFlXUNB2HKfbCeLRyhDXgFpEL8GwpsRe0IeIixNTe3',
      ' DhCVlUrSjV4BwcVcOF6+FF3Zo9Rpo1tFOeS9mPYQTnGdaSGsgeefOsk2Jz',
      ' dA+L10TeYt9BgDfQNZtKdN1WO//KgIqXP7OdEFE4LjFYNcUxZQ4FADY+8=',
      'From: Joe SixPack <joe@football.example.com>',
      'To: Suzie Q <suzie@shopping.example.net>',
      'Subject: Is dinner ready?',
      'Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)',
      'Message-ID: <20030712040037.46341.5F8J@football.example.com>',
      '',
      'Hi.',
      '',
      'We lost the game.  Are you hungry yet?',
      '',
      'Joe.',
      '',
    ].join('\r\n');
    assert.deepEqual(await checkDkim(message), [
      { result: 'pass', domain, selector: 'brisbane', aligned: true },
      { result: 'pass', domain, selector: 'test', aligned: true },
    ]);
  });

  const forgedSelectors = ['k._domainkey.forger.example/é', 'k._domainkey.forger.example?é'].concat(
    ['#é', '\\é', '\0', '\0x', '/x', '@x', ':1'].map((end) => `k._domainkey.forger.example${end}`),
  );
  for (const selector of forgedSelectors) {
    test(`a selector that would lead to another domain's key is refused: ${JSON.stringify(selector)}`, async () => {
      publish(otherRsa.publicKey, { domain: 'forger.example', selector: 'k' });
      const signed = await signWith(`d=example.com; s=${selector}`, otherRsa.privateKey);
      assert.deepEqual(await checkDkim(signed), [
        { result: 'neutral', domain: 'example.com', selector: null, aligned: true },
      ]);
      assert.equal(dns.count('k._domainkey.forger.example'), 0);
    });
  }

  for (const [identity, result] of [
    ['ada=40mail@example.com', 'pass'],
    ['=40example.com', 'pass'],
    ['ada@mail=2Eexample.com', 'pass'],
    ['ada@\r\n example.com', 'pass'],
    ['@b=C3=BCcher.example.com', 'pass'],
    ['ada@example.com=40example.net', 'permerror'],
    ['ada=', 'permerror'],
  ] as const) {
    test(`i= is quoted-printable (RFC 6376 §2.11): ${JSON.stringify(identity)}: ${result}`, async () => {
      publish(rsa.publicKey);
      const signed = await signWith(`d=example.com; s=s1; i=${identity}`, rsa.privateKey);
      assert.equal((await checkDkim(signed))[0]?.result, result);
    });
  }

  test('an internationalized domain is queried by its A-label, and i= may have either form', async () => {
    publish(rsa.publicKey, { domain: 'xn--bcher-kva.example' });
    for (const domain of ['bücher.example', 'xn--bcher-kva.example']) {
      for (const identity of ['@bücher.example', '@mail.xn--bcher-kva.example']) {
        const signed = await signWith(`d=${domain}; s=s1; i=${identity}`, rsa.privateKey);
        assert.equal((await checkDkim(signed))[0]?.result, 'pass', `${domain} ${identity}`);
      }
    }
  });

  const p = rsa.publicKey.export({ type: 'spki', format: 'der' }).toString('base64');
  for (const record of [
    `v=DKIM1;; k=rsa; ; p=${p};;`,
    `k=RSA; s=Email; p=${p}`,
    `v=dkim1; k=; p=${p}`,
    `V=DKIM1; K=rsa; P=${p}`,
    `a note; v=DKIM1; x-note=hello; p=${p}; k=rsa; k=rsa`,
  ]) {
    test(`a key as people write it: ${record.replace(p, '…')}`, async () => {
      dns.answer('s1._domainkey.example.com', { TXT: ['v=spf1 -all', record] });
      assert.deepEqual(await checkDkim(await sign(plain)), [passed]);
    });
  }

  for (const more of ['x-y=1', '1y=1', 't=', '']) {
    test(`a signature as people write it: ;${more};`, async () => {
      publish(rsa.publicKey);
      assert.deepEqual(await checkDkim(await signWith(`d=example.com; s=s1;${more};`, rsa.privateKey)), [
        passed,
      ]);
    });
  }

  test('keys that need too much CPU: policy', async () => {
    const large = generateKeyPairSync('rsa', { modulusLength: 1024, publicExponent: 0x10001 });
    const { n = '' } = large.publicKey.export({ format: 'jwk' });
    const odd = createPublicKey({ key: { kty: 'RSA', n, e: n }, format: 'jwk' });
    publish(odd);
    assert.deepEqual(await checkDkim(await sign(plain)), [{ ...passed, result: 'policy' }]);
  });

  test("a key of another kind than the signature's: permerror", async () => {
    publish(ed25519.publicKey);
    assert.deepEqual(await checkDkim(await sign(plain)), [{ ...passed, result: 'permerror' }]);
  });

  test('a line of 60 KiB in the header', async () => {
    publish(rsa.publicKey);
    const to = `To: ${Array.from({ length: 2000 }, (_, i) => `someone.${i}@example.net`).join(', ')}`;
    assert.ok(to.length > 50_000);
    assert.deepEqual(await checkDkim(await sign(plain.replace(/^To: .*$/m, to))), [passed]);
  });
});

test('a body of more than one chunk is hashed as a whole', () => {
  const text = 'a line\r\n'.repeat(5000);
  for (const end of ['', '\r\n'.repeat(20_000), ' \t'.repeat(20_000), `${'\r\n'.repeat(20_000)}x\r\n`]) {
    const expected = end.includes('x') ? text + end : text;
    const { hash, length } = hashBody(Buffer.from(text + end), 'relaxed', 'sha256');
    assert.equal(length, expected.length);
    assert.equal(hash.toString('hex'), createHash('sha256').update(expected).digest('hex'));
  }
});

import assert from 'node:assert/strict';
import { generateKeyPairSync, type KeyObject } from 'node:crypto';
import { after, beforeEach, describe, test } from 'node:test';
import fc from 'fast-check';
import { sealMessage } from 'mailauth/lib/arc/index.js';
import { dkimSign } from 'mailauth/lib/dkim/sign.js';
import { makeResolver } from '../src/lib/resolver.ts';
import { type Envelope, makeAuthenticate, type Verify } from '../src/mail/authenticate.ts';
import { leaveUnverified } from '../src/mail/signatures.ts';
import { type Answer, startDns } from './dns.ts';

const dns = await startDns();
after(() => dns.close());
beforeEach(() => dns.reset());

const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 });
const otherRsa = generateKeyPairSync('rsa', { modulusLength: 2048 });
const weakRsa = generateKeyPairSync('rsa', { modulusLength: 512 });
const ed25519 = generateKeyPairSync('ed25519');

const smtp: Envelope = { mailFrom: 'ada@example.com', remoteIp: '192.0.2.7', helo: 'mail.example.com' };
const overHttp: Envelope = { mailFrom: null, remoteIp: null, helo: null };
const plain = [
  'From: Ada <ada@example.com>',
  'To: bob@example.net',
  'Subject: Notes on the engine',
  '',
  'It weaves algebraic patterns.',
  'Nothing else.',
  '',
].join('\r\n');

/** With nothing remembered from the test before. */
function check(raw: Buffer | string, envelope: Envelope = overHttp, deadlineMs = 5000, verify?: Verify) {
  const authenticate = makeAuthenticate({
    dnsServers: [dns.address],
    mailHost: 'mx.example.net',
    deadlineMs,
  });
  return authenticate(Buffer.from(raw), envelope, verify);
}

async function checkDkim(raw: Buffer | string, deadlineMs?: number) {
  return (await check(raw, overHttp, deadlineMs)).dkim;
}

async function sign(
  message: string,
  options: {
    domain?: string;
    selector?: string;
    key?: KeyObject;
    expires?: Date;
    maxBodyLength?: number;
    canonicalization?: string;
  } = {},
): Promise<string> {
  const { domain = 'example.com', selector = 's1', key = rsa.privateKey, expires, maxBodyLength } = options;
  const { canonicalization = 'relaxed/relaxed' } = options;
  const { signatures, errors } = await dkimSign(message, {
    canonicalization,
    signatureData: [
      {
        signingDomain: domain,
        selector,
        privateKey: key.export({ type: 'pkcs8', format: 'pem' }) as string,
        ...(maxBodyLength !== undefined && { maxBodyLength }),
      },
    ],
    ...(expires && { expires, signTime: new Date(expires.getTime() - 3_600_000) }),
  } as unknown as Parameters<typeof dkimSign>[1]);
  assert.deepEqual(errors, []);
  return signatures + message;
}

function publish(key: KeyObject, { domain = 'example.com', selector = 's1' } = {}): void {
  const der = key.export({ type: 'spki', format: 'der' });
  const type = key.asymmetricKeyType === 'ed25519' ? 'ed25519' : 'rsa';
  const value = (type === 'ed25519' ? der.subarray(-32) : der).toString('base64');
  dns.answer(`${selector}._domainkey.${domain}`, { TXT: [`v=DKIM1; k=${type}; p=${value}`] });
}

const none = { result: 'none', policy: null, aligned: null };

test('a message of which DNS knows nothing: the shape of the sample event', async () => {
  assert.deepEqual(await check(plain), {
    spf: { result: 'none', domain: null },
    dkim: [],
    dmarc: none,
    arc: { result: 'none' },
  });
});

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

  test('no answer: temperror by the deadline', async () => {
    dns.answer('example.com', 'DROP');
    const startedAt = performance.now();
    const { spf, dmarc } = await check(plain, smtp, 400);
    assert.deepEqual(spf, { result: 'temperror', domain: 'example.com' });
    assert.deepEqual(dmarc, none, 'what was answered is kept');
    assert.ok(performance.now() - startedAt < 1500);
  });

  test('of <> the HELO name is checked', async () => {
    dns.answer('mail.example.com', { TXT: ['v=spf1 ip4:192.0.2.7 -all'] });
    const { spf } = await check(plain, { ...smtp, mailFrom: null });
    assert.deepEqual(spf, { result: 'pass', domain: 'mail.example.com' });
  });

  test('of <> from a bare address there is nothing to check', async () => {
    for (const helo of ['[192.0.2.7]', '192.0.2.7', '2001:db8::7', '-', '']) {
      const { spf } = await check(plain, { ...smtp, mailFrom: null, helo });
      assert.deepEqual(spf, { result: 'none', domain: null }, helo);
    }
  });

  test('an IPv4 address in IPv6 clothes is IPv4', async () => {
    dns.answer('example.com', { TXT: ['v=spf1 ip4:192.0.2.7 -all'] });
    assert.equal((await check(plain, { ...smtp, remoteIp: '::ffff:192.0.2.7' })).spf.result, 'pass');
  });

  test('IPv6', async () => {
    dns.answer('example.com', { TXT: ['v=spf1 a -all'], AAAA: ['2001:db8::7'] });
    assert.equal((await check(plain, { ...smtp, remoteIp: '2001:db8::7' })).spf.result, 'pass');
    assert.equal((await check(plain, { ...smtp, remoteIp: '2001:db8::8' })).spf.result, 'fail');
  });

  test('over HTTP nobody connected, and nothing is asked', async () => {
    dns.answer('example.com', { TXT: ['v=spf1 +all'] });
    const { spf } = await check(plain, { ...smtp, remoteIp: null });
    assert.deepEqual(spf, { result: 'none', domain: null });
    assert.equal(dns.count('example.com'), 0);
  });

  test('a record that leads to hundreds of names is not followed to the end', async () => {
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

  test('a key longer than UDP carries', async () => {
    const long = generateKeyPairSync('rsa', { modulusLength: 4096 });
    publish(long.publicKey);
    assert.deepEqual(await checkDkim(await sign(plain, { key: long.privateKey })), [passed]);
  });

  test('bare LF and no end of the last line', async () => {
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

  test("another's key: fail", async () => {
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
      assert.deepEqual(await checkDkim(await sign(plain), 400), [{ ...passed, result }]);
    });
  }

  test('a selector that DNS cannot hold: permerror', async () => {
    const selector = 'x'.repeat(64);
    const signed = (await sign(plain)).replace('s=s1;', `s=${selector};`);
    assert.deepEqual(await checkDkim(signed), [{ ...passed, selector, result: 'permerror' }]);
  });

  test('RSA of 512 bits: policy', async () => {
    publish(weakRsa.publicKey);
    const signed = await sign(plain, { key: weakRsa.privateKey });
    assert.deepEqual(await checkDkim(signed), [{ ...passed, result: 'policy' }]);
  });

  test('a body that goes on after what was signed: policy', async () => {
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

  test('a key that does not come holds up no other', async () => {
    publish(rsa.publicKey);
    dns.answer('k2._domainkey.esp.example', 'DROP');
    const signed = await sign(await sign(plain), { domain: 'esp.example', selector: 'k2' });
    const results = await checkDkim(signed, 400);
    assert.deepEqual(
      results.map(({ result }) => result),
      ['temperror', 'pass'],
    );
  });

  test('the first ten of many signatures are looked at', async () => {
    publish(rsa.publicKey);
    let signed = plain;
    for (let count = 0; count < 12; count += 1) signed = await sign(signed, { selector: `s${count}` });
    assert.deepEqual(
      (await checkDkim(signed)).map(({ selector }) => selector),
      ['s11', 's10', 's9', 's8', 's7', 's6', 's5', 's4', 's3', 's2'],
    );
    assert.equal(dns.count('s0._domainkey.example.com'), 0);
  });

  test('a name that is none is not handed on', async () => {
    const signed = (await sign(plain)).replace('d=example.com;', 'd=exa\u0000mple com;');
    const [signature] = await checkDkim(signed);
    assert.equal(signature?.domain, null);
  });

  for (const [title, text] of [
    ['a line of blanks', ' '.repeat(25 * 1024 * 1024)],
    ['empty lines', '\r\n'.repeat(12 * 1024 * 1024)],
    ['blanks with something after them', `${' \t'.repeat(12 * 1024 * 1024)}x`],
  ] as const) {
    test(`25 MB of ${title} take no longer than 25 MB of text`, async () => {
      publish(rsa.publicKey);
      const signed = await sign(plain);
      const started = process.cpuUsage();
      const [found] = await checkDkim(signed + text);
      assert.equal(found?.result, text.endsWith('x') ? 'fail' : 'pass', 'blanks at the end do not count');
      const { user } = process.cpuUsage(started);
      assert.ok(user < 2_000_000, `${user / 1000} ms`);
    });
  }

  test('ten signatures that name thousands of fields', async () => {
    publish(rsa.publicKey);
    const signed = await sign(plain);
    const long = signed.slice(0, -plain.length).replace(/ h=/, ` h=${'x:'.repeat(4000)}`);
    assert.notEqual(`${long}${plain}`, signed);
    const header = `${long.repeat(10)}${'y: z\r\n'.repeat(3000)}`;
    const started = process.cpuUsage();
    const results = (await checkDkim(`${header}${plain}`)).map(({ result }) => result);
    assert.deepEqual(results, Array(10).fill('fail'));
    const { user } = process.cpuUsage(started);
    assert.ok(user < 600_000, `${user / 1000} ms`);
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

  test('one tag twice: a signature that cannot be read', async () => {
    publish(rsa.publicKey);
    const signed = (await sign(plain)).replace(' s=s1;', ' s=s1; s=s1;');
    assert.deepEqual(await checkDkim(signed), [
      { result: 'neutral', domain: null, selector: null, aligned: false },
    ]);
  });

  test('a key in the form of the RFC, without what is usually around it', async () => {
    const key = rsa.publicKey.export({ type: 'pkcs1', format: 'der' }).toString('base64');
    dns.answer('s1._domainkey.example.com', { TXT: [`p=${key}`] });
    assert.deepEqual(await checkDkim(await sign(plain)), [passed]);
  });

  test('the sample of RFC 8463, which others signed', async () => {
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

  test("another domain's pass is not the author's", async () => {
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
      assert.deepEqual((await check(plain, overHttp, 400)).dmarc, { ...none, result: 'temperror' });
    });
  }

  test('a key that did not come is no failure', async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    dns.answer('s1._domainkey.example.com', 'SERVFAIL');
    const { dkim, dmarc } = await check(await sign(plain), smtp);
    assert.deepEqual(dkim, [{ result: 'temperror', domain: 'example.com', selector: 's1', aligned: true }]);
    assert.deepEqual(dmarc, { result: 'temperror', policy: 'reject', aligned: null });
  });

  test('an SPF record that did not come is no failure', async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    dns.answer('example.com', 'SERVFAIL');
    assert.deepEqual((await check(plain, smtp)).dmarc, {
      result: 'temperror',
      policy: 'reject',
      aligned: null,
    });
  });

  test("a forger's own names that do not answer hide nothing", async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    dns.answer('s1._domainkey.forger.example', 'DROP');
    dns.answer('forger.example', 'DROP');
    const { spf, dmarc } = await check(
      await sign(plain, { domain: 'forger.example' }),
      { ...smtp, mailFrom: 'x@forger.example' },
      400,
    );
    assert.equal(spf.result, 'temperror');
    assert.deepEqual(dmarc, reject);
  });

  describe('a forger does not get past it', () => {
    beforeEach(() => {
      dns.answer('_dmarc.example.com', record('p=reject'));
      dns.answer('example.com', { TXT: ['v=spf1 -all'] });
    });

    test('with a long line in the header', async () => {
      const { dkim, dmarc } = await check(`X: ${'y'.repeat(200_000)}\r\n${plain}`, smtp);
      assert.deepEqual(dkim, []);
      assert.deepEqual(dmarc, reject);
    });

    test('with ten signatures for each of which the body is to be hashed anew', async () => {
      publish(rsa.publicKey);
      const signed = await sign(plain);
      const signature = signed.slice(0, -plain.length);
      const ten = Array.from({ length: 10 }, (_, i) => signature.replace(' s=', ` l=${999_999 + i}; s=`));
      const body = `${'x'.repeat(70)}\r\n`.repeat(160_000);
      const startedAt = performance.now();
      const { dkim, dmarc } = await check(`${ten.join('')}${plain}${body}`, smtp, 1000);
      assert.ok(performance.now() - startedAt < 5000);
      assert.deepEqual(
        dkim.map(({ result }) => result),
        [...Array(4).fill('fail'), ...Array(6).fill('policy')],
      );
      assert.deepEqual(dmarc, reject);
    });

    test('with a message that breaks what verifies it', async () => {
      const signed = await sign(plain);
      const { spf, dkim, dmarc } = await check(signed, smtp, 5000, async (raw) => leaveUnverified(raw));
      assert.equal(spf.result, 'fail');
      assert.deepEqual(dkim, [{ result: 'policy', domain: 'example.com', selector: 's1', aligned: true }]);
      assert.deepEqual(dmarc, reject);
    });

    test('with a signature whose key is read one way and asked for in another', async () => {
      const signed = await sign(plain);
      for (const raw of [` ${signed}`, signed.replace('d=example.com;', 'd=example.com; D=example.com;')]) {
        assert.deepEqual((await check(raw, smtp)).dmarc, reject);
      }
    });

    test('with two addresses, of which the first is his and the second is shown', async () => {
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

  const authors: [string, string][] = [
    ['no From', plain.replace(/^From: .*\r\n/, '')],
    ['an empty From', plain.replace(/^From: .*\r\n/, 'From: \r\n')],
    ['two From fields', `From: eve@example.com\r\n${plain}`],
    ['authors of two domains', plain.replace('Ada <', 'eve@example.net, <')],
    ['no header', '\r\nhello'],
    ['nothing', ''],
  ];
  for (const [title, message] of authors) {
    test(`${title}: permerror`, async () => {
      dns.answer('_dmarc.example.com', record('p=reject'));
      assert.deepEqual((await check(message)).dmarc, { ...none, result: 'permerror' });
    });
  }

  test('two authors of one domain are as one', async () => {
    dns.answer('_dmarc.example.com', record('p=reject'));
    publish(rsa.publicKey);
    const signed = await sign(plain.replace('Ada <', 'eve@example.com, <'));
    assert.equal((await check(signed)).dmarc.result, 'pass');
  });
});

describe('ARC', () => {
  const seal = async (message: string, cv: 'none' | 'pass' = 'none') => {
    const headers = await sealMessage(message, {
      signingDomain: 'list.example',
      selector: 'arc',
      privateKey: rsa.privateKey.export({ type: 'pkcs8', format: 'pem' }) as string,
      authResults: 'list.example; spf=pass smtp.mailfrom=ada@example.com',
      cv,
    });
    return `${headers}${message}`;
  };
  beforeEach(() => publish(rsa.publicKey, { domain: 'list.example', selector: 'arc' }));

  test('pass, by one and by two', async () => {
    const once = await seal(plain);
    assert.match(once, /^ARC-Seal: i=1;/m);
    assert.deepEqual((await check(once)).arc, { result: 'pass' });
    const twice = await seal(once, 'pass');
    assert.match(twice, /^ARC-Seal: i=2;/m);
    assert.deepEqual((await check(twice)).arc, { result: 'pass' });
  });

  const broken: [string, (sealed: string) => string][] = [
    ['a changed body', (sealed) => `${sealed}And more.\r\n`],
    ['a changed result', (sealed) => sealed.replace('spf=pass', 'spf=fail')],
    ['a missing field', (sealed) => sealed.replace('ARC-Authentication-Results', 'X-Results')],
  ];
  for (const [title, change] of broken) {
    test(`${title}: fail`, async () => {
      const sealed = await seal(plain);
      assert.notEqual(change(sealed), sealed);
      assert.deepEqual((await check(change(sealed))).arc, { result: 'fail' });
    });
  }

  for (const [answer, result] of [
    ['NXDOMAIN', 'fail'],
    ['SERVFAIL', 'temperror'],
    ['DROP', 'temperror'],
  ] as const) {
    test(`${answer} for the key: ${result}`, async () => {
      dns.answer('arc._domainkey.list.example', answer);
      assert.deepEqual((await check(await seal(plain), overHttp, 400)).arc, { result });
    });
  }
});

describe('DNS', () => {
  test('a black hole: temperror for everything, by the deadline', async () => {
    for (const name of ['example.com', '_dmarc.example.com', 's1._domainkey.example.com']) {
      dns.answer(name, 'DROP');
    }
    const signed = await sign(plain);
    const startedAt = performance.now();
    const found = await check(signed, smtp, 500);
    const tookMs = performance.now() - startedAt;
    assert.deepEqual(found, {
      spf: { result: 'temperror', domain: 'example.com' },
      dkim: [{ result: 'temperror', domain: 'example.com', selector: 's1', aligned: true }],
      dmarc: { ...none, result: 'temperror' },
      arc: { result: 'none' },
    });
    assert.ok(tookMs > 300 && tookMs < 1500, `${tookMs} ms`);
  });

  test('no server at all: temperror', async () => {
    const gone = await startDns();
    await gone.close();
    const authenticate = makeAuthenticate({ dnsServers: [gone.address], mailHost: 'mx', deadlineMs: 1000 });
    const { spf, dkim, dmarc } = await authenticate(Buffer.from(await sign(plain)), smtp);
    assert.deepEqual([spf.result, dkim[0]?.result, dmarc.result], ['temperror', 'temperror', 'temperror']);
  });

  test('thousands of messages of one sender ask once, one after the other or at once', async () => {
    const authenticate = makeAuthenticate({ dnsServers: [dns.address], mailHost: 'mx.example.net' });
    dns.answer('_dmarc.example.com', { TXT: ['v=DMARC1; p=reject'] });
    publish(rsa.publicKey);
    const raw = Buffer.from(await sign(plain));
    const all = await Promise.all(Array.from({ length: 50 }, () => authenticate(raw, smtp)));
    for (let count = 0; count < 50; count += 1) all.push(await authenticate(raw, smtp));
    for (const one of all) assert.deepEqual(one, all[0]);
    assert.equal(all[0]?.dmarc.result, 'pass');
    assert.equal(dns.count('example.com', 'TXT'), 1, 'nothing there is remembered too');
    assert.equal(dns.count('_dmarc.example.com'), 1);
    assert.equal(dns.count('s1._domainkey.example.com'), 1);
  });

  test('an outage is not remembered', async () => {
    const authenticate = makeAuthenticate({ dnsServers: [dns.address], mailHost: 'mx.example.net' });
    dns.answer('example.com', 'SERVFAIL');
    assert.equal((await authenticate(Buffer.from(plain), smtp)).spf.result, 'temperror');
    dns.answer('example.com', { TXT: ['v=spf1 +all'] });
    assert.equal((await authenticate(Buffer.from(plain), smtp)).spf.result, 'pass');
  });

  test('who stops waiting takes no answer from another who asked the same', async () => {
    const resolver = makeResolver({ dnsServers: [dns.address] });
    dns.answer('example.com', 'DROP', { TXT: ['hello'] });
    const [hasty, patient, late] = [new AbortController(), new AbortController(), new AbortController()];
    const first = resolver.resolve('example.com', 'TXT', hasty.signal);
    const second = resolver.resolve('Example.com', 'TXT', patient.signal);
    hasty.abort();
    await assert.rejects(first, { code: 'ETIMEOUT' });
    assert.deepEqual(await second, [['hello']]);
    assert.equal(dns.count('example.com'), 2, 'lost, and asked again for all who wait');
    late.abort();
    assert.deepEqual(await resolver.resolve('example.com', 'TXT', late.signal), [['hello']]);
    await assert.rejects(resolver.resolve('example.net', 'TXT', late.signal), { code: 'ETIMEOUT' });
    assert.equal(dns.count('example.net'), 0);
  });

  test('when nobody waits any more, nothing is asked again', async () => {
    const resolver = makeResolver({ dnsServers: [dns.address] });
    dns.answer('gone.example', 'DROP');
    dns.answer('slow.example', 'DROP', { TXT: ['hello'] });
    const controller = new AbortController();
    const question = resolver.resolve('gone.example', 'TXT', controller.signal);
    controller.abort();
    await assert.rejects(question, { code: 'ETIMEOUT' });
    // Lost once as well, and later: by its second try the other's would have been seen.
    await resolver.resolve('slow.example', 'TXT', new AbortController().signal);
    assert.equal(dns.count('slow.example'), 2);
    assert.ok(dns.count('gone.example') <= 1);
  });

  test('what is remembered ends after a while and has a limit', async () => {
    const resolver = makeResolver({ dnsServers: [dns.address], keepMs: 0 });
    const { signal } = new AbortController();
    dns.answer('example.com', { TXT: ['hello'] });
    await resolver.resolve('example.com', 'TXT', signal);
    await resolver.resolve('example.com', 'TXT', signal);
    assert.equal(dns.count('example.com'), 2);

    const keeping = makeResolver({ dnsServers: [dns.address] });
    for (let count = 0; count < 2001; count += 1) {
      await assert.rejects(keeping.resolve(`n${count}.example`, 'TXT', signal), { code: 'ENOTFOUND' });
    }
    await assert.rejects(keeping.resolve('n2000.example', 'TXT', signal));
    await assert.rejects(keeping.resolve('n0.example', 'TXT', signal));
    assert.deepEqual([dns.count('n2000.example'), dns.count('n0.example')], [1, 2]);
  });
});

describe('headers that would take minutes are judged by their author alone', () => {
  const headers: [string, string][] = [
    ['too long', `From: ada@example.com\r\n${`X: ${'y'.repeat(70)}\r\n`.repeat(5000)}`],
    ['a header without end', `From: ada@example.com\r\n${'X: y\r\n'.repeat(1_000_000)}`],
    ['too many lines', `From: ada@example.com\r\nX: y\r\n${' \r\n'.repeat(80_000)}`],
    ['too long a line', `x${' '.repeat(200_000)}y\r\nFrom: ada@example.com\r\n`],
    ['too long a blank', `From: ada@example.com\r\nX: y${`\r\n${' '.repeat(80)}`.repeat(3000)}y\r\n`],
  ];
  for (const [title, header] of headers) {
    test(title, async () => {
      dns.answer('_dmarc.example.com', { TXT: ['v=DMARC1; p=reject'] });
      const startedAt = performance.now();
      const found = await check(`${header}\r\nhello\r\n`, smtp);
      assert.ok(performance.now() - startedAt < 1000);
      assert.deepEqual(found, {
        spf: { result: 'none', domain: 'example.com' },
        dkim: [],
        dmarc: { result: 'fail', policy: 'reject', aligned: false },
        arc: { result: 'none' },
      });
    });
  }
});

test('whatever the bytes and the envelope, there is an answer that can be stored', async () => {
  const authenticate = makeAuthenticate({ dnsServers: [dns.address], mailHost: 'mx.example.net' });
  const signed = await sign(plain);
  const piece = fc.oneof(
    fc.constantFrom(
      ...['From:', 'DKIM-Signature:', 'ARC-Seal: i=1;', 'ARC-Message-Signature: i=1;'],
      ...[
        'ARC-Authentication-Results: i=1;',
        'a=rsa-sha256;',
        'd=example.com;',
        's=s1;',
        'h=from;',
        'b=',
        'bh=',
        'c=x/y;',
      ],
      ...[
        'cv=none;',
        'l=1;',
        'x=1;',
        'i=@;',
        '\r\n',
        '\n',
        '\r',
        ' ',
        '<',
        '>',
        '@',
        '"',
        '(',
        'a@example.com',
        '\0',
        'é',
        '=?',
      ],
    ),
    fc.string({ unit: 'binary', maxLength: 12 }),
  );
  const raw = fc.oneof(
    fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)),
    fc.array(piece, { maxLength: 40 }).map((pieces) => Buffer.from(pieces.join(''))),
    fc.tuple(fc.nat(signed.length), fc.nat(20), piece).map(([at, length, text]) => {
      return Buffer.from(signed.slice(0, at) + text + signed.slice(at + length));
    }),
  );
  const word = fc.option(
    fc.oneof(fc.string({ unit: 'binary', maxLength: 30 }), fc.constant('a@example.com')),
  );
  const ip = fc.option(fc.oneof(fc.ipV4(), fc.ipV6(), fc.string({ maxLength: 8 })));
  await fc.assert(
    fc.asyncProperty(raw, word, ip, word, async (bytes, mailFrom, remoteIp, helo) => {
      const found = await authenticate(bytes, { mailFrom, remoteIp, helo });
      assert.doesNotMatch(JSON.stringify(found), /\\u0000|\\ud[89a-f]/);
      assert.ok(found.dkim.length <= 10);
    }),
    { numRuns: 500 },
  );
});

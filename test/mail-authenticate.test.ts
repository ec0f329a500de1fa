import assert from 'node:assert/strict';
import { createHash, sign as signBytes } from 'node:crypto';
import { beforeEach, describe, test } from 'node:test';
import fc from 'fast-check';
import { sealMessage } from 'mailauth/lib/arc/index.js';
import { makeAuthenticate } from '../src/mailauth/authenticate.ts';
import { canonicalField } from '../src/mailauth/canonical.ts';
import { anyCharacter } from './any-character.ts';
import { startDns } from './dns.ts';
import { check, dns, none, overHttp, plain, publish, rsa, sign, smtp } from './signing.ts';

beforeEach(() => dns.reset());

test('a message without any DNS records: the shape of the sample event', async () => {
  assert.deepEqual(await check(plain), {
    spf: { result: 'none', domain: null },
    dkim: [],
    dmarc: none,
    arc: { result: 'none' },
  });
});

const bodyOf = (message: string) => message.slice(message.indexOf('\r\n\r\n') + 4);

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

  test('pass, with one set and with two', async () => {
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
    ['a field alone', (sealed) => sealed.replaceAll(/^ARC-(Seal|Message)/gm, 'X-$1')],
    ['a field twice', (sealed) => `${/^ARC-Seal:(?:.|\r\n[ \t])*\r\n/m.exec(sealed)?.[0]}${sealed}`],
    ['a number that is missing', (sealed) => sealed.replaceAll(/^(ARC-[\w-]+:\s+i=)1/gm, '$12')],
    ['a number beyond the last', (sealed) => sealed.replaceAll(/^(ARC-[\w-]+:\s+i=)1/gm, '$151')],
    ['a result that the first set cannot have', (sealed) => sealed.replace('cv=none', 'cv=pass')],
    ['SHA-1', (sealed) => sealed.replace('a=rsa-sha256', 'a=rsa-sha1')],
    ['a missing field', (sealed) => sealed.replace('ARC-Authentication-Results', 'X-Results')],
  ];
  for (const [title, change] of broken) {
    test(`${title}: fail`, async () => {
      const sealed = await seal(plain);
      assert.notEqual(change(sealed), sealed);
      assert.deepEqual((await check(change(sealed))).arc, { result: 'fail' });
    });
  }

  /** Seals with tags as they are given, signed over the canonical forms that `c` names. */
  function sealByHand(c: 'simple' | 'relaxed', tags: { message?: string; seal?: string }): string {
    const hash = createHash('sha256').update(bodyOf(plain)).digest('base64');
    const key = 'a=rsa-sha256; d=list.example; s=arc';
    const signText = (lines: string[]) =>
      signBytes('sha256', Buffer.from(lines.join('\r\n')), rsa.privateKey);
    const add = (field: string, lines: string[]) =>
      `${field}${signText([...lines, field]).toString('base64')}`;
    const from = canonicalField('From: Ada <ada@example.com>', c);
    const results = 'arc-authentication-results:i=1; list.example; spf=none';
    const signed = add(`arc-message-signature:i=1; ${key}; h=from; ${tags.message ?? ''}bh=${hash}; b=`, [
      from,
    ]);
    const seal = add(`arc-seal:i=1; ${key}; ${tags.seal ?? ''}cv=none; b=`, [results, signed]);
    return `${seal}\r\n${signed}\r\n${results}\r\n${plain}`;
  }

  const handmade: [string, string, 'pass' | 'fail'][] = [
    ['c=relaxed/simple', sealByHand('relaxed', { message: 'c=relaxed/simple; ' }), 'pass'],
    ['no c= is simple/simple', sealByHand('simple', {}), 'pass'],
    ['no c= is not relaxed', sealByHand('relaxed', {}).replace('From: Ada', 'From:  Ada'), 'fail'],
    ['an empty tag in the seal', sealByHand('simple', { seal: '; ' }), 'fail'],
    ['an empty tag in the signature', sealByHand('simple', { message: '; ' }), 'fail'],
  ];
  for (const [title, sealed, result] of handmade) {
    test(`tags as in RFC 6376: ${title}: ${result}`, async () => {
      assert.deepEqual((await check(sealed)).arc, { result });
    });
  }

  for (const [answer, result] of [
    ['NXDOMAIN', 'fail'],
    ['SERVFAIL', 'temperror'],
    ['DROP', 'temperror'],
  ] as const) {
    test(`${answer} for the key: ${result}`, async () => {
      dns.answer('arc._domainkey.list.example', answer);
      assert.deepEqual((await check(await seal(plain), overHttp)).arc, { result });
    });
  }
});

describe('DNS', () => {
  test('DNS that never answers: temperror for everything, within the deadline', async () => {
    for (const name of ['example.com', '_dmarc.example.com', 's1._domainkey.example.com']) {
      dns.answer(name, 'DROP');
    }
    const signed = await sign(plain);
    const found = await check(signed, smtp, 500);
    assert.deepEqual(found, {
      spf: { result: 'temperror', domain: 'example.com' },
      dkim: [{ result: 'temperror', domain: 'example.com', selector: 's1', aligned: true }],
      dmarc: { ...none, result: 'temperror' },
      arc: { result: 'none' },
    });
    assert.equal(dns.count('example.com', 'TXT'), 1, 'no second question is asked');
  });

  test('no server at all: temperror', async () => {
    const gone = await startDns();
    await gone.close();
    const authenticate = makeAuthenticate({ dnsServers: [gone.address], mailHost: 'mx', deadlineMs: 1000 });
    const { spf, dkim, dmarc } = await authenticate(Buffer.from(await sign(plain)), smtp);
    assert.deepEqual([spf.result, dkim[0]?.result, dmarc.result], ['temperror', 'temperror', 'temperror']);
  });

  test('thousands of messages of one sender make one query, one after the other or at once', async () => {
    const authenticate = makeAuthenticate({
      dnsServers: [dns.address],
      mailHost: 'mx.example.net',
      deadlineMs: 60_000,
    });
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

  test('an outage is not cached', async () => {
    const authenticate = makeAuthenticate({
      dnsServers: [dns.address],
      mailHost: 'mx.example.net',
      deadlineMs: 60_000,
    });
    dns.answer('example.com', 'SERVFAIL');
    assert.equal((await authenticate(Buffer.from(plain), smtp)).spf.result, 'temperror');
    dns.answer('example.com', { TXT: ['v=spf1 +all'] });
    assert.equal((await authenticate(Buffer.from(plain), smtp)).spf.result, 'pass');
  });
});

describe('headers that would take minutes: only the author is checked', { timeout: 120_000 }, () => {
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
      const found = await check(`${header}\r\nhello\r\n`, smtp);
      assert.deepEqual(found, {
        spf: { result: 'none', domain: 'example.com' },
        dkim: [],
        dmarc: { result: 'fail', policy: 'reject', aligned: false },
        arc: { result: 'none' },
      });
    });
  }
});

test('any bytes and any envelope give a result that can be stored', async () => {
  const authenticate = makeAuthenticate({
    dnsServers: [dns.address],
    mailHost: 'mx.example.net',
    deadlineMs: 60_000,
  });
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
    fc.string({ unit: anyCharacter, maxLength: 12 }),
  );
  const raw = fc.oneof(
    fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)),
    fc.array(piece, { maxLength: 40 }).map((pieces) => Buffer.from(pieces.join(''))),
    fc.tuple(fc.nat(signed.length), fc.nat(20), piece).map(([at, length, text]) => {
      return Buffer.from(signed.slice(0, at) + text + signed.slice(at + length));
    }),
  );
  const word = fc.option(
    fc.oneof(fc.string({ unit: anyCharacter, maxLength: 30 }), fc.constant('a@example.com')),
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

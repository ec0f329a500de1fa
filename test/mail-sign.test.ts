import assert from 'node:assert/strict';
import { generateKeyPairSync, type KeyObject } from 'node:crypto';
import { beforeEach, describe, test } from 'node:test';
import fc from 'fast-check';
import { dkimVerify } from 'mailauth/lib/dkim/verify.js';
import { makeLog } from '../src/lib/log.ts';
import { readKeyOnce, signMessage } from '../src/mailauth/sign.ts';
import { makeMailWork } from '../src/mailwork/mailwork.ts';
import { checkDkim, dns, plain, publish, rsa } from './signing.ts';

beforeEach(() => dns.reset());

const ed25519 = generateKeyPairSync('ed25519');
const now = new Date();
const pem = (key: KeyObject) => key.export({ type: 'pkcs8', format: 'pem' }).toString();

async function sign(message: string, privateKey = rsa.privateKey, at = now): Promise<string> {
  const key = { domain: 'example.com', selector: 's1', privateKey: pem(privateKey) };
  const signed = await signMessage(Buffer.from(message, 'latin1'), key, at);
  assert.ok(signed.ok, JSON.stringify(signed));
  return signed.field + message;
}

const check = async (message: string) => (await checkDkim(Buffer.from(message, 'latin1')))[0]?.result;

describe('a signed message passes our verifier and that of mailauth', () => {
  for (const [title, pair] of [
    ['rsa', rsa],
    ['ed25519', ed25519],
  ] as const) {
    test(title, async () => {
      publish(pair.publicKey);
      const signed = await sign(plain, pair.privateKey);
      assert.match(signed, new RegExp(`a=${title}-sha256; c=relaxed/relaxed;`));
      assert.equal(await check(signed), 'pass');
      const record = dns.questions.length;
      assert.ok(record > 0);
      const key = pair.publicKey.export({ type: 'spki', format: 'der' });
      const p = (title === 'rsa' ? key : key.subarray(-32)).toString('base64');
      const { results } = (await dkimVerify(signed, {
        resolver: async () => [[`v=DKIM1; k=${title}; p=${p}`]],
      } as unknown as Parameters<typeof dkimVerify>[1])) as unknown as {
        results: { status: { result: string } }[];
      };
      assert.deepEqual(
        results.map(({ status }) => status.result),
        ['pass'],
      );
    });
  }

  const odd: [string, string][] = [
    ['no body', 'From: ada@example.com\r\n\r\n'],
    [
      'a folded field and 8-bit text',
      'From: ada@example.com\r\nSubject: a\r\n \t b \xc3\xa9\r\n\r\n\xc3\xa9 \r\n\r\n',
    ],
    [
      'many recipients',
      `From: a@example.com\r\nTo: ${'bob@example.net,\r\n '.repeat(500)}x@example.net\r\n\r\n.\r\n`,
    ],
    ['a repeated field', 'Subject: one\r\nFrom: ada@example.com\r\nReferences: <a@b>\r\n\r\nx\r\n'],
  ];
  for (const [title, message] of odd) {
    test(title, async () => {
      publish(rsa.publicKey);
      assert.equal(await check(await sign(message)), 'pass');
    });
  }

  test('any body', async () => {
    const line = fc.string({ unit: fc.constantFrom('a', ' ', '\t', '.', '\r\n', '\xe9'), maxLength: 60 });
    await fc.assert(
      fc.asyncProperty(line, async (body) => {
        publish(rsa.publicKey);
        assert.equal(await check(await sign(`${plain}${body}\r\n`)), 'pass');
      }),
      { numRuns: 50 },
    );
  });
});

describe('what the signature covers', () => {
  test('no line is longer than 78 characters, and nothing but the field is added', async () => {
    const signed = await sign(`Cc: x@example.com\r\nList-Unsubscribe: <https://example.com>\r\n${plain}`);
    const field = signed.slice(0, signed.indexOf('\r\nCc: ') + 2);
    for (const line of field.split('\r\n')) assert.ok(line.length <= 78, line);
    assert.match(field, /^DKIM-Signature: v=1;[^\n]*(?:\r\n [^\r\n]*)+\r\n$/);
    assert.match(field, /List-Unsubscribe/);
    assert.ok(field.includes(`t=${Math.floor(now.getTime() / 1000)}`));
  });

  for (const field of ['From', 'To', 'Cc', 'Subject', 'Date', 'Message-ID', 'Reply-To', 'Content-Type']) {
    test(`a second ${field} breaks it`, async () => {
      publish(rsa.publicKey);
      const signed = await sign(plain);
      assert.equal(await check(signed), 'pass');
      const added = await check(`${field}: eve@example.com\r\n${signed}`);
      assert.notEqual(added, 'pass');
    });
  }

  test('a changed body breaks it, a Received field in front does not', async () => {
    publish(rsa.publicKey);
    const signed = await sign(plain);
    assert.equal(await check(signed.replace('Nothing else', 'Something')), 'fail');
    assert.equal(await check(`Received: from a by b; date\r\n${signed}`), 'pass');
  });
});

describe('a key that was read once', () => {
  const given = { domain: 'example.com', selector: 's1', privateKey: pem(rsa.privateKey) };
  for (const [title, message] of [
    ['signs', plain],
    ['signs a large message, which a worker does', plain + 'x\r\n'.repeat(400_000)],
  ] as const) {
    test(title, async (t) => {
      const log = makeLog({ level: 'silent', json: false, stream: process.stderr });
      const mailWork = makeMailWork({ dnsServers: [dns.address], mailHost: 'mx.example.net', log });
      t.after(() => mailWork.stop());
      publish(rsa.publicKey);
      const key = readKeyOnce(given);
      assert.notEqual(typeof key.privateKey, 'string');
      const signed = await mailWork.sign(Buffer.from(message), key, now, 'owner');
      assert.ok(signed.ok, JSON.stringify(signed));
      assert.equal(await check(signed.field + message), 'pass');
    });
  }

  test('is refused with its reason if it cannot be used', async () => {
    const signed = await signMessage(
      Buffer.from(plain),
      readKeyOnce({ ...given, privateKey: 'secret' }),
      now,
    );
    assert.ok(!signed.ok);
    assert.match(signed.reason, /cannot be read/);
  });
});

describe('what cannot be signed is a value', () => {
  const weak = generateKeyPairSync('rsa', { modulusLength: 512 }).privateKey;
  const ec = generateKeyPairSync('ec', { namedCurve: 'prime256v1' }).privateKey;
  const good = { domain: 'example.com', selector: 's1', privateKey: pem(rsa.privateKey) };
  const cases: [string, Partial<typeof good>, string, RegExp][] = [
    ['a key that is not PEM', { privateKey: 'secret' }, plain, /s1 of example\.com cannot be read/],
    ['a key of 512 bits', { privateKey: pem(weak) }, plain, /512 bits/],
    ['a key of another type', { privateKey: pem(ec) }, plain, /type ec/],
    ['a selector with a line break', { selector: 's1;\r\nX: y' }, plain, /not a name/],
    ['a domain that is none', { domain: 'a b' }, plain, /not a name/],
    ['a message without From', {}, 'Subject: x\r\n\r\n', /no From/],
    ['a header of 300 KiB', {}, `X: ${'x'.repeat(300 * 1024)}\r\n\r\n`, /too long/],
  ];
  for (const [title, change, message, reason] of cases) {
    test(title, async () => {
      const signed = await signMessage(Buffer.from(message), { ...good, ...change }, now);
      assert.ok(!signed.ok);
      assert.match(signed.reason, reason);
      assert.ok(!signed.reason.includes('PRIVATE'));
    });
  }
});

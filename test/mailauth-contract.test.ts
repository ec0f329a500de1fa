/**
 * What we rely on in the package mailauth: the entry points that src/ imports, the arguments that they take and the part of their
 * results that is read. If an upgrade changes one of these, a test here fails and says which; src/mailauth/authenticate.ts is the
 * place to adapt.
 */
import assert from 'node:assert/strict';
import { generateKeyPairSync } from 'node:crypto';
import path from 'node:path';
import { describe, test } from 'node:test';
import { dkimSign } from 'mailauth/lib/dkim/sign.js';
import { evaluateDmarc } from 'mailauth/lib/dmarc/index.js';
import { spf } from 'mailauth/lib/spf/index.js';
import { readSources } from '../scripts/imports.ts';

/** Resolves from a table. `asked` has what mailauth looked up, as it passed it. */
function makeResolver(records: Record<string, string[][] | string>) {
  const asked: string[] = [];
  const resolver = async (...question: string[]): Promise<string[][]> => {
    asked.push(question.join(' '));
    const found = records[question.join(' ')] ?? 'ENOTFOUND';
    if (typeof found === 'string') throw Object.assign(new Error(found), { code: found });
    return found;
  };
  return { resolver, asked };
}

test('src/ imports these entry points of mailauth, all in one file', () => {
  const imports = readSources(path.dirname(import.meta.dirname)).flatMap(({ name, text }) =>
    [...text.matchAll(/'(mailauth(?:\/[^']*)?)'/g)].map(([, target]) => `${name}: ${target}`),
  );
  assert.deepEqual(imports, [
    'mailauth/authenticate.ts: mailauth/lib/dmarc/index.js',
    'mailauth/authenticate.ts: mailauth/lib/spf/index.js',
  ]);
});

describe('spf({ sender, ip, helo, mta, resolver })', () => {
  const records = {
    'example.com TXT': [['v=spf1 ip4:192.0.2.7', ' -all']],
    'silent.example TXT': 'ETIMEOUT',
  };
  const call = async (sender: string, ip: string, helo: string) => {
    const { resolver, asked } = makeResolver(records);
    const { status, domain } = await spf({ sender, ip, helo, mta: 'mx.example.net', resolver });
    return { result: status.result, domain, asked };
  };
  const asked = ['example.com TXT'];

  test('calls resolver(name, type) and returns { status: { result }, domain }', async () => {
    const pass = await call('a@Example.com', '192.0.2.7', 'helo.example');
    assert.deepEqual(pass, { result: 'pass', domain: 'example.com', asked });
    const fail = await call('a@example.com', '192.0.2.8', 'helo.example');
    assert.deepEqual(fail, { result: 'fail', domain: 'example.com', asked });
  });

  test('checks helo where sender is empty', async () => {
    assert.deepEqual(await call('', '192.0.2.7', 'example.com'), {
      result: 'pass',
      domain: 'example.com',
      asked,
    });
  });

  test('ENOTFOUND is "none", another code "temperror"; neither rejects', async () => {
    assert.equal((await call('a@absent.example', '192.0.2.7', '')).result, 'none');
    assert.equal((await call('a@silent.example', '192.0.2.7', '')).result, 'temperror');
  });
});

describe('evaluateDmarc({ headerFrom, fromFields, spfDomains, dkimDomains, resolver })', () => {
  const records = {
    '_dmarc.example.com TXT': [['v=DMARC1; ', 'p=reject']],
    '_dmarc.silent.example TXT': 'ETIMEOUT',
  };
  const call = (headerFrom: string[], fromFields: number, spfDomains: string[], dkim: string[]) =>
    evaluateDmarc({
      headerFrom,
      fromFields,
      spfDomains,
      dkimDomains: dkim.map((domain) => ({ domain })),
      resolver: makeResolver(records).resolver,
    });

  test('returns { response: { status: { result }, policy }, dkimAligned }', async () => {
    const { response, dkimAligned } = await call(
      ['a@example.com'],
      1,
      [],
      ['News.Example.com.', 'other.example'],
    );
    assert.ok(response);
    assert.equal(response.status.result, 'pass');
    assert.equal(response.policy, 'reject');
    // As `readDomain` in domain.ts writes a domain.
    assert.deepEqual(dkimAligned, new Set(['news.example.com']));
  });

  test('takes the domains of SPF and DKIM for ones that passed', async () => {
    const results = [
      await call(['a@example.com'], 1, ['example.com'], []),
      await call(['a@example.com'], 1, [], []),
      await call(['a@absent.example'], 1, ['absent.example'], []),
      await call(['a@silent.example'], 1, ['silent.example'], []),
    ].map(({ response }) => (response === false ? null : response.status.result));
    assert.deepEqual(results, ['pass', 'fail', 'none', 'temperror']);
  });

  test('response is false where no single domain is the author', async () => {
    for (const [from, fields] of [
      [[], 0],
      [['a@example.com'], 2],
      [['a@example.com', 'a@other.example'], 1],
    ] as const)
      assert.equal((await call([...from], fields, [], [])).response, false);
  });
});

describe('dkimSign(message, { canonicalization, signatureData })', () => {
  const message = 'From: a@example.com\r\nSubject: x\r\n\r\nbody\r\n';
  const call = (privateKey: string) =>
    dkimSign(message, {
      canonicalization: 'relaxed/relaxed',
      signatureData: [{ signingDomain: 'example.com', selector: 's1', privateKey }],
      // mailauth declares these options beside signatureData as required.
    } as unknown as Parameters<typeof dkimSign>[1]);

  test('returns the field to put in front as signatures', async () => {
    const { privateKey } = generateKeyPairSync('ed25519');
    const { signatures, errors } = await call(privateKey.export({ type: 'pkcs8', format: 'pem' }).toString());
    assert.match(signatures, /^DKIM-Signature: .*d=example\.com;.* s=s1;.*\r\n$/s);
    assert.deepEqual(errors, []);
  });

  test('a key that cannot sign is an entry in errors and an empty string, not an exception', async () => {
    const { signatures, errors } = await call('no key');
    assert.equal(signatures, '');
    assert.equal(errors.length, 1);
  });
});

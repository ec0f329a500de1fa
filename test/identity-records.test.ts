import assert from 'node:assert/strict';
import { createPublicKey } from 'node:crypto';
import { describe, test } from 'node:test';
import type { DnsRecord } from '../src/contract/identity.ts';
import { makeDkimKey } from '../src/identities/dkim.ts';
import type { Answer, Answers } from '../src/identities/dns-record.ts';
import { confirmOwnershipGone, findHolderToken, type HolderToken } from '../src/identities/ownership.ts';
import { decideRecords, questionsFor, type Wanted } from '../src/identities/records.ts';

const checkedAt = new Date('2026-11-15T12:00:00Z');
const publicKey = `MIIB${'Ab9+/'.repeat(77)}AQAB`;
const wanted: Wanted = {
  domain: 'example.com',
  token: 'Tok3nOfMine',
  incomingDomain: true,
  mailHost: 'mx.posthorn.example',
  dkimKeys: [{ selector: 'ph20261115-abc123', publicKey }],
};
const ownership = 'posthorn-verification=Tok3nOfMine';
const dkimName = 'ph20261115-abc123._domainkey.example.com';
const nothing: Answer = { kind: 'none', why: 'no_such_record' };

function stands(...values: string[]): Answer {
  return { kind: 'records', values };
}

function judge(answers: Record<string, Answer>, changes: Partial<Wanted> = {}): DnsRecord[] {
  return decideRecords({ ...wanted, ...changes }, new Map(Object.entries(answers)), checkedAt);
}

function judgeOne(purpose: DnsRecord['purpose'], answer: Answer, changes: Partial<Wanted> = {}): DnsRecord {
  const key = {
    ownership: 'TXT _posthorn.example.com',
    mx: 'MX example.com',
    spf: 'TXT example.com',
    dkim: `TXT ${dkimName}`,
    dmarc: 'TXT _dmarc.example.com',
  }[purpose];
  const record = judge({ [key]: answer }, changes).find((one) => one.purpose === purpose);
  assert.ok(record);
  return record;
}

describe('what must stand', () => {
  test('five records, told with nothing looked up yet', () => {
    assert.deepEqual(judge({}), [
      expected('TXT', '_posthorn.example.com', ownership, 'ownership', true),
      { ...expected('MX', 'example.com', 'mx.posthorn.example', 'mx', true), priority: 10 },
      expected('TXT', 'example.com', 'v=spf1 a:mx.posthorn.example ~all', 'spf', false),
      expected('TXT', dkimName, `v=DKIM1; k=rsa; p=${publicKey}`, 'dkim', false),
      expected('TXT', '_dmarc.example.com', 'v=DMARC1; p=none', 'dmarc', false),
    ]);
  });

  function expected(
    type: string,
    name: string,
    value: string,
    purpose: string,
    required: boolean,
  ): Record<string, unknown> {
    return { type, name, value, ttl: 3600, purpose, required, status: 'unknown', found: [], checkedAt: null };
  }

  test('each is a question', () => {
    assert.deepEqual(questionsFor(wanted), [
      { name: '_posthorn.example.com', type: 'TXT' },
      { name: 'example.com', type: 'MX' },
      { name: 'example.com', type: 'TXT' },
      { name: dkimName, type: 'TXT' },
      { name: '_dmarc.example.com', type: 'TXT' },
    ]);
  });

  test('no MX for a domain that takes no mail', () => {
    const purposes = judge({}, { incomingDomain: false }).map(({ purpose }) => purpose);
    assert.deepEqual(purposes, ['ownership', 'spf', 'dkim', 'dmarc']);
  });

  test('the keys stand in the order of the interface', () => {
    const keys = Object.keys(judgeOne('mx', nothing));
    assert.deepEqual(keys, [
      ...[
        'type',
        'name',
        'value',
        'ttl',
        'priority',
        'purpose',
        'required',
        'status',
        'found',
        'checkedAt',
        'note',
      ],
    ]);
  });
});

describe('whatever the record', () => {
  for (const purpose of ['ownership', 'mx', 'spf', 'dkim', 'dmarc'] as const) {
    test(`${purpose}: none is missing, and the note says what to do`, () => {
      const record = judgeOne(purpose, nothing);
      assert.equal(record.status, 'missing');
      assert.deepEqual(record.found, []);
      assert.equal(record.checkedAt, '2026-11-15T12:00:00.000Z');
      assert.match(record.note ?? '', /publish .*\.$/);
    });

    test(`${purpose}: what could not be looked up is unknown`, () => {
      const record = judgeOne(purpose, { kind: 'unknown', reason: 'the DNS server failed (SERVFAIL)' });
      assert.equal(record.status, 'unknown');
      assert.deepEqual(record.found, []);
      assert.match(record.note ?? '', /the DNS server failed \(SERVFAIL\)\.$/);
    });

    test(`${purpose}: something else is a mismatch, shown as it stands`, () => {
      const other = purpose === 'mx' ? '10 mx.other.example' : 'v=spf1x something else';
      const record = judgeOne(purpose, stands(other));
      assert.equal(record.status, 'mismatch');
      assert.deepEqual(record.found, [other]);
      assert.match(record.note ?? '', /\.$/);
    });
  }
});

describe('ownership', () => {
  const valid: [string, string[]][] = [
    ['alone', [ownership]],
    ['between spaces', [`  ${ownership}\t`]],
    ["beside another owner's", ['posthorn-verification=other', ownership]],
    ['twice', [ownership, ownership]],
  ];
  for (const [title, values] of valid) {
    test(`valid ${title}`, () => {
      const record = judgeOne('ownership', stands(...values));
      assert.equal(record.status, 'valid');
      assert.equal(record.note, undefined);
    });
  }

  const wrong: [string, string, RegExp][] = [
    ['in quotation marks', `"${ownership}"`, /without them/],
    ['the token alone', 'Tok3nOfMine', /token alone/],
    ['in capitals', ownership.toUpperCase(), /Capital and small letters/],
    ["another's", 'posthorn-verification=other', /another identity/],
    ['longer', `${ownership}x`, /another identity/],
    ['empty', '', /Something else/],
  ];
  for (const [title, value, note] of wrong) {
    test(`a mismatch ${title}`, () => {
      const record = judgeOne('ownership', stands(value));
      assert.equal(record.status, 'mismatch');
      assert.match(record.note ?? '', note);
    });
  }
});

describe("a holder's token, as a claimant's look saw it", () => {
  const own = 'posthorn-verification=TokenOfTheClaimant';
  const tokens = { own: 'TokenOfTheClaimant', holder: wanted.token };
  const away: Answer = { kind: 'unknown', reason: 'no answer' };
  const cases: [string, Answer[], HolderToken][] = [
    ['the own alone', [stands(own)], 'gone'],
    ['the own among others', [stands('v=spf1 -all', own, 'posthorn-verification=another')], 'gone'],
    ['both side by side', [stands(own, ownership)], 'valid'],
    ['both, with spaces around', [stands(own, ` ${ownership} `)], 'valid'],
    ["the holder's with quotation marks", [stands(own, `"${ownership}"`)], 'unknown'],
    ["the holder's in other letters", [stands(own, ownership.toLowerCase())], 'unknown'],
    ['neither', [nothing], 'not_everywhere'],
    ['no answer', [away], 'unknown'],
    ['the same on every server', [stands(own), stands(own), stands(own)], 'gone'],
    ["the holder's on one server", [stands(own), stands(own), stands(ownership)], 'valid'],
    ['both on one server', [stands(own), stands(own, ownership)], 'valid'],
    ["the holder's damaged on one server", [stands(own), stands(own, `x${ownership}`)], 'unknown'],
    ['one server without the own', [stands(own), nothing], 'not_everywhere'],
    ['one that could not be followed', [stands(own), away], 'unknown'],
  ];
  for (const [title, answers, sight] of cases) {
    test(`${title}: ${sight}`, () => assert.equal(findHolderToken(answers[0], answers, tokens), sight));
  }

  test('one answer alone, with nothing known of the other servers, says no more than that it stands', () => {
    assert.equal(findHolderToken(stands(own), [], tokens), 'unknown');
    assert.equal(findHolderToken(stands(own, ownership), [], tokens), 'valid');
    assert.equal(findHolderToken(undefined, [stands(own)], tokens), 'unknown');
    assert.equal(findHolderToken(stands(ownership), [stands(own)], tokens), 'valid');
  });
});

describe("a holder's own token, gone by one answer", () => {
  const settled = (answer: Answer, ...everywhere: Answer[]) => {
    const answers: Answers = new Map([[`TXT _posthorn.${wanted.domain}`, answer]]);
    const [record] = decideRecords(wanted, confirmOwnershipGone(answers, everywhere, wanted), new Date());
    return `${record?.status}: ${record?.note}`;
  };
  const away: Answer = { kind: 'unknown', reason: 'no answer' };

  test('is gone where no server has it', () => {
    assert.match(settled(nothing, nothing, stands('v=spf1 -all')), /^missing: /);
    assert.match(settled(stands(`x${ownership}`), nothing), /^mismatch: /);
  });

  test('is unknown where one has it, or not all could be asked', () => {
    assert.match(settled(nothing, nothing, stands(ownership)), /^unknown: .* not on all name servers;/);
    assert.match(settled(nothing, stands(ownership), away), /^unknown: .* not on all name servers;/);
    assert.match(settled(nothing, nothing, away), /^unknown: .* not all name servers could be asked\.$/);
    assert.match(settled(nothing), /^unknown: .* not all name servers could be asked\.$/);
  });

  test('stands, or is unknown, as the answer says where that is not gone', () => {
    assert.match(settled(stands(ownership)), /^valid: /);
    assert.match(settled(away, nothing), /^unknown: .* no answer\.$/);
  });
});

describe('MX', () => {
  const cases: [string, string[], DnsRecord['status'], RegExp | null][] = [
    ['ours alone', ['10 mx.posthorn.example'], 'valid', null],
    ['ours in capitals with a dot', ['5 MX.Posthorn.Example.'], 'valid', null],
    ['ours before another', ['10 mx.posthorn.example', '20 backup.example'], 'valid', null],
    ['ours twice', ['10 mx.posthorn.example', '20 mx.posthorn.example'], 'valid', null],
    ['another before ours', ['5 mx.other.example', '10 mx.posthorn.example'], 'valid', /mx\.other\.example/],
    ['another beside ours', ['10 mx.other.example', '10 mx.posthorn.example'], 'valid', /mx\.other\.example/],
    ['the null MX', ['0 .'], 'mismatch', /takes no mail/],
    ['the null MX beside ours', ['0 .', '10 mx.posthorn.example'], 'valid', /null MX/],
    ['another alone', ['10 mx.other.example'], 'mismatch', /another host/],
    ['one that only ends like ours', ['10 xmx.posthorn.example'], 'mismatch', /another host/],
  ];
  for (const [title, values, status, note] of cases) {
    test(`${title}: ${status}`, () => {
      const record = judgeOne('mx', stands(...values));
      assert.equal(record.status, status);
      assert.deepEqual(record.found, values);
      if (note) assert.match(record.note ?? '', note);
      else assert.equal(record.note, undefined);
    });
  }
});

describe('DKIM', () => {
  const cut = publicKey.slice(0, 240);
  const cases: [string, string[], DnsRecord['status'], RegExp | null][] = [
    ['as shown', [`v=DKIM1; k=rsa; p=${publicKey}`], 'valid', null],
    ['in another order, spaced', [` p = ${publicKey} ;k=rsa;  v=DKIM1 ; `], 'valid', null],
    ['the key alone', [`p=${publicKey}`], 'valid', null],
    ['with spaces in the key', [`v=DKIM1; k=rsa; p=${cut} ${publicKey.slice(240)}`], 'valid', null],
    ['in test mode', [`v=DKIM1; k=rsa; t=y; p=${publicKey}`], 'valid', null],
    ['for email and sha256', [`v=DKIM1; s=email; h=sha1:sha256; p=${publicKey}`], 'valid', null],
    ['revoked', ['v=DKIM1; k=rsa; p='], 'mismatch', /revoked/],
    ['cut short', [`v=DKIM1; k=rsa; p=${cut}`], 'mismatch', /cut short/],
    ['another key', ['v=DKIM1; k=rsa; p=MIIBother'], 'mismatch', /Another key/],
    [
      'the same in small letters',
      [`v=DKIM1; k=rsa; p=${publicKey.toLowerCase()}`],
      'mismatch',
      /Another key/,
    ],
    ['another kind', [`v=DKIM1; k=ed25519; p=${publicKey}`], 'mismatch', /k=rsa/],
    ['another version', [`v=DKIM2; p=${publicKey}`], 'mismatch', /no DKIM record/],
    ['in quotation marks', [`"v=DKIM1; k=rsa; p=${publicKey}"`], 'mismatch', /quotation marks/],
    ['sha1 only', [`v=DKIM1; h=sha1; p=${publicKey}`], 'mismatch', /sha256/],
    ['not for email', [`v=DKIM1; s=tlsrpt; p=${publicKey}`], 'mismatch', /not for email/],
    ['a tag twice', [`v=DKIM1; p=; p=${publicKey}`], 'mismatch', /no DKIM record/],
    ['two, one right', [`p=${publicKey}`, 'p=MIIBother'], 'mismatch', /2 records.*delete all but/],
    ['two, none right', ['p=a', 'p=b'], 'mismatch', /2 records.*none/],
  ];
  for (const [title, values, status, note] of cases) {
    test(`${title}: ${status}`, () => {
      const record = judgeOne('dkim', stands(...values));
      assert.equal(record.status, status, record.note);
      assert.equal(record.value, `v=DKIM1; k=rsa; p=${publicKey}`);
      if (note) assert.match(record.note ?? '', note);
      else assert.equal(record.note, undefined);
    });
  }

  test('old and new stand side by side, and the old says how long', () => {
    const next = { selector: 'ph20270101-fedcba', publicKey: `${publicKey}new`, isNew: true };
    const records = judge(
      {
        [`TXT ${dkimName}`]: stands(`p=${publicKey}`),
        [`TXT ${next.selector}._domainkey.example.com`]: nothing,
      },
      { dkimKeys: [...wanted.dkimKeys, next] },
    ).filter(({ purpose }) => purpose === 'dkim');
    assert.deepEqual(
      records.map(({ status }) => status),
      ['valid', 'missing'],
    );
    assert.match(records[0]?.note ?? '', /Leave this record until ph20270101-fedcba/);
  });

  test('a key that was made is 2048 bits, dated, and its own', async () => {
    const [one, other] = await Promise.all([makeDkimKey(checkedAt), makeDkimKey(checkedAt)]);
    assert.match(one.selector, /^ph20261115-[0-9a-f]{6}$/);
    assert.notEqual(one.selector, other.selector);
    const der = Buffer.from(one.publicKey, 'base64');
    const key = createPublicKey({ key: der, format: 'der', type: 'spki' });
    assert.equal(key.asymmetricKeyDetails?.modulusLength, 2048);
    assert.deepEqual(createPublicKey(one.privateKey).export({ format: 'der', type: 'spki' }), der);
    const name = `${one.selector}._domainkey.example.com`;
    const value = judge({}, { dkimKeys: [one] }).find((record) => record.name === name)?.value ?? '';
    assert.ok(value.length > 255);
    const judged = judge({ [`TXT ${name}`]: stands(value) }, { dkimKeys: [one] });
    assert.equal(judged.find((record) => record.name === name)?.status, 'valid');
  });
});

describe('DMARC', () => {
  const cases: [string, string[], DnsRecord['status'], RegExp | null][] = [
    ['the mildest', ['v=DMARC1; p=none'], 'valid', null],
    ['a strict one', ['v=DMARC1;p=reject;rua=mailto:d@example.com'], 'valid', null],
    ['spaced, in capitals', ['v = DMARC1 ; p = Quarantine ;'], 'valid', null],
    ['beside a stranger', ['hello', 'v=DMARC1; p=none'], 'valid', null],
    ['without a policy', ['v=DMARC1; rua=mailto:d@example.com'], 'mismatch', /no policy/],
    ['with an unknown policy', ['v=DMARC1; p=maybe'], 'mismatch', /no policy/],
    ['with the version second', ['p=none; v=DMARC1'], 'mismatch', /does not begin/],
    ['in quotation marks', ['"v=DMARC1; p=none"'], 'mismatch', /quotation marks/],
    ['with a later version', ['v=DMARC10; p=none'], 'mismatch', /does not begin/],
    ['twice', ['v=DMARC1; p=none', 'v=DMARC1; p=reject'], 'mismatch', /2 DMARC records/],
  ];
  for (const [title, values, status, note] of cases) {
    test(`${title}: ${status}`, () => {
      const record = judgeOne('dmarc', stands(...values));
      assert.equal(record.status, status);
      if (note) assert.match(record.note ?? '', note);
      else assert.equal(record.note, undefined);
    });
  }

  test('a stricter one is not to be replaced by ours', () => {
    const strict = 'v=DMARC1; p=reject';
    assert.equal(judgeOne('dmarc', stands(strict)).value, strict);
  });
});

describe('what others wrote', () => {
  test('comes back printable', () => {
    const record = judgeOne('ownership', stands('\u001b[31mred\u0000\u00e9'));
    assert.deepEqual(record.found, ['\\027[31mred\\000\\233']);
  });

  test('comes back bounded', () => {
    const record = judgeOne('ownership', stands(...Array.from({ length: 50 }, () => 'x'.repeat(60_000))));
    assert.equal(record.found.length, 5);
    assert.equal(record.found[0]?.length, 501);
    const escaped = judgeOne('ownership', stands('\u0001'.repeat(400)));
    assert.equal(escaped.found[0]?.length, 501, 'as it is told, escapes included');
  });

  test('is not handed back for publishing when it cannot be published', () => {
    for (const tail of ['\u0007', ` x=${'y'.repeat(3000)}`]) {
      assert.equal(judgeOne('dmarc', stands(`v=DMARC1; p=reject;${tail}`)).value, 'v=DMARC1; p=none');
      assert.equal(
        judgeOne('spf', stands(`v=spf1 mx${tail} ~all`)).value,
        'v=spf1 a:mx.posthorn.example ~all',
      );
    }
  });

  test('does not get into a note unprinted', () => {
    const record = judgeOne('mx', stands('5 \u001b[31m.example', '10 mx.posthorn.example'));
    assert.match(record.note ?? '', /\\027\[31m\.example/);
  });
});

import assert from 'node:assert/strict';
import { createPublicKey } from 'node:crypto';
import { describe, test } from 'node:test';
import type { DnsRecord } from '../src/contract/identity.ts';
import { makeDkimKey } from '../src/identities/dkim.ts';
import type { RecordAnswer, RecordAnswers } from '../src/identities/dns-record.ts';
import { compareTokens, confirmOwnershipAbsent, type TokenComparison } from '../src/identities/ownership.ts';
import { type DomainSetup, decideRecords, questionsFor } from '../src/identities/records.ts';

const checkedAt = new Date('2026-11-15T12:00:00Z');
const publicKey = `MIIB${'Ab9+/'.repeat(77)}AQAB`;
const setup: DomainSetup = {
  domain: 'example.com',
  token: 'Tok3nOfMine',
  incomingDomain: true,
  mailHost: 'mx.posthorn.example',
  dkimKeys: [{ selector: 'ph20261115-abc123', publicKey }],
};
const ownership = 'posthorn-verification=Tok3nOfMine';
const dkimName = 'ph20261115-abc123._domainkey.example.com';
const nothing: RecordAnswer = { kind: 'none', why: 'no_such_record' };

function found(...values: string[]): RecordAnswer {
  return { kind: 'records', values };
}

function decide(answers: Record<string, RecordAnswer>, changes: Partial<DomainSetup> = {}): DnsRecord[] {
  return decideRecords({ ...setup, ...changes }, new Map(Object.entries(answers)), checkedAt);
}

function decideOne(
  purpose: DnsRecord['purpose'],
  answer: RecordAnswer,
  changes: Partial<DomainSetup> = {},
): DnsRecord {
  const key = {
    ownership: 'TXT _posthorn.example.com',
    mx: 'MX example.com',
    spf: 'TXT example.com',
    dkim: `TXT ${dkimName}`,
    dmarc: 'TXT _dmarc.example.com',
  }[purpose];
  const record = decide({ [key]: answer }, changes).find((one) => one.purpose === purpose);
  assert.ok(record);
  return record;
}

const uses: Record<string, readonly string[]> = {
  ownership: ['sending', 'receiving'],
  mx: ['receiving'],
  spf: ['sending'],
  dkim: ['sending'],
  dmarc: ['sending'],
};

describe('the records to publish', () => {
  test('five records, before the first lookup', () => {
    assert.deepEqual(decide({}), [
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
    const state = { status: 'unknown', found: [], checkedAt: null };
    return { type, name, value, ttl: 3600, purpose, required, ...state, usedFor: uses[purpose] };
  }

  test('without the name of the mail server, the notes of MX and SPF say what to set', () => {
    const unset = { mailHost: 'localhost' };
    const answers: (RecordAnswer | null)[] = [
      null,
      nothing,
      found('10 mx.other.example'),
      found('v=spf1 mx -all'),
      { kind: 'unknown', reason: 'DNS did not answer in time' },
    ];
    for (const answer of answers) {
      const all = answer === null ? {} : { 'MX example.com': answer, 'TXT example.com': answer };
      for (const { purpose, value, note = '', ...record } of decide(all, unset)) {
        const namesLocalhost = purpose === 'mx' || purpose === 'spf';
        assert.equal(/localhost/.test(value), namesLocalhost, value);
        const says = /^This record names localhost.* set POSTHORN_MAIL_HOST to /;
        assert.equal(says.test(note), namesLocalhost, `${purpose} ${record.status}: ${note}`);
      }
    }
  });

  test('each is a question', () => {
    assert.deepEqual(questionsFor(setup), [
      { name: '_posthorn.example.com', type: 'TXT' },
      { name: 'example.com', type: 'MX' },
      { name: 'example.com', type: 'TXT' },
      { name: dkimName, type: 'TXT' },
      { name: '_dmarc.example.com', type: 'TXT' },
    ]);
  });

  test('no MX for a domain that takes no mail', () => {
    const purposes = decide({}, { incomingDomain: false }).map(({ purpose }) => purpose);
    assert.deepEqual(purposes, ['ownership', 'spf', 'dkim', 'dmarc']);
  });

  test('the keys are in the order of the interface', () => {
    const keys = Object.keys(decideOne('mx', nothing));
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
        'usedFor',
      ],
    ]);
  });
});

describe('whatever the record', () => {
  for (const purpose of ['ownership', 'mx', 'spf', 'dkim', 'dmarc'] as const) {
    test(`${purpose}: none is missing, and the note says what to do`, () => {
      const record = decideOne(purpose, nothing);
      assert.equal(record.status, 'missing');
      assert.deepEqual(record.found, []);
      assert.equal(record.checkedAt, '2026-11-15T12:00:00.000Z');
      assert.match(record.note ?? '', /publish .*\.$/);
    });

    test(`${purpose}: what could not be looked up is unknown`, () => {
      const record = decideOne(purpose, { kind: 'unknown', reason: 'the DNS server failed (SERVFAIL)' });
      assert.equal(record.status, 'unknown');
      assert.deepEqual(record.found, []);
      assert.match(record.note ?? '', /: the DNS server failed \(SERVFAIL\)\. The next check tries again\.$/);
    });

    test(`${purpose}: something else is a mismatch, shown as found`, () => {
      const other = purpose === 'mx' ? '10 mx.other.example' : 'v=spf1x something else';
      const record = decideOne(purpose, found(other));
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
      const record = decideOne('ownership', found(...values));
      assert.equal(record.status, 'valid');
      assert.equal(record.note, undefined);
    });
  }

  const wrong: [string, string, RegExp][] = [
    ['in quotation marks', `"${ownership}"`, /without them/],
    ['the token alone', 'Tok3nOfMine', /only the token/],
    ['in capitals', ownership.toUpperCase(), /upper and lower case/],
    ["another's", 'posthorn-verification=other', /another identity/],
    ['longer', `${ownership}x`, /another identity/],
    ['empty', '', /another TXT record/],
  ];
  for (const [title, value, note] of wrong) {
    test(`a mismatch ${title}`, () => {
      const record = decideOne('ownership', found(value));
      assert.equal(record.status, 'mismatch');
      assert.match(record.note ?? '', note);
    });
  }
});

describe("the holder's token in a claimant's check", () => {
  const own = 'posthorn-verification=TokenOfTheClaimant';
  const tokens = { claimant: 'TokenOfTheClaimant', holder: setup.token };
  const away: RecordAnswer = { kind: 'unknown', reason: 'no answer' };
  const cases: [string, RecordAnswer[], TokenComparison][] = [
    ["the claimant's alone", [found(own)], 'only_claimant_found'],
    [
      "the claimant's among others",
      [found('v=spf1 -all', own, 'posthorn-verification=another')],
      'only_claimant_found',
    ],
    ['both side by side', [found(own, ownership)], 'holder_found'],
    ['both, with spaces around', [found(own, ` ${ownership} `)], 'holder_found'],
    ["the holder's with quotation marks", [found(own, `"${ownership}"`)], 'unknown'],
    ["the holder's in other letters", [found(own, ownership.toLowerCase())], 'unknown'],
    ['neither', [nothing], 'claimant_incomplete'],
    ['no answer', [away], 'unknown'],
    ['the same on every server', [found(own), found(own), found(own)], 'only_claimant_found'],
    ["the holder's on one server", [found(own), found(own), found(ownership)], 'holder_found'],
    ['both on one server', [found(own), found(own, ownership)], 'holder_found'],
    ["the holder's damaged on one server", [found(own), found(own, `x${ownership}`)], 'unknown'],
    ['one server without the claimant', [found(own), nothing], 'claimant_incomplete'],
    ['one that could not be followed', [found(own), away], 'unknown'],
  ];
  for (const [title, answers, sight] of cases) {
    test(`${title}: ${sight}`, () => assert.equal(compareTokens(answers[0], answers, tokens), sight));
  }

  test("one answer alone can show that the holder's token is there, and never that it is gone", () => {
    assert.equal(compareTokens(found(own), [], tokens), 'unknown');
    assert.equal(compareTokens(found(own, ownership), [], tokens), 'holder_found');
    assert.equal(compareTokens(undefined, [found(own)], tokens), 'unknown');
    assert.equal(compareTokens(found(ownership), [found(own)], tokens), 'holder_found');
  });
});

describe("the holder's token in the holder's check, not found by the first answer", () => {
  const decided = (answer: RecordAnswer, ...serverAnswers: RecordAnswer[]) => {
    const answers: RecordAnswers = new Map([[`TXT _posthorn.${setup.domain}`, answer]]);
    const [record] = decideRecords(setup, confirmOwnershipAbsent(answers, serverAnswers, setup), new Date());
    return `${record?.status}: ${record?.note}`;
  };
  const away: RecordAnswer = { kind: 'unknown', reason: 'no answer' };

  test('is gone where no server has it', () => {
    assert.match(decided(nothing, nothing, found('v=spf1 -all')), /^missing: /);
    assert.match(decided(found(`x${ownership}`), nothing), /^mismatch: /);
  });

  test('is unknown where one has it, or not all could be asked', () => {
    assert.match(
      decided(nothing, nothing, found(ownership)),
      /^unknown: .* some name servers do not have this record;/,
    );
    assert.match(
      decided(nothing, found(ownership), away),
      /^unknown: .* some name servers do not have this record;/,
    );
    assert.match(
      decided(nothing, nothing, away),
      /^unknown: .* not every name server could be asked\. The next check tries again\.$/,
    );
    assert.match(
      decided(nothing),
      /^unknown: .* not every name server could be asked\. The next check tries again\.$/,
    );
  });

  test('is valid or unknown if the first answer says so', () => {
    assert.match(decided(found(ownership)), /^valid: /);
    assert.match(decided(away, nothing), /^unknown: .* no answer\. The next check tries again\.$/);
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
    ['the null MX', ['0 .'], 'mismatch', /accepts no mail/],
    ['the null MX beside ours', ['0 .', '10 mx.posthorn.example'], 'valid', /null MX/],
    ['another alone', ['10 mx.other.example'], 'mismatch', /another host/],
    ['one that only ends like ours', ['10 xmx.posthorn.example'], 'mismatch', /another host/],
  ];
  for (const [title, values, status, note] of cases) {
    test(`${title}: ${status}`, () => {
      const record = decideOne('mx', found(...values));
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
    ['revoked', ['v=DKIM1; k=rsa; p='], 'mismatch', /revokes the key/],
    ['cut short', [`v=DKIM1; k=rsa; p=${cut}`], 'mismatch', /end of the key is missing/],
    ['another key', ['v=DKIM1; k=rsa; p=MIIBother'], 'mismatch', /another key/],
    [
      'the same in small letters',
      [`v=DKIM1; k=rsa; p=${publicKey.toLowerCase()}`],
      'mismatch',
      /another key/,
    ],
    ['another kind', [`v=DKIM1; k=ed25519; p=${publicKey}`], 'mismatch', /k=rsa/],
    ['another version', [`v=DKIM2; p=${publicKey}`], 'mismatch', /not a DKIM record/],
    ['in quotation marks', [`"v=DKIM1; k=rsa; p=${publicKey}"`], 'mismatch', /quotation marks/],
    ['sha1 only', [`v=DKIM1; h=sha1; p=${publicKey}`], 'mismatch', /SHA-256/],
    ['not for email', [`v=DKIM1; s=tlsrpt; p=${publicKey}`], 'mismatch', /not for email/],
    ['a tag twice', [`v=DKIM1; p=; p=${publicKey}`], 'mismatch', /not a DKIM record/],
    ['two, one right', [`p=${publicKey}`, 'p=MIIBother'], 'mismatch', /2 TXT records.*delete all except/],
    ['two, none right', ['p=a', 'p=b'], 'mismatch', /2 TXT records.*none/],
  ];
  for (const [title, values, status, note] of cases) {
    test(`${title}: ${status}`, () => {
      const record = decideOne('dkim', found(...values));
      assert.equal(record.status, status, record.note);
      assert.equal(record.value, `v=DKIM1; k=rsa; p=${publicKey}`);
      if (note) assert.match(record.note ?? '', note);
      else assert.equal(record.note, undefined);
    });
  }

  test('the old and the new key are shown, and the note of the old says how long to keep it', () => {
    const next = { selector: 'ph20270101-fedcba', publicKey: `${publicKey}new` };
    const records = decide(
      {
        [`TXT ${dkimName}`]: found(`p=${publicKey}`),
        [`TXT ${next.selector}._domainkey.example.com`]: nothing,
      },
      { dkimKeys: [...setup.dkimKeys, next] },
    ).filter(({ purpose }) => purpose === 'dkim');
    assert.deepEqual(
      records.map(({ status }) => status),
      ['valid', 'missing'],
    );
    assert.match(
      records[0]?.note ?? '',
      /Keep this record until a check has found the new key ph20270101-fedcba/,
    );
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
    const value = decide({}, { dkimKeys: [one] }).find((record) => record.name === name)?.value ?? '';
    assert.ok(value.length > 255);
    const decided = decide({ [`TXT ${name}`]: found(value) }, { dkimKeys: [one] });
    assert.equal(decided.find((record) => record.name === name)?.status, 'valid');
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
    ['with the version second', ['p=none; v=DMARC1'], 'mismatch', /does not start/],
    ['in quotation marks', ['"v=DMARC1; p=none"'], 'mismatch', /quotation marks/],
    ['with a later version', ['v=DMARC10; p=none'], 'mismatch', /does not start/],
    ['twice', ['v=DMARC1; p=none', 'v=DMARC1; p=reject'], 'mismatch', /2 DMARC records/],
  ];
  for (const [title, values, status, note] of cases) {
    test(`${title}: ${status}`, () => {
      const record = decideOne('dmarc', found(...values));
      assert.equal(record.status, status);
      if (note) assert.match(record.note ?? '', note);
      else assert.equal(record.note, undefined);
    });
  }

  test('a stricter one is not to be replaced by ours', () => {
    const strict = 'v=DMARC1; p=reject';
    assert.equal(decideOne('dmarc', found(strict)).value, strict);
  });
});

describe('what others wrote', () => {
  test('comes back printable', () => {
    const record = decideOne('ownership', found('\u001b[31mred\u0000\u00e9'));
    assert.deepEqual(record.found, ['\\027[31mred\\000\\233']);
  });

  test('comes back bounded', () => {
    const record = decideOne('ownership', found(...Array.from({ length: 50 }, () => 'x'.repeat(60_000))));
    assert.equal(record.found.length, 5);
    assert.equal(record.found[0]?.length, 501);
    const escaped = decideOne('ownership', found('\u0001'.repeat(400)));
    assert.equal(escaped.found[0]?.length, 501, 'escapes included');
  });

  test('is not handed back for publishing when it cannot be published', () => {
    for (const tail of ['\u0007', ` x=${'y'.repeat(3000)}`]) {
      assert.equal(decideOne('dmarc', found(`v=DMARC1; p=reject;${tail}`)).value, 'v=DMARC1; p=none');
      assert.equal(
        decideOne('spf', found(`v=spf1 mx${tail} ~all`)).value,
        'v=spf1 a:mx.posthorn.example ~all',
      );
    }
  });

  test('does not get into a note unprinted', () => {
    const record = decideOne('mx', found('5 \u001b[31m.example', '10 mx.posthorn.example'));
    assert.match(record.note ?? '', /\\027\[31m\.example/);
  });
});

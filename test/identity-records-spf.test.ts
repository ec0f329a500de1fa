import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { decideSpf, mergeSpf, type SpfContext } from '../src/identities/spf.ts';

const host = 'mx.posthorn.example';
const context: SpfContext = { domain: 'example.com', mailHost: host, isMx: false };
const asMx = { ...context, isMx: true };

describe('a record that lets the host send already is left alone', () => {
  const cases: [string, SpfContext?][] = [
    [`v=spf1 a:${host} -all`],
    [`v=spf1 +a:${host} ~all`],
    [`V=SPF1 include:_spf.google.com A:MX.Posthorn.Example. ~ALL`],
    [`v=spf1 a:${host}/24//64 -all`],
    [`v=spf1 a:${host} redirect=_spf.example.net`],
    [`v=spf1 a:${host}`],
    ['v=spf1 mx -all', asMx],
    ['v=spf1 mx:example.com/28 -all', asMx],
    ['v=spf1 a -all', { ...context, mailHost: 'example.com' }],
    ['v=spf1 +all'],
  ];
  for (const [record, given = context] of cases) {
    test(record, () => {
      assert.deepEqual(decideSpf([record], given), { status: 'valid', value: record, found: [record] });
    });
  }
});

describe('what their record should become', () => {
  const cases: [string, string, SpfContext?][] = [
    ['v=spf1 -all', `v=spf1 a:${host} -all`],
    ['v=spf1', `v=spf1 a:${host}`],
    ['v=spf1 include:_spf.google.com ~all', `v=spf1 include:_spf.google.com a:${host} ~all`],
    ['v=spf1   include:a.example   ?all', `v=spf1 include:a.example a:${host} ?all`],
    ['v=spf1 redirect=_spf.example.net', `v=spf1 a:${host} redirect=_spf.example.net`],
    ['v=spf1 mx redirect=_spf.example.net', `v=spf1 mx a:${host} redirect=_spf.example.net`],
    ['v=spf1 mx exp=why.example -all', `v=spf1 mx a:${host} exp=why.example -all`],
    ['v=spf1 mx -all', `v=spf1 mx a:${host} -all`],
    ['v=spf1 mx:other.example -all', `v=spf1 mx:other.example a:${host} -all`, asMx],
    [`v=spf1 -a:${host} ~all`, `v=spf1 a:${host} ~all`],
    [`v=spf1 -all a:${host}`, `v=spf1 a:${host} -all`],
    ['v=spf1 -mx ~all', `v=spf1 a:${host} -mx ~all`, asMx],
    [`v=spf1 a:x${host} ~all`, `v=spf1 a:x${host} a:${host} ~all`],
    ['v=spf1 a -all', `v=spf1 a a:${host} -all`],
    ['v=spf1 ip4:192.0.2.1 nonsense -all', `v=spf1 ip4:192.0.2.1 nonsense a:${host} -all`],
  ];
  for (const [record, merged, given = context] of cases) {
    test(`${record} becomes ${merged}`, () => {
      const decision = decideSpf([record], given);
      assert.equal(decision.status, 'mismatch');
      assert.equal(decision.value, merged);
      assert.match(decision.note ?? '', /does not name mx\.posthorn\.example: change it/);
    });
  }

  test('past ten lookups the note says that one has to go', () => {
    const record = `v=spf1 ${Array.from({ length: 10 }, (_, index) => `include:${index}.example`).join(' ')} ~all`;
    assert.match(decideSpf([record], context).note ?? '', /more than 10 DNS lookups/);
    assert.doesNotMatch(decideSpf([record.replace(' include:0.example', '')], context).note ?? '', /lookups/);
  });
});

describe('several', () => {
  const cases: [string[], string][] = [
    [['v=spf1 mx ~all', 'v=spf1 include:a.example ~all'], `v=spf1 mx include:a.example a:${host} ~all`],
    [['v=spf1 mx -all', 'v=spf1 mx ?all'], `v=spf1 mx a:${host} ~all`],
    [['v=spf1 -all', 'v=spf1 -all'], `v=spf1 a:${host} -all`],
    [['v=spf1 redirect=a.example', 'v=spf1 mx -all'], `v=spf1 include:a.example mx a:${host} -all`],
    [[`v=spf1 a:${host} -all`, 'v=spf1 mx -all'], `v=spf1 a:${host} mx -all`],
    [['v=spf1 mx', 'v=spf1 ip4:192.0.2.1'], `v=spf1 mx ip4:192.0.2.1 a:${host} ~all`],
  ];
  for (const [records, joined] of cases) {
    test(`${records.join(' and ')} become ${joined}`, () => {
      const decision = decideSpf(records, context);
      assert.equal(decision.status, 'mismatch');
      assert.equal(decision.value, joined);
      assert.match(decision.note ?? '', /There are 2 SPF records.* replace them/);
    });
  }
});

describe('what is about SPF and what is not', () => {
  test('other texts at the domain are neither counted nor shown', () => {
    const record = `v=spf1 a:${host} -all`;
    const decision = decideSpf(['google-site-verification=x', record, 'MS=ms1'], context);
    assert.deepEqual(decision, { status: 'valid', value: record, found: [record] });
  });

  test('with other texts alone it is missing', () => {
    const decision = decideSpf(['google-site-verification=x'], context);
    assert.equal(decision.status, 'missing');
    assert.deepEqual(decision.found, []);
  });

  for (const record of ['"v=spf1 mx -all"', 'v=spf10 mx -all', 'spf: v=spf1 -all', 'v=spf1;mx']) {
    test(`${record} is no SPF record, and the note says so`, () => {
      const decision = decideSpf([record], context);
      assert.equal(decision.status, 'mismatch');
      assert.deepEqual(decision.found, [record]);
      assert.equal(decision.value, `v=spf1 a:${host} ~all`);
      assert.match(decision.note ?? '', /does not start with "v=spf1"/);
    });
  }
});

const term = fc.oneof(
  fc.constantFrom(
    'all',
    '-all',
    '~all',
    '+all',
    'a',
    'mx',
    '-mx',
    '?mx:example.com',
    `a:${host}`,
    `-a:${host}`,
  ),
  fc.constantFrom(
    'include:a.example',
    'redirect=b.example',
    'exp=c.example',
    'ip4:192.0.2.0/24',
    'a/24',
    'x',
    'y=z',
  ),
  fc.stringMatching(/^[!-~]{1,12}$/),
);
const record = fc.array(term, { maxLength: 8 }).map((terms) => ['v=spf1', ...terms].join(' '));
const contexts = fc.record({
  domain: fc.constantFrom('example.com', host),
  mailHost: fc.constant(host),
  isMx: fc.boolean(),
});

test('what it should become is valid, and merging it again changes nothing', () => {
  fc.assert(
    fc.property(fc.array(record, { maxLength: 3 }), contexts, (records, given) => {
      const merged = mergeSpf(records, given);
      assert.equal(decideSpf([merged], given).status, 'valid', merged);
      assert.equal(mergeSpf([merged], given), merged);
    }),
    { numRuns: 500 },
  );
});

test('of one record nothing is lost but what spoke of the host, and the order stays', () => {
  fc.assert(
    fc.property(record, (given) => {
      const speaksOfHost = (text: string) => /^[+?~-]?a:/i.test(text) && text.toLowerCase().includes(host);
      const terms = (text: string) => text.split(' ').filter((one) => !speaksOfHost(one));
      assert.deepEqual(terms(mergeSpf([given], context)), terms(given));
    }),
    { numRuns: 500 },
  );
});

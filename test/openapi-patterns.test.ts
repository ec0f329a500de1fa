/** The patterns in the OpenAPI document and the formats that validate agree. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { addPatterns } from '../src/http/openapi-patterns.ts';
import { makeValidation } from '../src/http/validation.ts';

const rules = { allowHttp: true, production: false };
const strict = { allowHttp: false, production: true };
const id = '01a1dcf7-c357-700e-a78a-57a267febce8';

function patternOf(format: string, given = rules): RegExp {
  const { pattern } = addPatterns({ format }, given) as { pattern?: string };
  assert.ok(pattern, format);
  return new RegExp(pattern, 'u');
}

function makeCheck(format: string, given = rules): (text: string) => boolean {
  const schema = { type: 'string', format };
  const validate = makeValidation(given).compiler({ schema, method: '', url: '', httpPart: 'body' });
  return (text) => validate(text) === true;
}

const maxLength: Record<string, number> = { 'identity-value': 253, 'email-address': 254 };

describe('what a pattern allows is accepted:', () => {
  for (const format of [
    'uuid-list',
    'text',
    'line',
    'cursor',
    'webhook-url',
    'identity-value',
    'email-address',
  ]) {
    test(format, () => {
      const whole = patternOf(format);
      const isAccepted = makeCheck(format);
      // fast-check cannot make texts for a lookahead.
      const made = fc.stringMatching(new RegExp(whole.source.replace('(?=[^@]{1,64}@)', ''), 'u'));
      const fits = (text: string) => whole.test(text) && text.length <= (maxLength[format] ?? 2048);
      fc.assert(fc.property(made.filter(fits), isAccepted), { seed: 16, numRuns: 300 });
    });
  }
});

const samples: Record<string, { good: string[]; bad: string[] }> = {
  'uuid-list': { good: [id, `${id},${id.toUpperCase()}`], bad: ['', `${id},`, Array(51).fill(id).join()] },
  text: { good: ['', 'Zoë\n'], bad: ['a\0b'] },
  line: { good: ['', 'Zoë "x"'], bad: ['\0', 'a\nb', 'a\rb', '\t', '\x7f'] },
  cursor: {
    good: [`1769860800000000_${id}`],
    bad: ['', 'next', `soon_${id}`, `12345678901234567_${id}`, `1769860800000000_${id}_x`],
  },
  'webhook-url': {
    good: [
      ...['http://localhost:4000/hooks', 'https://a.example?x=1', 'https://127.0.0.1:65535/%20'],
      ...['https://a.example:1/', 'https://a.example:0443/', 'https://a.example:59999'],
    ],
    bad: [
      ...['ftp://a.example', 'https://a.example/#x', 'https://u:p@a.example/', 'https://a.example:65536/'],
      ...['https:///a.example/', 'https://a.example\\b', 'https://a"b.example/', 'https://a.example/\\'],
      ...['https://a.example:0/', 'https://a.example:00000'],
    ],
  },
  'identity-value': {
    good: ['example.com', 'ada+tag@example.com', 'xn--mnchen-3ya.example'],
    bad: ['localhost', 'a..b@example.com', '10.0.0.1', '-a.example', `${'a'.repeat(65)}@example.com`],
  },
  'email-address': { good: ['ada@example.com'], bad: ['example.com', 'ada@', '@example.com'] },
};

for (const [format, { good, bad }] of Object.entries(samples)) {
  test(`${format}: the pattern and the format allow and refuse the same`, () => {
    const isAccepted = makeCheck(format);
    const read = (texts: string[]) =>
      texts.map((text) => [text, patternOf(format).test(text), isAccepted(text)]);
    assert.deepEqual(
      read(good),
      good.map((text) => [text, true, true]),
    );
    assert.deepEqual(
      read(bad),
      bad.map((text) => [text, false, false]),
    );
  });
}

test('where webhooks must use https, the pattern says so', () => {
  for (const [url, expected] of [
    ['http://a.example/', false],
    ['https://a.example/', true],
  ] as const) {
    assert.deepEqual(
      [patternOf('webhook-url', strict).test(url), makeCheck('webhook-url', strict)(url)],
      [expected, expected],
    );
  }
});

/** What a bounce means. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type BounceReply, decideBounceType, isSuppressing } from '../src/sending/bounce-type.ts';
import type { BounceSource, BounceType } from '../src/store/send-events.ts';

describe('a bounce', () => {
  const cases: [BounceType, boolean, BounceSource, BounceReply | null][] = [
    ['hard', true, 'smtp', { code: 550, enhanced: '5.1.1' }],
    ['hard', true, 'smtp', { code: 550, enhanced: '5.1.2' }],
    ['hard', true, 'smtp', { code: 553, enhanced: '5.1.3' }],
    ['hard', false, 'smtp', { code: 550, enhanced: '5.1.0' }],
    ['hard', false, 'smtp', { code: 550, enhanced: '5.1.4' }],
    ['hard', true, 'dsn', { code: null, enhanced: '5.1.6' }],
    ['hard', false, 'smtp', { code: 553, enhanced: '5.1.8' }],
    ['hard', true, 'smtp', { code: 556, enhanced: '5.1.10' }],
    ['hard', false, 'smtp', { code: 550, enhanced: '5.1.11' }],
    ['hard', true, 'provider', { code: null, enhanced: '5.2.1' }],
    ['policy', false, 'smtp', { code: 550, enhanced: '5.7.1' }],
    ['policy', false, 'dsn', { code: 550, enhanced: '5.7.26' }],
    ['soft', false, 'smtp', { code: 552, enhanced: '5.2.2' }],
    ['soft', false, 'smtp', { code: 552, enhanced: '5.3.4' }],
    ['soft', false, 'dsn', { code: null, enhanced: '5.4.6' }],
    ['unknown', false, 'smtp', { code: 550, enhanced: null }],
    ['unknown', false, 'smtp', { code: 550, enhanced: '5.0.0' }],
    ['unknown', false, 'smtp', { code: 550, enhanced: '5.2.3' }],
    ['unknown', false, 'smtp', { code: 550, enhanced: '5.2.10' }],
    ['unknown', false, 'smtp', { code: 554, enhanced: '5.6.0' }],
    ['unknown', false, 'smtp', { code: 550, enhanced: '5.10.1' }],
    ['unknown', false, 'suppression', null],
    ['soft', false, 'expired', null],
    ['soft', false, 'expired', { code: 450, enhanced: '4.1.1' }],
    ['soft', false, 'expired', { code: 450, enhanced: '5.1.1' }],
    ['soft', false, 'expired', { code: 421, enhanced: null }],
    ['soft', false, 'dsn', { code: null, enhanced: '4.4.7' }],
    ['soft', false, 'dsn', { code: 550, enhanced: '4.4.7' }],
    ['soft', false, 'dsn', { code: 450, enhanced: '5.1.1' }],
  ];
  for (const [type, suppresses, source, reply] of cases) {
    const said = reply === null ? 'no reply' : `${reply.code ?? 'no code'} ${reply.enhanced ?? 'alone'}`;
    test(`by ${source}, ${said}, is ${type} and ${suppresses ? 'suppresses' : 'does not suppress'}`, () => {
      assert.equal(decideBounceType(source, reply), type);
      assert.equal(isSuppressing(source, reply), suppresses);
    });
  }

  test('only these six suppress', () => {
    const numbers = Array.from({ length: 31 }, (_, i) => i);
    const all = numbers.flatMap((subject) => numbers.map((detail) => `5.${subject}.${detail}`));
    assert.deepEqual(
      all.filter((enhanced) => isSuppressing('smtp', { code: 550, enhanced })),
      ['5.1.1', '5.1.2', '5.1.3', '5.1.6', '5.1.10', '5.2.1'],
    );
  });
});

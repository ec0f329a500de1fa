/** Properties of every text that is read as the value of an identity. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { type AddressOrDomain, readAddressOrDomain } from '../../src/net/address-or-domain.ts';
import { anyCharacter } from '../any-character.ts';

/** Texts that are rather often acceptable: arbitrary ones hardly ever are. */
const letter = fc.oneof(
  fc.constantFrom(...'aZiIkK09-ßẞſıİΣςσéÅǰŉµⱥȺΐあ国한नא١ａＡ①♥💌'),
  fc.constantFrom(
    '\u0301',
    '\u0307',
    '\u030c',
    '\u0323',
    '\u0338',
    '\u0345',
    '\ufe0f',
    '\u200d',
    '\u0130',
    '\u212a',
    '\u2126',
  ),
  fc.string({ unit: anyCharacter, minLength: 1, maxLength: 1 }),
);
const word = fc.string({ unit: letter, minLength: 1, maxLength: 12 });
const label = fc.oneof(
  word,
  fc.stringMatching(/^[a-zA-Z0-9-]{1,63}$/),
  fc.stringMatching(/^xn--[a-z0-9-]{1,12}$/),
);
const domain = fc
  .tuple(
    fc.array(label, { minLength: 1, maxLength: 4 }),
    fc.constantFrom('.', '。', '．'),
    fc.constantFrom('', '.', '.com'),
  )
  .map(([labels, dot, end]) => labels.join(dot) + end);
const local = fc.oneof(word, fc.stringMatching(/^[\w.!#$%&'*+/=?^`{|}~-]{1,66}$/));
const address = fc.tuple(local, fc.oneof(domain, fc.constant('Example.com'))).map((parts) => parts.join('@'));
const anyText = fc.oneof(
  domain,
  address,
  fc.string({ unit: anyCharacter }),
  fc.string({ unit: 'grapheme' }),
  fc.array(fc.nat({ max: 0xffff })).map((units) => String.fromCharCode(...units)),
);

/** For accepted values only: fast-check complains where there are too few of them. */
function forAccepted(arbitrary: fc.Arbitrary<string>, predicate: (identity: AddressOrDomain) => void) {
  return fc.property(arbitrary, (text) => {
    const answer = readAddressOrDomain(text);
    if ('fault' in answer) return fc.pre(false);
    predicate(answer);
  });
}

export const valueProperties = {
  'an identity is a value or a sentence, for any text': fc.property(anyText, (text) => {
    const answer = readAddressOrDomain(text);
    if ('fault' in answer) assert.match(answer.fault, /^[A-Z].*\.$/s);
  }),

  'reading the value or the key of an identity again changes nothing': forAccepted(anyText, (identity) => {
    assert.deepEqual(readAddressOrDomain(identity.value), identity);
    assert.deepEqual(readAddressOrDomain(identity.key), { ...identity, value: identity.key });
  }),

  'an accepted identity keeps to the limits and to plain domains': forAccepted(
    anyText,
    ({ kind, value, key, domain }) => {
      assert.match(domain, /^(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))+$/);
      assert.ok(domain.length <= 253);
      assert.doesNotMatch(domain, /(^|\.)\d+$/);
      assert.ok(!/[\p{Cc}\p{Z}\p{Cs}]/u.test(value));
      if (kind === 'domain') {
        assert.deepEqual([value, key], [domain, domain]);
        return;
      }
      for (const form of [value, key]) {
        assert.ok(form.endsWith(`@${domain}`));
        assert.ok(Buffer.byteLength(form) <= 254);
        assert.ok(Buffer.byteLength(form.slice(0, form.indexOf('@'))) <= 64);
      }
    },
  ),

  'the key of an identity does not depend on case or on composition': forAccepted(
    address,
    ({ value, key }) => {
      for (const other of [value.toLowerCase(), value.normalize('NFC'), value.normalize('NFD')]) {
        const answer = readAddressOrDomain(other);
        // another spelling may be too long
        if ('key' in answer) assert.equal(answer.key, key);
      }
    },
  ),

  'a domain alone and the domain of an address follow the same rules': fc.property(domain, (text) => {
    const alone = readAddressOrDomain(text);
    const inAddress = readAddressOrDomain(`a@${text}`);
    // what a one-letter local part adds can exceed the address's own limit, and nothing else may differ
    if ('domain' in alone && alone.domain.length > 252) return;
    if (text === text.trim()) assert.equal('fault' in alone, 'fault' in inAddress);
    if ('domain' in alone && 'domain' in inAddress) assert.equal(alone.domain, inAddress.domain);
  }),
};

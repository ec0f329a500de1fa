/** The form of an API key: what is made is accepted, what was mistyped is not. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { describeApiKey, hashApiKey, isApiKey, makeApiKey } from '../src/lib/api-key.ts';
import { anyCharacter } from './any-character.ts';

const zeroes = `ph_${'0'.repeat(32)}`;

test('a made key is a key of 41 characters, and no two are the same', () => {
  const keys = Array.from({ length: 1000 }, () => makeApiKey());
  for (const key of keys) {
    assert.match(key, /^ph_[0-9A-Za-z]{38}$/);
    assert.ok(isApiKey(key));
  }
  assert.equal(new Set(keys).size, keys.length);
});

test('the last six characters are the CRC-32 of the others in base62, zero-padded', () => {
  const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
  fc.assert(
    fc.property(madeKey(), (key) => {
      const number = [...key.slice(35)].reduce((sum, digit) => sum * 62 + alphabet.indexOf(digit), 0);
      assert.equal(number, crc32(key.slice(0, 35)));
    }),
  );
});

test('bytes that would favour some letters are thrown away', () => {
  const batches = [Buffer.alloc(32, 248), Buffer.alloc(32, 255), Buffer.alloc(32, 247)];
  const key = makeApiKey(() => batches.shift() ?? assert.fail('asked for more than it needed'));
  assert.equal(key.slice(0, 35), `ph_${'z'.repeat(32)}`);
  assert.ok(makeApiKey((size) => Buffer.alloc(size)).startsWith(zeroes));
});

test('each of the 38 × 61 possible misreadings of one character is refused', () => {
  const key = makeApiKey();
  for (let place = 3; place < key.length; place++) {
    for (const letter of '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz') {
      if (letter === key[place]) continue;
      assert.ok(!isApiKey(key.slice(0, place) + letter + key.slice(place + 1)));
    }
  }
});

test('two swapped neighbours are refused', () => {
  fc.assert(
    fc.property(madeKey(), (key) => {
      for (let place = 0; place < key.length - 1; place++) {
        const [first, second] = key.slice(place, place + 2);
        if (first === second) continue;
        assert.ok(!isApiKey(`${key.slice(0, place)}${second}${first}${key.slice(place + 2)}`));
      }
    }),
  );
});

test('what is not a key is refused', () => {
  const key = makeApiKey();
  for (const text of [
    '',
    'ph_',
    zeroes,
    `${zeroes}000000`,
    ` ${key}`,
    `${key}\n`,
    key.slice(1),
    `${key}0`,
    key.toUpperCase(),
  ]) {
    assert.ok(!isApiKey(text), JSON.stringify(text));
  }
  fc.assert(fc.property(fc.string({ unit: anyCharacter, maxLength: 50 }), (text) => !isApiKey(text)));
});

test('a key is stored as its SHA-256 and shown by its ends', () => {
  const key = makeApiKey();
  assert.deepEqual(hashApiKey(key), createHash('sha256').update(key, 'ascii').digest());
  assert.deepEqual(describeApiKey(key), { prefix: key.slice(0, 8), suffix: key.slice(37) });
});

function madeKey(): fc.Arbitrary<string> {
  // The first draw decides the key; a byte that is thrown away is followed by zeroes.
  return fc.uint8Array({ minLength: 32, maxLength: 32 }).map((bytes) => {
    let drawn = false;
    return makeApiKey((size) => {
      if (drawn) return Buffer.alloc(size);
      drawn = true;
      return bytes;
    });
  });
}

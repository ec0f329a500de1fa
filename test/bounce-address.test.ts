/** Bounce addresses: only what this service made, spelled as it made it, names a recipient. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import {
  deriveBounceKeys,
  isBounceAddress,
  makeBounceAddress,
  readBounceAddress,
} from '../src/sending/bounce-address.ts';

const dayMs = 86_400_000;
const secretKey = Buffer.alloc(32, 1);
const keys = deriveBounceKeys([secretKey]);
const now = Date.parse('2026-03-01T12:00:00Z');
const sent = { messageId: '0195a3c0-1234-7abc-8def-0123456789ab', recipient: 7 };
const localPartOf = (address: string) => address.slice(0, address.lastIndexOf('@'));
const make = (from = sent, by = keys, at = now) => localPartOf(makeBounceAddress(by, from, 'mx.example', at));
const read = (localPart: string, by = keys, at = now) => readBounceAddress(by, localPart, at);

const recipients = fc.record(
  { messageId: fc.uuid(), recipient: fc.integer({ min: 0, max: 65_535 }) },
  { noNullPrototype: true },
);

describe('a bounce address', () => {
  test('has the token in lower-case base32, at most 64 octets before the @, and the domain it was made for', () => {
    const address = makeBounceAddress(keys, sent, 'mx.example', now);
    assert.match(address, /^bounces\+[a-z2-7]{48}@mx\.example$/);
    assert.ok(Buffer.byteLength(localPartOf(address)) <= 64);
  });

  test('names every message and recipient that it was made for', () => {
    fc.assert(
      fc.property(recipients, (made) => {
        const localPart = make(made);
        assert.ok(localPart.length <= 64);
        assert.deepEqual(read(localPart), made);
      }),
    );
  });

  test('is base32 as others write it', () => {
    const bits = [...make().slice('bounces+'.length)]
      .map((character) => 'abcdefghijklmnopqrstuvwxyz234567'.indexOf(character).toString(2).padStart(5, '0'))
      .join('');
    const hex = (bits.match(/.{8}/g) ?? []).map((byte) =>
      Number.parseInt(byte, 2).toString(16).padStart(2, '0'),
    );
    assert.equal(hex.slice(0, 16).join(''), sent.messageId.replaceAll('-', ''));
    assert.equal(hex.slice(16, 18).join(''), '0007');
    assert.equal(Number.parseInt(hex.slice(18, 20).join(''), 16), Math.floor(now / dayMs) + 31);
    assert.equal(hex.length, 30);
  });

  test('is good for 30 days after the try and expires when the day after them begins', () => {
    for (const made of ['2026-03-01T00:00:00.000Z', '2026-03-01T23:59:59.999Z']) {
      const localPart = make(sent, keys, Date.parse(made));
      const end = Date.parse('2026-04-01T00:00:00.000Z');
      assert.ok(end - Date.parse(made) >= 30 * dayMs);
      assert.deepEqual(read(localPart, keys, end - 1), sent);
      assert.equal(read(localPart, keys, end), 'expired');
    }
  });

  test('is known as ours in any case of letters; other addresses are not', () => {
    for (const ours of [make(), make().toUpperCase(), 'bounces+', 'Bounces+x'])
      assert.ok(isBounceAddress(ours), ours);
    for (const other of ['ada', 'bounces', 'bounces-x', 'ada+bounces+x', ''])
      assert.ok(!isBounceAddress(other), other);
  });
});

describe('a forged address', () => {
  test('every flipped bit of every character', () => {
    const localPart = make();
    for (let i = 0; i < localPart.length; i++)
      for (let bit = 0; bit < 7; bit++) {
        const flipped = String.fromCharCode(localPart.charCodeAt(i) ^ (1 << bit));
        const forged = localPart.slice(0, i) + flipped + localPart.slice(i + 1);
        assert.equal(read(forged), 'forged', forged);
      }
  });

  test('every flipped bit of the 30 bytes, written in base32 again', () => {
    const alphabet = 'abcdefghijklmnopqrstuvwxyz234567';
    fc.assert(
      fc.property(recipients, fc.integer({ min: 0, max: 239 }), (made, bit) => {
        const localPart = make(made);
        const at = 'bounces+'.length + Math.floor(bit / 5);
        const changed = alphabet[alphabet.indexOf(localPart[at] ?? '') ^ (1 << (bit % 5))];
        assert.equal(read(localPart.slice(0, at) + changed + localPart.slice(at + 1)), 'forged');
      }),
    );
  });

  test('every other spelling of the same bytes', () => {
    const localPart = make();
    const token = localPart.slice('bounces+'.length);
    const other = [
      localPart.toUpperCase(),
      `bounces+${token.toUpperCase()}`,
      `Bounces+${token}`,
      `${localPart}=`,
      `${localPart}======`,
      ` ${localPart}`,
      `${localPart} `,
      `${localPart}\n`,
      `"${localPart}"`,
      `bounces+${token.slice(0, 24)}-${token.slice(24)}`,
      `bounces+${token.replace(/[lo]/g, (letter) => (letter === 'l' ? '1' : '0'))}0`,
      `bounces++${token}`,
      `bounces+bounces+${token}`,
      `bounces=${token}`,
      token,
    ];
    for (const spelling of other) assert.equal(read(spelling), 'forged', spelling);
    fc.assert(
      fc.property(fc.mixedCase(fc.constant(localPart)), (spelling) => {
        assert.deepEqual(read(spelling), spelling === localPart ? sent : 'forged');
      }),
    );
  });

  test('a token that is cut, longer, empty, or anything else', () => {
    const localPart = make();
    for (let length = 0; length < localPart.length; length++)
      assert.equal(read(localPart.slice(0, length)), 'forged');
    for (const more of ['a', 'aaaaaaaa', localPart]) assert.equal(read(localPart + more), 'forged');
    fc.assert(fc.property(fc.string(), (text) => assert.equal(read(text), 'forged')));
    fc.assert(fc.property(fc.string(), (text) => assert.equal(read(`bounces+${text}`), 'forged')));
  });

  test('the token of another address does not move to another recipient', () => {
    const [one, other] = [make(), make({ ...sent, recipient: 8 })];
    const at = 'bounces+'.length + 32;
    assert.equal(read(one.slice(0, at) + other.slice(at)), 'forged');
  });

  test('an old address with a forged day is forged, not expired', () => {
    const old = make(sent, keys, now - 40 * dayMs);
    assert.equal(read(old), 'expired');
    const at = old.length - 18;
    assert.equal(read(`${old.slice(0, at)}${old[at] === 'a' ? 'b' : 'a'}${old.slice(at + 1)}`), 'forged');
  });
});

describe('keys', () => {
  const [older, newer] = [Buffer.alloc(32, 2), Buffer.alloc(32, 3)];
  const ring = deriveBounceKeys([newer, older]);

  test('every key of the ring reads, so that addresses survive a rotation; the first key signs', () => {
    assert.deepEqual(read(make(sent, deriveBounceKeys([older])), ring), sent);
    assert.deepEqual(read(make(sent, ring), deriveBounceKeys([newer])), sent);
    assert.equal(read(make(sent, ring), deriveBounceKeys([older])), 'forged');
  });

  test('a key that left the ring reads no longer', () => {
    assert.equal(read(make(), ring), 'forged');
    assert.equal(read(make(), []), 'forged');
  });

  test('the signing key is not the secret key', () => {
    for (const key of deriveBounceKeys([secretKey])) assert.ok(!key.export().equals(secretKey));
  });

  test('without a key no address is made', () => {
    assert.throws(() => make(sent, []), /at least one key/);
  });
});

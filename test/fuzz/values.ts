/**
 * Pure functions with random values. fast-check generates the values, and shrinks a value that breaks a property.
 */
import assert from 'node:assert/strict';
import { domainToASCII } from 'node:url';
import fc from 'fast-check';
// @ts-expect-error It has no types.
import { dkimBody } from 'mailauth/lib/dkim/body/index.js';
import { isApiKey, makeApiKey } from '../../src/lib/api-key.ts';
import { hashBody } from '../../src/mailauth/canonical.ts';
import { readKeyName } from '../../src/mailauth/dkim.ts';
import { readName } from '../../src/mailauth/domain.ts';
import { anyCharacter } from '../any-character.ts';
import { read, split, withLineEnd } from '../data-reading.ts';
import { toWire } from '../smtp-client.ts';
import { valueProperties } from './identity-values.ts';
import type { Case, Fuzzed, Target } from './target.ts';

const runsPerCase = 200;

export const values: Target = {
  about: 'functions that depend on their arguments alone',
  async open() {
    const all = Object.entries<fc.IRawProperty<unknown, boolean>>(properties);
    const run = async ({ number, random }: Case) => {
      const [name, property] = all[number % all.length] as (typeof all)[number];
      await fc.assert(property, { numRuns: runsPerCase, seed: random.below(2 ** 31) });
      return [name];
    };
    return { lanes: 1, run, close: async () => {} } satisfies Fuzzed;
  },
};

/** Bytes in which what matters is frequent. */
const telling = fc.constantFrom('\r', '\n', '.', '\r\n', '\r\n.', '\r\n.\r\n', '\n.\n', 'a', '\0', '\xff');
const content = fc.oneof(
  fc.array(telling, { maxLength: 30 }).map((parts) => Buffer.from(parts.join(''), 'latin1')),
  fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)),
);
const cuts = fc.array(fc.nat(40), { maxLength: 60 });

const bodyPiece = fc.constantFrom(' ', '\t', '\r\n', 'a', 'bc', '.', 'é', '\r\n\r\n');
const body = fc.array(bodyPiece, { maxLength: 60 }).map((pieces) => Buffer.from(pieces.join('')));

// biome-ignore format: a list to add to
const oddPieces = ['a', 'b.c', 'é', 'ü.example', '/', '?', '#', '\\', '\0', '@', ':', '%2e', '⒈', '。', '．', '-', '_'];
const namePiece = fc.oneof(fc.constantFrom(...oddPieces), fc.string({ unit: anyCharacter, maxLength: 3 }));
const name = fc.array(namePiece, { minLength: 1, maxLength: 5 }).map((pieces) => pieces.join(''));

const apiKey = fc
  .uint8Array({ minLength: 32, maxLength: 32, max: 247 })
  .map((bytes) => makeApiKey(() => bytes));

const properties = {
  ...valueProperties,

  'a message of any bytes in any pieces comes out as it was, and what follows is left alone':
    fc.asyncProperty(content, content, cuts, async (raw, following, lengths) => {
      const wire = Buffer.concat([toWire(raw), following]);
      const { raw: got, after, reader } = await read(split(wire, lengths), { inMemoryBytes: 200 });
      reader.release();
      assert.deepEqual(got, withLineEnd(raw));
      assert.deepEqual(after, following);
    }),

  'any bytes at all mean the same in whatever pieces they come': fc.asyncProperty(
    content,
    cuts,
    async (wire, lengths) => {
      const whole = await read([wire]);
      const pieces = await read(split(wire, lengths));
      assert.deepEqual(pieces.raw, whole.raw);
      assert.deepEqual(pieces.after, whole.after);
      const expected = /^(?:[\s\S]*?\r\n)??\.\r\n/.exec(wire.toString('latin1'));
      assert.equal(whole.raw === null, expected === null);
      if (expected) assert.equal(whole.after?.length, wire.length - expected[0].length);
    },
  ),

  'whatever a signature names, the domain that is asked for its key is the one that is shown': fc.property(
    name,
    name,
    (domain, selector) => {
      const tags = new Map(Object.entries({ d: domain, s: selector }));
      const asked = readKeyName({ field: '', tags });
      if (asked === null) return;
      const shown = readName(domain);
      assert.ok(shown !== null && readName(selector) !== null);
      assert.match(asked, /^[a-z0-9._-]+$/);
      assert.ok(asked.endsWith(`._domainkey.${domainToASCII(shown) || shown}`), `${asked} of ${shown}`);
    },
  ),

  'whatever lines a body has, its canonical form is the one that another verifier hashes': fc.property(
    body,
    fc.constantFrom('simple' as const, 'relaxed' as const),
    fc.option(fc.nat(80), { nil: undefined }),
    (bytes, form, limit) => {
      const theirs = dkimBody(form, 'sha256', limit ?? false);
      theirs.update(bytes);
      assert.equal(hashBody(bytes, form, 'sha256', limit).hash.toString('base64'), theirs.digest('base64'));
    },
  ),

  'an API key with any single changed character is refused': fc.property(
    apiKey,
    fc.nat({ max: 40 }),
    fc.string({ unit: anyCharacter, maxLength: 1 }),
    (key, place, letter) => {
      fc.pre(key[place] !== letter);
      assert.ok(!isApiKey(key.slice(0, place) + letter + key.slice(place + 1)));
    },
  ),
};

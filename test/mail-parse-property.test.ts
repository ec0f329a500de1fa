/** What holds for every message there is: any bytes, fixtures that were damaged, headers and parts made at random. */
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { checkMessage } from './mail-invariants.ts';

const folder = path.join(import.meta.dirname, 'fixtures/mail');
const fixtures = globSync('*.eml', { cwd: folder })
  .sort()
  .map((name) => readFileSync(path.join(folder, name)));

test('any bytes', async () => {
  await fc.assert(fc.asyncProperty(fc.uint8Array({ maxLength: 2000, size: 'max' }), checkMessage), {
    numRuns: 1000,
  });
});

test('fixtures with bytes changed, taken out, doubled and cut off', async () => {
  const change = fc.record({
    at: fc.double({ min: 0, max: 1, noNaN: true }),
    length: fc.nat(40),
    kind: fc.constantFrom('replace', 'remove', 'repeat', 'cut'),
    bytes: fc.oneof(
      fc.uint8Array({ minLength: 1, maxLength: 8 }),
      fc
        .constantFrom('\r\n', '\r\n\r\n', '--b', '"', '(', '<', '=?', ';', '\0', '\xff', '\r', ' ')
        .map(Buffer.from),
    ),
  });
  await fc.assert(
    fc.asyncProperty(
      fc.constantFrom(...fixtures),
      fc.array(change, { minLength: 1, maxLength: 6 }),
      async (fixture, changes) => {
        let raw = Buffer.from(fixture);
        for (const { at, length, kind, bytes } of changes) {
          const place = Math.floor(at * raw.length);
          const [head, tail] = [raw.subarray(0, place), raw.subarray(place)];
          if (kind === 'cut') raw = Buffer.from(head);
          if (kind === 'remove') raw = Buffer.concat([head, tail.subarray(length)]);
          if (kind === 'repeat') raw = Buffer.concat([head, tail.subarray(0, length), tail]);
          if (kind === 'replace') raw = Buffer.concat([head, bytes, tail.subarray(length)]);
        }
        await checkMessage(raw);
      },
    ),
    { numRuns: 3000 },
  );
});

test('fields and parts put together at random', async () => {
  const pieces = fc.constantFrom(
    'From: ',
    'To: ',
    'Subject: ',
    'Date: ',
    'References: ',
    'Message-ID: ',
    'Content-Type: multipart/mixed; boundary=b',
    'Content-Type: text/plain; charset=',
    'Content-Type: text/html; charset=utf-16; format=flowed',
    'Content-Disposition: attachment; filename*0*=',
    "utf-8''%ff%00",
    'Content-Transfer-Encoding: base64',
    'Content-Transfer-Encoding: quoted-printable',
    '--b',
    '--b--',
    '\r\n',
    '\r\n\r\n',
    '\n',
    ' ',
    '\t',
    '=?utf-16?B?2AA=?=',
    '=?utf-8?Q?=ED=A0=80=00?=',
    'a@b',
    '<a@b>',
    '<',
    '>',
    '"',
    '(',
    ')',
    '\\',
    ',',
    ':',
    ';',
    '=',
    '=0D',
    '\ud83c',
    '\0',
    'é',
    '\xff',
    'utf-7',
    'iso-2022-jp',
    'constructor',
    '__proto__: ',
    '1 Jan 24 10:00 +9999',
  );
  await fc.assert(
    fc.asyncProperty(fc.array(pieces, { maxLength: 60, size: 'max' }), fc.boolean(), (list, isLatin1) =>
      checkMessage(Buffer.from(list.join(''), isLatin1 ? 'latin1' : 'utf8')),
    ),
    { numRuns: 3000 },
  );
});

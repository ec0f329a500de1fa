/** What holds for every message there is: any bytes, fixtures that were damaged, headers and parts made at random. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { extractAttachment, parseMessage } from '../src/mail/parse.ts';

const keys =
  'attachments autoSubmitted bcc cc date from headers html inReplyTo messageId preview references replyTo sender subject text to truncated';
const folder = path.join(import.meta.dirname, 'fixtures/mail');
const fixtures = globSync('*.eml', { cwd: folder })
  .sort()
  .map((name) => readFileSync(path.join(folder, name)));

async function checkMessage(raw: Uint8Array): Promise<void> {
  const before = Buffer.from(raw);
  const started = process.cpuUsage();
  const parsed = await parseMessage(raw);
  assert.ok(process.cpuUsage(started).user < 1_000_000);
  assert.ok(before.equals(raw), 'the message was changed');

  assert.equal(Object.keys(parsed).sort().join(' '), keys);
  checkStrings(parsed);
  const { from, sender, to, cc, bcc, replyTo } = parsed;
  for (const entry of [from, sender, to, cc, bcc, replyTo].flat()) {
    if (entry) assert.match(entry.address, /.@./s);
    assert.notEqual(entry?.name, '');
  }
  for (const id of [parsed.messageId, parsed.inReplyTo, ...parsed.references]) {
    if (id !== null) assert.match(id, /^<[^\s<>]+>$/);
  }
  if (parsed.date !== null) assert.equal(new Date(parsed.date).toISOString(), parsed.date);
  assert.ok([...(parsed.preview ?? '')].length <= 200);
  assert.ok(!parsed.text?.includes('\r') && !parsed.html?.includes('\r'));
  for (const { name, value } of parsed.headers) {
    assert.match(name, /^[!-9;-~]+$/);
    assert.doesNotMatch(value, /[\r\n]/);
  }
  for (const [i, meta] of parsed.attachments.entries()) {
    assert.equal(meta.id, String(i));
    assert.doesNotMatch(meta.filename ?? 'none', /[/\\\p{Cc}]|^\.{0,2}$/u);
    const extracted = await extractAttachment(raw, i);
    assert.ok(extracted);
    assert.deepEqual(extracted.meta, meta);
    assert.equal(extracted.content.length, meta.size);
    assert.equal(createHash('sha256').update(extracted.content).digest('hex'), meta.sha256);
  }
  assert.equal(await extractAttachment(raw, parsed.attachments.length), null);
}

function checkStrings(value: unknown): void {
  if (typeof value === 'string')
    assert.ok(value.isWellFormed() && !value.includes('\0'), JSON.stringify(value));
  else if (value !== null && typeof value === 'object') Object.values(value).forEach(checkStrings);
}

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

/** Content types, dispositions and boundaries that are not written by the rules: an attachment stays an attachment. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { readParameterized } from '../src/mime/parameters.ts';
import { extractAttachment, parseMessage } from '../src/mime/parse.ts';

const parse = (...lines: string[]) => parseMessage(Buffer.from(lines.join('\r\n')));

describe('a file of an untidy type', () => {
  const fields: [field: string, contentType: string, filename: string | null][] = [
    ['Content-Type: application/pdf name="x y.pdf"', 'application/pdf', 'x y.pdf'],
    ['Content-Type: application/pdf name=x.pdf', 'application/pdf', 'x.pdf'],
    ['Content-Type: application/pdf\r\n\tname="x.pdf"', 'application/pdf', 'x.pdf'],
    ['Content-Type: application/pdf, name="x.pdf"', 'application/pdf', 'x.pdf'],
    [
      'Content-Type: application/pdf charset=utf-8 name="a charset=b.pdf"',
      'application/pdf',
      'a charset=b.pdf',
    ],
    ['Content-Type: application/pdf; charset=utf-8 name="x.pdf"', 'application/pdf', 'x.pdf'],
    ['Content-Type: application/pdf; name="x.pdf" charset=utf-8', 'application/pdf', 'x.pdf'],
    ['Content-Type: application/pdf; name="x.pdf"charset=utf-8', 'application/pdf', 'x.pdf'],
    ['Content-Type: application/pdf; charset=utf-8, name=x.pdf', 'application/pdf', 'x.pdf'],
    ["Content-Type: application/pdf name*=utf-8''%C3%A9.pdf", 'application/pdf', 'é.pdf'],
    ['Content-Type: application/pdf; name=My report 1.pdf', 'application/pdf', 'My report 1.pdf'],
    ['Content-Type: application/pdf;; ;name=x.pdf;', 'application/pdf', 'x.pdf'],
    ['Content-Type: "application/pdf"; name=x.pdf', 'application/pdf', 'x.pdf'],
    ['Content-Type: application / pdf; name=x.pdf', 'application/pdf', 'x.pdf'],
    ['Content-Type: Application/PDF ; NAME = x.pdf', 'application/pdf', 'x.pdf'],
    ['Content-Type: message / rfc822', 'message/rfc822', null],
    ['Content-Type: message/ rfc822', 'message/rfc822', null],
    ['Content-Type: message /rfc822; name=x.eml', 'message/rfc822', 'x.eml'],
    ['Content-Type: message\t/\trfc822 name="x.eml"', 'message/rfc822', 'x.eml'],
    ['Content-Type: application/; name=x.zip', 'application/octet-stream', 'x.zip'],
    ['Content-Type: application', 'application/octet-stream', null],
    ['Content-Type: application/*', 'application/octet-stream', null],
    ['Content-Type: image/*; name=x.png', 'application/octet-stream', 'x.png'],
    ['Content-Type: pdf; name=x.pdf', 'application/octet-stream', 'x.pdf'],
    ['Content-Type: name="x.pdf"', 'application/octet-stream', 'x.pdf'],
    [
      'Content-Type: x.pdf\r\nContent-Disposition: inline; filename=x.pdf',
      'application/octet-stream',
      'x.pdf',
    ],
    ['Content-Type: a/b\r\nContent-Disposition: attachment filename="x.pdf"', 'a/b', 'x.pdf'],
    ['Content-Type: a/b\r\nContent-Disposition: attachment, filename=x.pdf', 'a/b', 'x.pdf'],
    ['Content-Type: a/b\r\nContent-Disposition: filename="x.pdf"', 'a/b', 'x.pdf'],
    ['Content-Type: a/b\r\nContent-Disposition: attachment; filename="x.pdf" size=3', 'a/b', 'x.pdf'],
  ];
  for (const [field, contentType, filename] of fields)
    test(field, async () => {
      const part = ['--b', field, '', 'content'];
      const parsed = await parse(
        'Content-Type: multipart/mixed; boundary=b',
        '',
        ...part,
        '--b',
        '',
        'text',
        '--b--',
      );
      assert.equal(parsed.text, 'text');
      assert.deepEqual(
        parsed.attachments.map((attachment) => [
          attachment.contentType,
          attachment.filename,
          attachment.size,
        ]),
        [[contentType, filename, 7]],
      );
    });
});

describe('text of an untidy type is shown', () => {
  const fields = [
    'Content-Type: text',
    'Content-Type: text/',
    'Content-Type: text/*',
    'Content-Type: plain',
    'Content-Type:',
    'Content-Type: text/plain charset=utf-8',
    'Content-Type: text / plain; charset="utf-8',
    'Content-Type: text/plain, charset=utf-8',
    'Content-Type: text/plain; charset=utf-8 format=flowed',
    'Content-Type: text/plain; charset = "utf-8" ; format = flowed',
    'Content-Type: charset=utf-8',
  ];
  for (const field of fields)
    test(field, async () => {
      const parsed = await parse(field, '', 'Grüße');
      assert.deepEqual([parsed.text, parsed.attachments], ['Grüße', []]);
    });
});

describe('a multipart', () => {
  const parts = [
    ['--b', 'Content-Type: text/plain', '', 'text'],
    ['--b', 'Content-Type: a/b; name=x', '', 'content', '--b--', ''],
  ].flat();
  const fields = [
    'Content-Type: multipart/*; boundary=b',
    'Content-Type: multipart/*',
    'Content-Type: multipart/; boundary=b',
    'Content-Type: multipart; boundary=b',
    'Content-Type: multipart / mixed; boundary=b',
    'Content-Type: multipart/mixed boundary=b',
    'Content-Type: multipart/mixed boundary="b"',
    'Content-Type: multipart/mixed, boundary="b"',
    'Content-Type: multipart/mixed; charset=utf-8 boundary="b"',
    'Content-Type: multipart/mixed; boundary="b',
    'Content-Type: multipart/mixed; boundary=" b "',
    'Content-Type: mixed; boundary=b',
    'Content-Type: boundary=b',
    'Content-Type: multipart/mixed',
    'Content-Type: multipart/mixed; boundary',
    'Content-Type: multipart/mixed; boundary=',
    'Content-Type: multipart/mixed; boundary="other"',
    'Content-Type: multipart/mixed; boundary="--b"',
  ];
  for (const field of fields)
    test(field, async () => {
      const raw = Buffer.from([field, '', 'A preamble', ...parts].join('\r\n'));
      const parsed = await parseMessage(raw);
      assert.equal(parsed.text, 'text');
      assert.deepEqual(
        parsed.attachments.map(({ filename, contentType }) => [filename, contentType]),
        [['x', 'a/b']],
      );
      assert.deepEqual(parsed.truncated, []);
      const extracted = await extractAttachment(raw, 0);
      assert.equal(Buffer.from(extracted?.content ?? '').toString(), 'content');
    });

  test('within another, without a boundary', async () => {
    const inner = ['--a', 'Content-Type: multipart/alternative', '', ...parts];
    const last = ['--a', 'Content-Type: c/d', '', 'z', '--a--'];
    const parsed = await parse('Content-Type: multipart/mixed; boundary=a', '', ...inner, ...last);
    assert.equal(parsed.text, 'text');
    assert.deepEqual(
      parsed.attachments.map(({ contentType }) => contentType),
      ['a/b', 'c/d'],
    );
  });

  test('without parts does not take the parts around it for its own', async () => {
    const inner = ['--a', 'Content-Type: multipart/alternative', '', 'words'];
    const last = ['--a', 'Content-Type: c/d', '', 'z', '--a--'];
    const parsed = await parse('Content-Type: multipart/mixed; boundary=a', '', ...inner, ...last);
    assert.equal(parsed.text, 'words');
    assert.deepEqual(
      parsed.attachments.map(({ contentType }) => contentType),
      ['c/d'],
    );
  });

  test('whose lines are not delimiters is shown as text', async () => {
    const parsed = await parse(
      'Content-Type: multipart/mixed',
      '',
      '-- ',
      'Ada',
      '--',
      '--b',
      'words',
      '--c',
      '',
    );
    assert.equal(parsed.text, '-- \nAda\n--\n--b\nwords\n--c\n');
  });
});

describe('parameters', () => {
  test('with or without semicolons, in any order, are the same', () => {
    const parameter = fc.constantFrom(
      ...['name="a; b"', 'charset=utf-8', 'boundary="x y"', 'format=flowed', 'filename="q\\" name=z"'],
    );
    const separator = fc.constantFrom('; ', ';', ' ', '\t', ', ', ' ; ');
    fc.assert(
      fc.property(
        fc.uniqueArray(parameter),
        fc.array(separator, { minLength: 6, maxLength: 6 }),
        (list, separators) => {
          const written = list.map((one, i) => `${separators[i]}${one}`).join('');
          assert.deepEqual(
            readParameterized(`a/b${written}`),
            readParameterized(['a/b', ...list].join('; ')),
            written,
          );
        },
      ),
      { numRuns: 1000 },
    );
  });
});

describe('file names', () => {
  // U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069 (Unicode's Bidi_Control).
  for (const control of '\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069')
    test(`a control of direction is replaced: U+${control.codePointAt(0)?.toString(16)}`, async () => {
      const encoded = Buffer.from(`invoice${control}fdp.exe`).toString('base64');
      for (const name of [`"invoice${control}fdp.exe"`, `"=?utf-8?B?${encoded}?="`]) {
        const [attachment] = (await parse(`Content-Type: a/b; name=${name}`, '', 'x')).attachments;
        assert.equal(attachment?.filename, 'invoice_fdp.exe');
      }
    });

  test('letters that are written from right to left stay', async () => {
    const [attachment] = (await parse('Content-Type: a/b; name="חשבונית.pdf"', '', 'x')).attachments;
    assert.equal(attachment?.filename, 'חשבונית.pdf');
  });
});

/** Messages that are given as fields: every fault is found, and what a reader reads is what was given. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { composeMail, composeWithin } from '../src/mime/compose.ts';
import { readDraft } from '../src/mime/draft.ts';
import { htmlToText, readHtmlPieces } from '../src/mime/html-text.ts';
import { needsEightBit, needsSmtpUtf8 } from '../src/mime/outgoing.ts';
import { extractAttachment, parseMessage } from '../src/mime/parse.ts';
import { makeMessageId, makeReplyFields, replySubject } from '../src/mime/reply.ts';
import { anyCharacter } from './any-character.ts';

type Given = Record<string, unknown>;

const complete: Given = { from: 'ada@example.com', to: 'bob@example.org', subject: 'Hello', text: 'Hi' };

function read(given: Given) {
  return readDraft({ ...complete, ...given });
}

async function compose(given: Given): Promise<Buffer> {
  const { draft, errors } = read(given);
  assert.deepEqual(errors, []);
  assert.ok(draft.from);
  return await composeMail({
    ...draft,
    from: draft.from,
    messageId: makeMessageId('0190-1', draft.from.address),
    date: new Date('2026-01-31T12:00:00Z'),
    inReplyTo: null,
    references: [],
  });
}

function pointers(given: Given): string[] {
  return read(given).errors.map(({ pointer }) => pointer);
}

function base64(text: string | Buffer): string {
  return Buffer.from(text).toString('base64');
}

/** The header as lines, and the names of its fields. */
function readHeader(raw: Buffer): { lines: string[]; names: string[] } {
  const lines = raw.toString('latin1', 0, raw.indexOf('\r\n\r\n')).split('\r\n');
  const names = lines.filter((line) => !/^[ \t]/.test(line)).map((line) => line.slice(0, line.indexOf(':')));
  return { lines, names };
}

/** Microseconds of the processor. */
function measureWork(act: () => void): number {
  const started = process.cpuUsage();
  act();
  const { user, system } = process.cpuUsage(started);
  return user + system;
}

const ownNames = ['From', 'To', 'Subject', 'Message-ID', 'Date', 'MIME-Version', 'Content-Type'];

function checkBytes(raw: Buffer): void {
  assert.doesNotMatch(raw.toString('latin1'), /(?:^|[^\r])\n|\r(?!\n)/);
  assert.ok(raw.toString('latin1').endsWith('\r\n'));
  for (const line of raw.toString('latin1').split('\r\n')) assert.ok(line.length <= 998, line);
  for (const line of readHeader(raw).lines) assert.match(line, /[^ \t]/);
}

describe('a composed message', () => {
  test('has the fields that were given, and no Bcc', async () => {
    const raw = await compose({
      from: { name: 'Ada Lovelace', address: 'ada@example.com' },
      to: '"Doe, Bob" <bob@example.org>',
      cc: [{ name: 'Zoë', address: 'zoe@example.org' }, 'Carl <carl@example.org>'],
      bcc: 'secret@example.org',
      replyTo: 'desk@example.com',
      subject: 'Grüße aus "Köln"',
      text: 'Line one\nLine two\r\nLine three',
      headers: { 'X-Tag': 'a', 'List-Id': '"My list" <list.example.com>' },
    });
    const parsed = await parseMessage(raw);
    assert.deepEqual(parsed.from, { name: 'Ada Lovelace', address: 'ada@example.com' });
    assert.deepEqual(parsed.to, [{ name: 'Doe, Bob', address: 'bob@example.org' }]);
    assert.deepEqual(parsed.cc, [
      { name: 'Zoë', address: 'zoe@example.org' },
      { name: 'Carl', address: 'carl@example.org' },
    ]);
    assert.deepEqual(parsed.replyTo, [{ name: null, address: 'desk@example.com' }]);
    assert.deepEqual(parsed.bcc, []);
    assert.equal(parsed.subject, 'Grüße aus "Köln"');
    assert.equal(parsed.text, 'Line one\nLine two\nLine three\n');
    assert.equal(parsed.html, null);
    assert.equal(parsed.messageId, '<0190-1@example.com>');
    assert.equal(parsed.date, '2026-01-31T12:00:00.000Z');
    assert.doesNotMatch(raw.toString(), /secret/);
    const values = new Map(parsed.headers.map(({ name, value }) => [name.toLowerCase(), value]));
    assert.equal(values.get('x-tag'), 'a');
    assert.equal(values.get('list-id'), '"My list" <list.example.com>');
    checkBytes(raw);
  });

  test('answers another message', async () => {
    const { draft } = read({});
    assert.ok(draft.from);
    const reply = makeReplyFields({ messageId: '<2@x>', inReplyTo: null, references: ['<1@x>'] });
    const raw = await composeMail({
      ...{ ...draft, ...reply, from: draft.from },
      ...{ messageId: '<3@example.com>', date: new Date(0) },
    });
    const parsed = await parseMessage(raw);
    assert.equal(parsed.inReplyTo, '<2@x>');
    assert.deepEqual(parsed.references, ['<1@x>', '<2@x>']);
  });

  for (const [what, text] of [
    ['ASCII', 'plain text'],
    ['German', 'Grüße\n'],
    ['Japanese', '山田太郎\n'.repeat(100)],
    ['a long line', 'x'.repeat(5000)],
    ['a line that ends in blanks', 'a  \nb\t\n'],
    ['dots', '.\n..\n'],
    ['a bare CR', 'a\rb'],
    ['nothing', ''],
  ] as const)
    test(`is all ASCII with a text of ${what}`, async () => {
      const raw = await compose({
        text,
        html: `<p>${text}</p>`,
        subject: text.slice(0, 20).replace(/\s/g, ' '),
      });
      const parsed = await parseMessage(raw);
      assert.equal(parsed.text, text.replace('\r', '\n'));
      assert.equal(needsEightBit(raw), false);
      assert.equal(needsSmtpUtf8(raw, ['bob@example.org']), false);
      checkBytes(raw);
    });

  test('keeps an empty text beside an attachment', async () => {
    const parsed = await parseMessage(
      await compose({ text: '', attachments: [{ filename: 'a.txt', content: base64('x') }] }),
    );
    assert.equal(parsed.text?.trim(), '');
    assert.equal(parsed.attachments.length, 1);
  });

  test('keeps a local part beyond ASCII and needs SMTPUTF8; the domain is in A-labels', async () => {
    const given = { to: 'Jörg <jörg@münchen.example>' };
    assert.deepEqual(read(given).draft.to, [{ name: 'Jörg', address: 'jörg@xn--mnchen-3ya.example' }]);
    const raw = await compose(given);
    assert.equal(needsSmtpUtf8(raw, []), true);
    assert.equal((await parseMessage(raw)).to[0]?.address?.split('@')[0], 'jörg');
    const ascii = await compose({ to: 'bob@münchen.example' });
    assert.equal((await parseMessage(ascii)).to[0]?.address, 'bob@xn--mnchen-3ya.example');
    assert.equal(needsSmtpUtf8(ascii, ['bob@xn--mnchen-3ya.example']), false);
    assert.equal(needsSmtpUtf8(ascii, ['jörg@example.org']), true);
  });

  for (const subject of [
    '=?utf-8?Q?not_encoded?=',
    '  two  blanks  ',
    `a${' '.repeat(500)}b`,
    'x'.repeat(998),
    'é'.repeat(998),
    '😀'.repeat(499),
    'word '.repeat(199),
  ])
    test(`reads the subject ${JSON.stringify(subject.slice(0, 30))}, ${subject.length} characters, as given`, async () => {
      const raw = await compose({ subject });
      checkBytes(raw);
      assert.equal((await parseMessage(raw)).subject, subject.replace(/^ +| +$/g, ''));
      assert.deepEqual(
        readHeader(raw).names.toSorted(),
        [...ownNames, 'Content-Transfer-Encoding'].toSorted(),
      );
    });
});

const message = 'Subject: x\r\n\r\nHi\r\n';

describe('attachments', () => {
  const kinds: [string, { filename: string; contentType?: string }, string | Buffer, string][] = [
    ['bytes', { filename: 'a.bin' }, Buffer.from([0, 255, 13, 10, 10, 13]), 'application/octet-stream'],
    ['a name beyond ASCII', { filename: 'Übersicht 山.pdf' }, 'x', 'application/pdf'],
    ['a long name', { filename: `${'a b"\\'.repeat(50)}.pdf` }, 'x', 'application/pdf'],
    [
      'text with bare LF',
      { filename: 'a.txt', contentType: 'text/plain; charset=utf-8' },
      'a\nb\n',
      'text/plain',
    ],
    ['HTML', { filename: 'a.html', contentType: 'text/html' }, '<p>', 'text/html'],
    ['nothing', { filename: 'a.bin' }, '', 'application/octet-stream'],
    ['gzip', { filename: 'a.gzip' }, 'x', 'application/octet-stream'],
    ['a message', { filename: 'a.eml' }, message, 'message/rfc822'],
    ['a message with LF', { filename: 'a.eml' }, 'Subject: x\n\nHi\n', 'application/octet-stream'],
    ['a message with bare CR', { filename: 'a.eml' }, `${message}a\rb`, 'application/octet-stream'],
    ['a message that begins with LF', { filename: 'a.eml' }, `\n${message}`, 'application/octet-stream'],
    ['a message in 8 bits', { filename: 'a.eml' }, `${message}é`, 'application/octet-stream'],
    [
      'a message with a long line',
      { filename: 'a.eml' },
      `${message}${'x'.repeat(999)}`,
      'application/octet-stream',
    ],
    [
      'a message with the longest line',
      { filename: 'a', contentType: 'message/rfc822' },
      `${message}${'x'.repeat(998)}\r\n`,
      'message/rfc822',
    ],
  ];
  for (const [what, fields, content, contentType] of kinds)
    test(`${what}: byte for byte`, async () => {
      const raw = await compose({ attachments: [{ ...fields, content: base64(content) }] });
      const found = await extractAttachment(raw, 0);
      assert.deepEqual(found?.content, Buffer.from(content));
      assert.equal(found?.meta.contentType, contentType);
      assert.equal(found?.meta.disposition, 'attachment');
      // The parser drops what a name has before a backslash.
      assert.equal(found?.meta.filename, fields.filename.replace(/^.*\\/s, ''));
      assert.equal(needsEightBit(raw), false);
      checkBytes(raw);
    });

  for (const [what, content, stored] of [
    ['in 8 bits', `${message}é\r\n`, `${message}é\r\n`],
    ['with LF', 'Subject: x\n\nHi\n', 'Subject: x\r\n\r\nHi\r\n'],
    ['with bare CR', `${message}a\rb`, `${message}a\r\nb`],
    ['that begins with LF', `\n${message}`, `\r\n${message}`],
  ] as const)
    test(`a message ${what} that is called message/rfc822 stays one, with CRLF`, async () => {
      const given = { filename: 'a', contentType: 'Message/RFC822', content: base64(content) };
      const raw = await compose({ attachments: [given] });
      const found = await extractAttachment(raw, 0);
      assert.deepEqual([found?.content.toString(), found?.meta.contentType], [stored, 'message/rfc822']);
      const encoding = /é/.test(content) ? '8bit' : '7bit';
      const [header = ''] = raw.toString().split(stored);
      assert.match(header, new RegExp(`Message/RFC822[^]*Content-Transfer-Encoding: ${encoding}\r\n`));
      assert.equal(needsEightBit(raw), encoding === '8bit');
      // RFC 2045 §6.2: what contains 8-bit text says so.
      assert.equal(
        /^Content-Transfer-Encoding: 8bit\r\n/m.test(header.split('\r\n\r\n')[0] ?? ''),
        encoding === '8bit',
      );
    });

  test('an attached message counts with its bytes, because it is not encoded', async () => {
    const inner = `${message}${'x\r\n'.repeat(10_000)}`;
    const attachments = [
      { filename: 'a', contentType: 'message/rfc822', contentId: null, content: base64(inner) },
    ];
    const { draft } = readDraft({ to: 'b@example.org', subject: 'x', text: 'Hi', attachments });
    const from = { name: null, address: 'a@example.org' };
    const mail = { ...draft, from, messageId: '<1@x>', date: new Date(0), inReplyTo: null, references: [] };
    const { length } = await composeMail(mail);
    assert.ok('bytes' in (await composeWithin(length, mail)));
    assert.ok('leastBytes' in (await composeWithin(length - 1, mail)));
  });

  test('with a contentId they are inline, beside the HTML', async () => {
    const raw = await compose({
      html: '<img src="cid:logo@x">',
      attachments: [
        { filename: 'logo.png', content: base64('png'), contentId: 'logo@x' },
        { filename: 'notes.txt', content: base64('notes'), contentId: '<notes>' },
        { filename: 'other.txt', content: base64('other') },
      ],
    });
    const { attachments, html, text } = await parseMessage(raw);
    assert.equal(text, 'Hi');
    assert.equal(html, '<img src="cid:logo@x">');
    assert.deepEqual(
      attachments.map(({ filename, disposition, contentId }) => [filename, disposition, contentId]),
      [
        ['logo.png', 'inline', '<logo@x>'],
        ['notes.txt', 'inline', '<notes>'],
        ['other.txt', 'attachment', null],
      ],
    );
    assert.match(raw.toString(), /multipart\/related/);
  });
});

describe('faults', () => {
  const attachment = { filename: 'a.txt', content: 'AAAA' };
  const cases: [string, Given, string[]][] = [
    ['no recipient', { to: undefined }, ['/to']],
    ['only an empty group', { to: 'undisclosed-recipients:;' }, ['/to']],
    ['neither text nor html', { text: undefined }, ['/text']],
    ['no subject', { subject: undefined }, ['/subject']],
    ['LF in the subject', { subject: 'a\nBcc: x@example.org' }, ['/subject']],
    ['CR in the subject', { subject: 'a\rb' }, ['/subject']],
    ['NUL in the subject', { subject: 'a\0' }, ['/subject']],
    ['U+0085 in the subject', { subject: 'a\u0085b' }, ['/subject']],
    ['a subject of 999 characters', { subject: 'x'.repeat(999) }, ['/subject']],
    ['NUL in the text', { text: '\0', html: '\0' }, ['/text', '/html']],
    ['CRLF in a list', { to: 'bob@example.org\r\nBcc: x@example.org' }, ['/to']],
    ['LF in a name', { to: [{ name: 'a\nb', address: 'bob@example.org' }] }, ['/to/0/name']],
    ['LF in an address', { cc: ['ok@example.org', { address: 'b\n@example.org' }] }, ['/cc/1/address']],
    ['a long name', { from: { name: 'x'.repeat(256), address: 'a@example.com' } }, ['/from/name']],
    ['an encoded name', { from: { name: '=?utf-8?Q?a?=', address: 'a@example.com' } }, ['/from/name']],
    ['two authors', { from: 'a@example.com, b@example.com' }, ['/from']],
    ['no author', { from: '' }, ['/from']],
    ['an invalid replyTo', { replyTo: 'nobody' }, ['/replyTo']],
    ['a long list', { to: 'bob@example.org,'.repeat(5000) }, ['']],
    ['very many items', { to: Array(1001).fill('bob@example.org') }, ['/to']],
    [
      'content with a line break',
      { attachments: [{ ...attachment, content: 'AA\nAA' }] },
      ['/attachments/0/content'],
    ],
    [
      'content without padding',
      { attachments: [{ ...attachment, content: 'AAA' }] },
      ['/attachments/0/content'],
    ],
    [
      'content in base64url',
      { attachments: [{ ...attachment, content: 'AA_-' }] },
      ['/attachments/0/content'],
    ],
    [
      'LF in a file name',
      { attachments: [attachment, { ...attachment, filename: 'a\nb' }] },
      ['/attachments/1/filename'],
    ],
    ['an empty file name', { attachments: [{ ...attachment, filename: ' ' }] }, ['/attachments/0/filename']],
    [
      'a long file name',
      { attachments: [{ ...attachment, filename: 'x'.repeat(256) }] },
      ['/attachments/0/filename'],
    ],
    [
      'blanks in a file name',
      { attachments: [{ ...attachment, filename: `a${' '.repeat(99)}b` }] },
      ['/attachments/0/filename'],
    ],
    [
      'LF in a contentId',
      { attachments: [{ ...attachment, contentId: 'a\nb' }] },
      ['/attachments/0/contentId'],
    ],
    [
      'an LF after a contentId',
      { attachments: [{ ...attachment, contentId: 'a\n' }] },
      ['/attachments/0/contentId'],
    ],
    [
      'a contentId beyond ASCII',
      { attachments: [{ ...attachment, contentId: 'ü' }] },
      ['/attachments/0/contentId'],
    ],
    [
      'the same contentId twice',
      {
        attachments: [
          { ...attachment, contentId: 'a' },
          { ...attachment, contentId: '<a>' },
        ],
      },
      ['/attachments/1/contentId'],
    ],
    [
      'LF in a content type',
      { attachments: [{ ...attachment, contentType: 'a/b\n' }] },
      ['/attachments/0/contentType'],
    ],
    [
      'a word as content type',
      { attachments: [{ ...attachment, contentType: 'pdf' }] },
      ['/attachments/0/contentType'],
    ],
    [
      'a multipart as attachment',
      { attachments: [{ ...attachment, contentType: 'Multipart/mixed' }] },
      ['/attachments/0/contentType'],
    ],
    ['very many attachments', { attachments: Array(101).fill(attachment) }, ['/attachments']],
    ['LF in a header name', { headers: { 'X\nBcc': 'a' } }, ['/headers/X\nBcc']],
    [
      'a colon in a header name',
      { headers: { 'X:': 'a', 'a/b~': 'ok', '': 'a' } },
      ['/headers/X:', '/headers/'],
    ],
    ['LF in a header value', { headers: { 'X/~': 'a\n b' } }, ['/headers/X~1~0']],
    ['an empty header value', { headers: { 'X-A': ' ' } }, ['/headers/X-A']],
    [
      'a message with a long line',
      {
        attachments: [
          {
            filename: 'a',
            contentType: 'message/rfc822',
            content: base64(`${message}\r\n${'x'.repeat(999)}`),
          },
        ],
      },
      ['/attachments/0/content'],
    ],
    [
      'a message with NUL',
      { attachments: [{ filename: 'a', contentType: 'message/rfc822', content: base64(`${message}\0`) }] },
      ['/attachments/0/content'],
    ],
    ['a header value that cannot be folded', { headers: { 'X-A': 'x'.repeat(998) } }, ['/headers/X-A']],
    ['a header value of blanks', { headers: { 'X-A': `a${' '.repeat(99)}b` } }, ['/headers/X-A']],
    ['large headers', { headers: { 'X-A': 'x '.repeat(40_000) } }, ['/headers']],
  ];
  for (const [what, given, expected] of cases)
    test(what, () => {
      assert.deepEqual(pointers(given), expected);
      for (const { message } of read(given).errors) assert.match(message, /^["A-Z].*\.$/s);
    });

  test('all of them at once', () => {
    const given = {
      to: ['x'],
      cc: 'y',
      subject: '\n',
      text: '\0',
      attachments: [{ filename: '\n', content: '?' }],
      headers: { Sender: 'a' },
    };
    assert.deepEqual(pointers(given), [
      '/to/0',
      '/cc',
      '/subject',
      '/text',
      '/attachments/0/filename',
      '/attachments/0/content',
      '/headers/Sender',
    ]);
  });

  test('values of a wrong type are left to the schema', () => {
    for (const value of [5, null, true, [], {}, [5], [null], { a: 5 }])
      for (const key of ['from', 'cc', 'bcc', 'replyTo', 'subject', 'text', 'html', 'attachments', 'headers'])
        assert.deepEqual(pointers({ [key]: value }), [], `${key}: ${JSON.stringify(value)}`);
  });

  test('a reply needs neither recipient nor subject', () => {
    assert.deepEqual(pointers({ to: undefined, subject: undefined, inReplyTo: '<1@x>' }), []);
  });

  test('header fields that the service writes itself', () => {
    const refused =
      'From To Cc Bcc Reply-To Subject Sender Date Message-ID References In-Reply-To Received Return-Path DKIM-Signature ' +
      'MIME-Version Resent-From Resent-Bcc Resent-X ARC-Seal ARC-Message-Signature ARC-X Content-Type Content-ID Content-X';
    for (const name of refused.split(' '))
      for (const spelling of [name, name.toLowerCase(), name.toUpperCase()])
        assert.deepEqual(pointers({ headers: { [spelling]: 'a' } }), [`/headers/${spelling}`]);
    for (const name of [
      'X-From',
      'List-Id',
      'Auto-Submitted',
      'Fromm',
      'Contents',
      'Resent',
      'Arc',
      'Importance',
    ])
      assert.deepEqual(pointers({ headers: { [name]: 'a' } }), [], name);
  });
});

describe('address lists', () => {
  const b = 'b@example.org';
  const valid: [unknown, [string | null, string][]][] = [
    ['a@example.org', [[null, 'a@example.org']]],
    ['<a@example.org>', [[null, 'a@example.org']]],
    [
      `a@example.org, ${b}`,
      [
        [null, 'a@example.org'],
        [null, b],
      ],
    ],
    [
      `a@example.org,, ${b},`,
      [
        [null, 'a@example.org'],
        [null, b],
      ],
    ],
    [`"Doe, A. \\"x\\"" <${b}>`, [['Doe, A. "x"', b]]],
    [`O'Brien & Co. <${b}>`, [["O'Brien & Co.", b]]],
    [`${b} (Bob (the builder))`, [['Bob (the builder)', b]]],
    [`山田　太郎 <${b}>`, [['山田　太郎', b]]],
    [`=?utf-8?Q?Zo=C3=AB?= <${b}>`, [['Zoë', b]]],
    [
      `Friends: a@example.org, Bob <${b}>;, c@example.org`,
      [
        [null, 'a@example.org'],
        ['Bob', b],
        [null, 'c@example.org'],
      ],
    ],
    [`Empty:; , ${b}`, [[null, b]]],
    ['a . b (x) @ example.org', [['x', 'a.b@example.org']]],
    [`<@relay.example,@other.example:${b}>`, [[null, b]]],
    ['"b"@example.org', [[null, b]]],
    ['Bob <B@EXAMPLE.org.>', [['Bob', 'B@example.org']]],
    [
      [`Bob <${b}>`, { address: 'c@example.org' }, { name: '  C   D ', address: 'd@example.org' }],
      [
        ['Bob', b],
        [null, 'c@example.org'],
        ['C D', 'd@example.org'],
      ],
    ],
  ];
  for (const [to, expected] of valid)
    test(`read: ${JSON.stringify(to)}`, () => {
      const { draft, errors } = read({ to });
      assert.deepEqual(errors, []);
      assert.deepEqual(
        draft.to.map(({ name, address }) => [name, address]),
        expected,
      );
    });

  const invalid = [
    'nobody',
    'Bob',
    `Doe, Bob <${b}>`,
    `a@example.org ${b}`,
    `a@example.org; ${b}`,
    `<a@example.org> <${b}>`,
    `Bob <${b}`,
    `Bob ${b}>`,
    `"Bob <${b}>`,
    `(Bob <${b}>`,
    `Friends: ${b}`,
    `One: Two: ${b};;`,
    'Bob <>',
    'Bob <bob>',
    `${b} extra`,
    'a@b@example.org',
    '"a b"@example.org',
    'a@[192.0.2.1]',
    'a@localhost',
    'a..b@example.org',
    `a@${'x'.repeat(64)}.example`,
    'a@exa_mple.org',
    `Bob <${b}> x`,
  ];
  for (const to of invalid)
    test(`refused: ${JSON.stringify(to)}`, () => {
      assert.deepEqual(pointers({ to }), ['/to']);
      assert.deepEqual(pointers({ to: [b, to] }), ['/to/1']);
    });

  test('at most 50 recipients, of which repeats count once', () => {
    const many = (count: number, from = 0) =>
      Array.from({ length: count }, (_, i) => `u${from + i}@example.org`);
    const { draft, errors } = read({
      to: many(40),
      cc: [...many(40), ...many(10, 40)],
      bcc: 'U3@EXAMPLE.org',
    });
    assert.deepEqual(errors, []);
    assert.deepEqual([draft.to.length, draft.cc.length, draft.bcc.length], [40, 10, 0]);
    assert.deepEqual(pointers({ to: many(25), cc: many(25, 25), bcc: many(1, 50) }), ['']);
  });

  test('repeats are the same address in another case or spelling', () => {
    const to = [
      'Ada <Ada@Example.org>',
      'ada@example.org',
      'ΣΑΣ@münchen.example',
      'σας@xn--mnchen-3ya.example',
    ];
    assert.deepEqual(read({ to }).draft.to, [
      { name: 'Ada', address: 'Ada@example.org' },
      { name: null, address: 'ΣΑΣ@xn--mnchen-3ya.example' },
    ]);
  });
});

test('a hostile address list costs at most 30 times what an ordinary list of its size costs', () => {
  const fill = (unit: string) => unit.repeat(Math.floor((63 * 1024) / unit.length));
  const ordinary = fill('"Doe, Bob" <bob@example.org>, ');
  read({ to: ordinary });
  const control = Math.max(
    10_000,
    measureWork(() => read({ to: ordinary })),
  );
  for (const unit of [
    '(',
    '()',
    '"',
    '""',
    'a ',
    '.',
    'a.',
    ' ',
    '@',
    'a@',
    '<',
    '<>',
    ',',
    ':',
    'g:;',
    '\\',
    '[',
    '=?',
    '　',
  ])
    for (const end of ['', ' <a@example.org>', 'a@example.org', '>']) {
      const cost = measureWork(() => read({ to: `${fill(unit)}${end}` }));
      assert.ok(cost <= 30 * control, `${JSON.stringify(unit + end)}: ${cost} µs, ordinary ${control} µs`);
    }
});

/** Pieces that break out of a field, if anything does. */
const piece = fc.oneof(
  fc.constantFrom(
    ...[
      '\r',
      '\n',
      '\r\n',
      '\0',
      '\r\nBcc: x@evil.example',
      '\n\n',
      '\r\n ',
      '\t',
      ' ',
      '\u0085',
      '\u2028',
      '\v',
      '\f',
    ],
    ...[
      '"',
      '\\',
      '(',
      ')',
      '<',
      '>',
      '@',
      ',',
      ';',
      ':',
      '.',
      '=?utf-8?Q?',
      '?=',
      '=?utf-8?B?AAAA?=',
      '%0d%0a',
      "''",
      '*',
    ],
    ...[
      'é',
      '山',
      '😀',
      '\ud800',
      '\udc00',
      '\ufeff',
      '\u202e',
      '\u200d',
      'a@example.org',
      'word',
      'x'.repeat(80),
      ' '.repeat(49),
    ],
  ),
  fc.string({ maxLength: 5, unit: anyCharacter }),
);
const nasty = fc.array(piece, { maxLength: 12 }).map((pieces) => pieces.join(''));

test('whatever is given, there is a fault or the message says what was given', async () => {
  let composed = 0;
  const given = fc.record({
    name: nasty,
    list: nasty,
    subject: nasty,
    text: nasty,
    filename: nasty,
    contentId: fc.oneof(nasty, fc.constant('id')),
    header: fc.tuple(fc.oneof(nasty, fc.constant('X-Test')), nasty),
  });
  /** One field at a time is nasty in most runs: if all are, most messages are refused. */
  const tame = {
    name: 'Ada',
    list: 'a@example.org',
    subject: 'S',
    text: 'T',
    filename: 'f.txt',
    contentId: 'id',
  };
  const keys = ['name', 'list', 'subject', 'text', 'filename', 'contentId', 'header', 'all'] as const;
  await fc.assert(
    fc.asyncProperty(given, fc.constantFrom(...keys), async (all, key) => {
      const one = { ...tame, header: ['X-Test', 'v'] as const };
      const { name, list, subject, text, filename, contentId, header } =
        key === 'all' ? all : Object.assign({}, one, { [key]: all[key] });
      const fields = {
        from: { name, address: 'ada@example.com' },
        to: list,
        subject,
        text,
        attachments: [{ filename, content: 'AAAA', contentId }],
        headers: { [header[0]]: header[1] },
      };
      const { draft, errors } = readDraft(fields);
      for (const value of [name, list, subject, filename, contentId, ...header])
        if (/[\r\n\0]/.test(value)) assert.ok(errors.length > 0, JSON.stringify(value));
      if (errors.length > 0) return;
      composed++;
      const raw = await compose(fields);
      checkBytes(raw);
      const { names } = readHeader(raw);
      const expected = [...ownNames.filter((own) => own !== 'Subject' || subject !== ''), header[0]];
      assert.deepEqual(
        names.map((n) => n.toLowerCase()).toSorted(),
        expected.map((n) => n.toLowerCase()).toSorted(),
      );
      const parsed = await parseMessage(raw);
      const plain = (value: string) =>
        value
          .replaceAll('\ufeff', '')
          .toWellFormed()
          .replace(/[\t ]+/g, ' ')
          .trim();
      assert.equal(plain(parsed.from?.name ?? ''), plain(draft.from?.name ?? ''));
      assert.equal(parsed.from?.address, 'ada@example.com');
      assert.equal(parsed.to.length, draft.to.length);
      assert.equal(plain(parsed.subject ?? ''), plain(subject));
      // Readers drop a byte order mark.
      const ended = text
        .replace(/^\ufeff/, '')
        .toWellFormed()
        .replace(/\r\n?/g, '\n');
      assert.equal(parsed.text?.replace(/\n$/, ''), ended.replace(/\n$/, ''));
      assert.equal(parsed.attachments.length, 1);
      assert.equal(parsed.attachments[0]?.contentId, `<${contentId.replace(/^<(.*)>$/, '$1')}>`);
      assert.equal(needsEightBit(raw), /[^ -~]/.test(draft.to.map(({ address }) => address).join('')));
    }),
    { numRuns: 1500 },
  );
  assert.ok(composed > 300, `only ${composed} messages had no fault`);
});

describe('the text of HTML', () => {
  const cases: [string, string][] = [
    ['<p>One</p><p>Two<br>Three</p>', 'One\n\nTwo\nThree'],
    ['  a\n  b<b> c</b>d ', 'a b cd'],
    ['<div>a</div><div><div>b</div></div>', 'a\nb'],
    ['<ul><li>one<li><p>two</p></li></ul>x', '- one\n- two\n\nx'],
    ['<ol><li>one</li><li>two<ul><li>in</li></ul></li><li>three</ol>', '1. one\n2. two\n  - in\n3. three'],
    ['<a href="https://x.example/a?b=1&amp;c=2">here</a>.', 'here (https://x.example/a?b=1&c=2).'],
    ["<a href='https://x.example/'>https://x.example</a>", 'https://x.example'],
    [
      '<a href=mailto:a@x.example>a@x.example</a> <a href="javascript:x">b</a> <a name=c>c</a>',
      'a@x.example b c',
    ],
    ['<a href="https://x.example"><img alt="Logo"></a>', 'Logo (https://x.example)'],
    ['<style>p{}</style><script>x</script><!-- c --><title>t</title>a', 'a'],
    ['<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>', 'a b\nc'],
    ['<pre>a\n  b</pre>c', 'a\n  b\n\nc'],
    ['a<hr>b', 'a\n\n---\n\nb'],
    ['&lt;&uuml;&Uuml;&nbsp;&#8364;&#x20AC;&nope;&amp;lt;', '<üÜ €€&nope;&lt;'],
    ['1 < 2 <3', '1 < 2 <3'],
    ['a<br><br><br><br>b', 'a\n\nb'],
    ['<img src=x>', ''],
    ['', ''],
  ];
  for (const [html, text] of cases) test(JSON.stringify(html), () => assert.equal(htmlToText(html), text));

  test('stands beside HTML that comes without text; HTML without words stays alone', async () => {
    const parsed = await parseMessage(await compose({ text: undefined, html: '<p>Grüße</p>' }));
    assert.deepEqual([parsed.text, parsed.html], ['Grüße', '<p>Grüße</p>']);
    const alone = await parseMessage(await compose({ text: undefined, html: '<img src=x>' }));
    assert.deepEqual([alone.text, alone.html?.trim()], [null, '<img src=x>']);
  });

  test('text is one piece, also if it is full of "<"', () => {
    const html = `<p>${'<'.repeat(1000)}1 < 2 <= 3<b>x`;
    assert.deepEqual(
      [...readHtmlPieces(html)].map(({ source }) => source),
      ['<p>', `${'<'.repeat(1000)}1 < 2 <= 3`, '<b>', 'x'],
    );
  });

  test('is at most three times as long as the HTML: the items of deep lists lose their bullets', () => {
    const lists = '<ol>'.repeat(8);
    assert.equal(
      htmlToText(`${lists}${'<li>a long item'.repeat(2)}`),
      '1. a long item\n              2. a long item',
    );
    for (const unit of ['<li>', '<li>x', '<ul><li>x', '<hr>', '<hr>x', '<td>x', '<br>x', '<a href=tel:>x']) {
      const html = lists + unit.repeat(10_000);
      assert.ok(htmlToText(html).length <= 3 * html.length, unit);
    }
  });

  test('takes linear time: hostile HTML costs at most 30 times what ordinary HTML of its size costs', () => {
    const fill = (unit: string) => unit.repeat(Math.ceil((1024 * 1024) / unit.length));
    const work = (html: string) => measureWork(() => htmlToText(html));
    const ordinary = fill('<p>Hello <b>Ada</b>, see <a href="https://x.example/">this</a> &amp; that.</p>\n');
    work(ordinary);
    const control = Math.max(10_000, work(ordinary));
    for (const unit of [
      ...[
        '<',
        '<!--',
        '<!-- -->',
        '<a href="',
        "<a href='x ",
        '<a href=x>',
        '<a href',
        '<a ',
        '<script',
        '<script></script>',
      ],
      ...[
        '</script ',
        '<style><',
        '&',
        '&#',
        '&#x',
        '&a',
        '<p',
        '<p>',
        '<li>',
        '<ul>',
        '<ol><li>',
        '</ul>',
        '<pre>\n',
        ' ',
        '\n',
      ],
      ...[
        '<td>',
        '<br>',
        '<img alt="',
        '<img alt=x>',
        '<a href="https://x">',
        '<hr>',
        '>',
        '"',
        '<a\thref  ',
      ],
    ]) {
      const cost = work(`${fill(unit)}x>`);
      assert.ok(cost <= 30 * control, `${JSON.stringify(unit)}: ${cost} µs, ordinary ${control} µs`);
    }
  });
});

describe('replies', () => {
  for (const [subject, reply] of [
    ['Hello', 'Re: Hello'],
    ['Re: Hello', 'Re: Hello'],
    ['RE : Hello', 'RE : Hello'],
    ['re[2]: Hello', 're[2]: Hello'],
    ['Regards', 'Re: Regards'],
    ['', 'Re:'],
    [null, 'Re:'],
    ['x'.repeat(2000), `Re: ${'x'.repeat(994)}`],
  ] as const)
    test(`the subject ${JSON.stringify(subject?.slice(0, 20))}`, () =>
      assert.equal(replySubject(subject), reply));

  test('references are those of the parent, then the parent', () => {
    const parent = { messageId: '<3@x>', inReplyTo: '<2@x>', references: ['<1@x>', '<2@x>', '<1@x>'] };
    assert.deepEqual(makeReplyFields(parent), {
      inReplyTo: '<3@x>',
      references: ['<1@x>', '<2@x>', '<3@x>'],
    });
  });

  test('without references the parent of the parent counts', () => {
    const parent = { messageId: '<3@x>', inReplyTo: '<2@x>', references: [] };
    assert.deepEqual(makeReplyFields(parent).references, ['<2@x>', '<3@x>']);
  });

  test('a parent without an id, or with an id that ASCII cannot write', () => {
    const parent = { messageId: null, inReplyTo: null, references: ['<1@x>'] };
    assert.deepEqual(makeReplyFields(parent), { inReplyTo: null, references: ['<1@x>'] });
    for (const messageId of ['<é@x>', `<${'x'.repeat(990)}>`, '<a b@x>', '<a\u0001@x>'])
      assert.deepEqual(makeReplyFields({ ...parent, messageId }), { inReplyTo: null, references: ['<1@x>'] });
    assert.deepEqual(makeReplyFields({ ...parent, references: [] }), { inReplyTo: null, references: [] });
  });

  test('a long chain keeps its first id and its last ones', () => {
    const references = Array.from({ length: 500 }, (_, i) => `<${i}@x>`);
    const many = makeReplyFields({ messageId: '<p@x>', inReplyTo: null, references }).references;
    assert.equal(many.length, 50);
    assert.deepEqual([many[0], many[1], many.at(-2), many.at(-1)], ['<0@x>', '<452@x>', '<499@x>', '<p@x>']);
    const wide = makeReplyFields({
      messageId: '<p@x>',
      inReplyTo: null,
      references: references.map((id) => id.replace('@', `@${'x'.repeat(800)}`)),
    }).references;
    assert.ok(wide.join(' ').length <= 9 * 1024 && wide.length > 5);
    assert.deepEqual([wide[0]?.slice(0, 3), wide.at(-1)], ['<0@', '<p@x>']);
  });
});

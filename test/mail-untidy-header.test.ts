/** Headers without a proper end: what a person would read as the message is its text, and nothing is left out in silence. */
import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';
import fc from 'fast-check';
import { splitMessage } from '../src/mailauth/dkim.ts';
import { type ParsedMessage, parseMessage } from '../src/mime/parse.ts';
import { checkDkim, dns, plain, publish, rsa, sign } from './signing.ts';

beforeEach(() => dns.reset());

const head = ['From: Ada <ada@example.com>', 'To: bob@example.net', 'Subject: Lunch'];
const multipart = ['MIME-Version: 1.0', 'Content-Type: multipart/mixed; boundary=b'];

type Expected = Partial<ParsedMessage>;

const messages: [why: string, lines: string[], expected: Expected][] = [
  [
    'no empty line before the text',
    [...head, 'Hello Bob,', 'shall we meet?', '', 'Ada'],
    {
      subject: 'Lunch',
      text: 'Hello Bob,\nshall we meet?\n\nAda\n',
      preview: 'Hello Bob, shall we meet? Ada',
    },
  ],
  ['no empty line anywhere', [...head, 'Hello Bob,', 'bye'], { text: 'Hello Bob,\nbye\n' }],
  ['no empty line, one line of text', [...head, 'Hello'], { text: 'Hello\n' }],
  ['no empty line, HTML', [...head, 'Content-Type: text/html', '<p>Hi</p>', ''], { html: '<p>Hi</p>\n\n' }],
  [
    'no empty line, HTML with a colon in its first word',
    [...head, 'Content-Type: text/html', '<o:p>Hi</o:p>', ''],
    { html: '<o:p>Hi</o:p>\n\n' },
  ],
  [
    'no empty line, a link',
    [...head, 'https://example.com/', 'Look!'],
    { text: 'https://example.com/\nLook!\n' },
  ],
  [
    'no empty line, text with lines that look like fields',
    [...head, 'Hello Bob,', 'Time: 12:00', 'Place: the usual', 'Note: bring money', '', 'Ada'],
    { text: 'Hello Bob,\nTime: 12:00\nPlace: the usual\nNote: bring money\n\nAda\n' },
  ],
  [
    'no empty line, a quoted message in the text',
    [...head, 'Read this:', 'From: carol@example.org', 'Subject: Dinner', 'To: ada@example.com', '', 'Come!'],
    {
      from: { name: 'Ada', address: 'ada@example.com' },
      text: 'Read this:\nFrom: carol@example.org\nSubject: Dinner\nTo: ada@example.com\n\nCome!\n',
    },
  ],
  ['no empty line, indented text after other text', [...head, 'Hello', '  Bob'], { text: 'Hello\n  Bob\n' }],
  ['a line of spaces for the empty line', [...head, '   ', 'Hello'], { text: 'Hello\n' }],
  ['a line with a tab for the empty line', [...head, '\t', 'Hello', '', 'Ada'], { text: 'Hello\n\nAda\n' }],
  [
    'a line of blanks, then text that looks like a field',
    [...head, ' \t ', 'Note: bring money', 'Hello'],
    { text: 'Note: bring money\nHello\n' },
  ],
  [
    'two lines of blanks',
    [...head, ' ', ' ', 'Hello', '', 'Ada'],
    { subject: 'Lunch', text: ' \nHello\n\nAda\n' },
  ],
  ['a line of blanks, then the empty line', [...head, '  ', '', 'Hello'], { text: 'Hello\n' }],
  [
    'lines that end in CR CR LF',
    [...head.map((line) => `${line}\r`), '\r', 'Hello'],
    { subject: 'Lunch', text: 'Hello\n' },
  ],
  ['a line of blanks at the very end', [...head, '  '], { subject: 'Lunch', text: null }],
  [
    'a line of blanks in a folded field (RFC 5322 §4.2), the last one of the header',
    ['From: ada@example.com', 'Content-Type: text/html;', ' ', '\tcharset=utf-8', '', '<p>'],
    { html: '<p>\n', text: null },
  ],
  [
    'a line of blanks in the middle of a header',
    ['From: ada@example.com', ' ', 'X-Mailer: M', 'Subject: Lunch', '', 'Hello'],
    { subject: 'Lunch', text: 'Hello\n' },
  ],
  [
    'a continuation that lost its blank: the header goes on, and says that a line is missing',
    ['Received: from a.example', 'by b.example; Mon, 1 Jan 2024', ...head, '', 'Hello'],
    { subject: 'Lunch', text: 'Hello\n', truncated: ['headers'] },
  ],
  [
    'the line that separates messages in a mailbox file is not part of the message',
    ['From ada@example.com Mon Jan  1 10:00:00 2024', ...head, '', 'Hello'],
    { subject: 'Lunch', text: 'Hello\n' },
  ],
  ['an escaped line of a mailbox file', ['>From ada', ...head, '', 'Hello'], { text: 'Hello\n' }],
  ['text alone', ['Hello Bob,', 'bye'], { headers: [], text: 'Hello Bob,\nbye\n' }],
  ['indented text alone', ['  Hello', '', 'bye'], { headers: [], text: '  Hello\n\nbye\n' }],
  [
    'no empty line before the first delimiter',
    [...head, ...multipart, '--b', 'Content-Type: text/html', '', '<p>', '--b--'],
    { html: '<p>', text: null, attachments: [] },
  ],
  [
    'a line of blanks before the first delimiter',
    [...head, ...multipart, ' ', '--b', '', 'one', '--b', '', 'two', '--b--'],
    { text: 'one\ntwo' },
  ],
  [
    'a part without its empty line',
    [...head, ...multipart, '', '--b', 'Content-Type: text/plain', 'one', 'more', '--b', '', 'two', '--b--'],
    { text: 'one\nmore\ntwo' },
  ],
  [
    'a part without its empty line, with a forwarded message in its text',
    [
      ...head,
      ...multipart,
      '',
      '--b',
      'Content-Type: text/plain',
      'See below',
      'From: carol',
      '',
      'Come!',
      '--b--',
    ],
    { text: 'See below\nFrom: carol\n\nCome!' },
  ],
  [
    'no empty line, text with words that are also fields',
    [...head, 'Hello', 'Status: open', 'Priority: high', '', 'Ada'],
    { text: 'Hello\nStatus: open\nPriority: high\n\nAda\n' },
  ],
  [
    'a part with a line of blanks',
    [...head, ...multipart, '', '--b', 'Content-Type: text/html', ' ', '<p>', '--b--'],
    { html: '<p>' },
  ],
  [
    'a part with a damaged header says that something is missing',
    [...head, ...multipart, '', '--b', 'words', 'Content-Type: text/html', '', '<p>', '--b--'],
    { html: '<p>', truncated: ['body'] },
  ],
  [
    'multiparts in each other, all without empty lines',
    [
      ...head,
      ...multipart,
      '--b',
      'Content-Type: multipart/alternative; boundary=c',
      '--c',
      'Content-Type: text/plain',
      'one',
      '--c',
      'Content-Type: text/html',
      '<p>',
      '--c--',
      '--b--',
    ],
    { text: 'one', html: '<p>' },
  ],
  [
    'a parameter without its blank, as the last line of the header',
    [...head, 'Content-Type: text/html;', 'charset=utf-8', '', '<p>Hi</p>'],
    { html: '<p>Hi</p>\n', text: null, truncated: ['headers'] },
  ],
  [
    'words after a semicolon that are not a parameter, without an empty line',
    [...head, 'Content-Type: text/html;', '<p class=x>Hi</p>', '', '<p>Bye</p>'],
    { html: '<p class=x>Hi</p>\n\n<p>Bye</p>\n' },
  ],
];

describe('a damaged last line in the header of an attachment', () => {
  const content = 'A file of some bytes.\n';
  const base64 = [
    'Content-Type: application/pdf',
    'Content-Transfer-Encoding: base64',
    'Content-Disposition: attachment;',
  ];
  const parts: Record<string, string[]> = {
    'a file name without its blank': [...base64, 'filename="x.pdf"'],
    'a field name with a blank': [...base64, 'X Note: x'],
    'a field name of 1,000 characters': [...base64, `${'X'.repeat(1000)}: x`],
    'two lines': [...base64, 'filename="x.pdf"', 'words'],
    'text in base64': ['Content-Type: text/plain; name=x', ...base64.slice(1), 'filename="x.txt"'],
    'a file that is not encoded': ['Content-Type: application/pdf', 'X Note: x'],
    'a file name without its blank, not encoded': ['Content-Disposition: attachment;', 'filename=x.pdf'],
  };
  const read = async (lines: string[], empty: string[]) => {
    const isEncoded = lines.includes('Content-Transfer-Encoding: base64');
    const encoded = isEncoded ? Buffer.from(content).toString('base64') : content;
    const raw = [
      ...[...head, ...multipart, '', '--b', '', 'text', '--b'],
      ...[...lines, ...empty, encoded, '--b--', ''],
    ];
    return parseMessage(Buffer.from(raw.join('\r\n')));
  };
  test('base64 without its empty line is no damage', async () => {
    const { attachments, truncated } = await read(base64, []);
    assert.deepEqual([attachments[0]?.size, truncated], [content.length, []]);
  });

  for (const [why, lines] of Object.entries(parts)) {
    test(`${why}: the body begins after the empty line, and the message says that a line is missing`, async () => {
      const { attachments, text, truncated } = await read(lines, ['']);
      assert.deepEqual([attachments.map(({ size }) => size), text], [[content.length], 'text']);
      assert.deepEqual(truncated, ['body']);
    });

    test(`${why}: without an empty line the message says that something is wrong`, async () => {
      assert.deepEqual((await read(lines, [])).truncated, ['body']);
    });
  }
});

for (const lineEnd of ['\r\n', '\n']) {
  describe(`lines end in ${JSON.stringify(lineEnd)}`, () => {
    for (const [why, lines, expected] of messages)
      test(why, async () => {
        const parsed = await parseMessage(Buffer.from(`${lines.join(lineEnd)}${lineEnd}`));
        for (const [key, value] of Object.entries({ truncated: [], ...expected }))
          assert.deepEqual(parsed[key as keyof ParsedMessage], value, key);
      });
  });
}

test('a long text without an empty line is whole', async () => {
  const text = 'All work and no play\n'.repeat(20_000);
  const parsed = await parseMessage(Buffer.from(`${head.join('\n')}\n${text}From: eve@example.com\n`));
  assert.equal(parsed.text, `${text}From: eve@example.com\n`);
  assert.deepEqual([parsed.from?.address, parsed.truncated], ['ada@example.com', []]);
});

describe('what is shown as text is what was signed as body', () => {
  test('in each of these messages', async () => {
    for (const [why, lines] of messages) {
      const raw = Buffer.from(`${lines.join('\r\n')}\r\n`);
      const { text, html, attachments } = await parseMessage(raw);
      const body = Buffer.from(splitMessage(raw)?.body ?? [])
        .toString()
        .replaceAll('\r\n', '\n');
      const shown = (text ?? html ?? '').split('\n')[0] ?? '';
      assert.ok(body.includes(shown), `${why}: ${shown} is not in ${body}`);
      if (body.trim() !== '') assert.ok(text !== null || html !== null || attachments.length > 0, why);
    }
  });

  test('words that a stranger puts at the end of a signed header break its signature', async () => {
    publish(rsa.publicKey);
    const signed = await sign(plain);
    assert.equal((await checkDkim(signed))[0]?.result, 'pass');
    for (const words of ['Send me money', ' \r\nSend me money', 'Send me money\r\nX: y']) {
      const forged = signed.replace('\r\n\r\n', `\r\n${words}\r\n\r\n`);
      const { text, truncated } = await parseMessage(Buffer.from(forged));
      const isShown = text?.includes('Send me money');
      assert.ok(
        isShown ? (await checkDkim(forged))[0]?.result === 'fail' : truncated.includes('headers'),
        words,
      );
    }
  });
});

test('whatever the lines, each one is in the header, in the text, or named as missing', async () => {
  const line = fc.constantFrom(
    'From: ada@example.com',
    'Subject: Lunch',
    'X-Note: x',
    'Note: x',
    'words',
    ' indented',
    ' ',
    '',
    '>From x',
    'From x',
  );
  await fc.assert(
    fc.asyncProperty(fc.array(line, { maxLength: 12 }), async (kinds) => {
      const lines = kinds.map((kind, i) => (kind.trim() === '' ? kind : `${kind} ${i}`));
      const raw = Buffer.from(lines.join('\n'));
      const { headers, text, truncated } = await parseMessage(raw);
      const shown = `${headers.map(({ name, value }) => `${name}: ${value}`).join('\n')}\n${text}`;
      for (const written of lines) {
        if (/^>?From x/.test(written)) continue;
        assert.ok(shown.includes(written.trim()) || truncated.includes('headers'), written);
      }
    }),
    { numRuns: 2000 },
  );
});

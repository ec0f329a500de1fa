/** Text under a wrong charset, under none, or with damage: in header and body, a person reads what the sender meant. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { domainToASCII } from 'node:url';
import fc from 'fast-check';
import { readAuthors } from '../src/mailauth/authors.ts';
import { splitMessage } from '../src/mailauth/dkim.ts';
import { decodeCharset } from '../src/mime/charset.ts';
import { parseMessage } from '../src/mime/parse.ts';

const bytes = (text: string) => Buffer.from(text, 'latin1');
const utf8 = (text: string) => Buffer.from(text).toString('latin1');
/** `text` has one character for each byte. */
const parse = (text: string) => parseMessage(bytes(text));

describe('8-bit bytes inside an encoded word', () => {
  const words: [written: string, text: string][] = [
    ['=?iso-8859-1?Q?Caf\xe9?=', 'Café'],
    ['=?ISO-8859-1?Q?Caf\xe9_=E9?=', 'Café é'],
    ['=?windows-1252?q?\x80 5?=', '€ 5'],
    ['=?koi8-r?Q?\xf0\xd2\xc9\xd7\xc5\xd4?=', 'Привет'],
    ['=?koi8-r?Q?\xf0\xd2?= =?koi8-r?Q?=C9=D7\xc5\xd4?=', 'Привет'],
    ['=?windows-1251?Q?\xcf\xf0?= \xe9', 'Пр é'],
    ['=?shift_jis?Q?\x83e\x83X\x83g?=', 'テスト'],
    ['=?gb2312?Q?\xc4\xe3\xba\xc3?=', '你好'],
    [`=?utf-8?Q?${utf8('Grüße 日本')}?=`, 'Grüße 日本'],
    [`=?iso-8859-1?Q?${utf8('Grüße')}?=`, 'Grüße'],
    [`=?us-ascii?Q?${utf8('Grüße')}?= \xe9`, 'Grüße é'],
    ['=?us-ascii?Q?Caf\xe9?=', 'Café'],
    [`${utf8('é')} =?iso-8859-1?Q?Caf\xe9?= ${utf8('日本')}`, 'é Café 日本'],
    ['=?iso-8859-1?Q?caf\xe9 =\r\n E9?=', 'café é'],
    ['=?iso-8859-1?Q?caf\xe9', '=?iso-8859-1?Q?café'],
  ];
  for (const [written, text] of words)
    test(JSON.stringify(written), async () => {
      assert.equal((await parse(`Subject: ${written}\r\n\r\n`)).subject, text);
      const { from, attachments } = await parse(
        `From: ${written} <a@example.com>\r\nContent-Type: a/b; name="${written}"\r\n\r\n`,
      );
      assert.deepEqual(from, { name: text.replace(/ +/g, ' '), address: 'a@example.com' });
      assert.equal(attachments[0]?.filename, text);
    });
});

describe('bytes in a header are in the charset that its Content-Type names, if they are not UTF-8', () => {
  const values: [charset: string, written: string, text: string][] = [
    ['gb2312', '\xc4\xe3\xba\xc3', '你好'],
    ['shift_jis', '\x83e\x83X\x83g\x95\x5c', 'テスト表'],
    ['iso-8859-2', 'P\xf8\xedli\xb9', 'Příliš'],
    ['koi8-r', '\xf0\xd2\xc9\xd7\xc5\xd4', 'Привет'],
    ['iso-8859-2', utf8('Grüße 日本'), 'Grüße 日本'],
    ['gb2312', 'Caf\xe9 ', 'Café'],
    ['utf-8', 'Caf\xe9 \xe0', 'Café à'],
    ['iso-8859-2', '\xf8 =?iso-8859-1?Q?Caf\xe9?=', 'ř Café'],
    ['x-none', 'Caf\xe9', 'Café'],
    // ASCII would not be ASCII.
    ['utf-16', 'Caf\xe9', 'Café'],
    ['utf-7', '+AGE- Caf\xe9', '+AGE- Café'],
    ['cp037', 'Caf\xe9', 'Café'],
  ];
  for (const [charset, written, text] of values)
    test(`${charset} ${JSON.stringify(written)}`, async () => {
      const parsed = await parse(
        `Subject: ${written}\r\nFrom: "${written}" <a@example.com>\r\nContent-Type: text/plain; charset=${charset}\r\n\r\n`,
      );
      assert.equal(parsed.subject, text);
      if (!written.includes('\x5c')) assert.deepEqual(parsed.from, { name: text, address: 'a@example.com' });
    });

  test('of a multipart it is the charset of the first text', async () => {
    const raw = [
      ...['Subject: \xc4\xe3\xba\xc3', 'From: \xc4\xe3 <a@example.com>'],
      ...[
        'Content-Type: multipart/mixed; boundary=b',
        '',
        '--b',
        'Content-Type: image/png; charset=koi8-r',
        '',
        '',
      ],
      ...['--b', 'Content-Type: multipart/alternative; boundary=c', '', '--c'],
      ...['Content-Type: text/plain; charset=gb2312', '', '\xba\xc3', '--c--', '--b--'],
    ];
    const { subject, from, text } = await parse(raw.join('\r\n'));
    assert.deepEqual([subject, from?.name, text], ['你好', '你', '好']);
  });

  describe('the author that is verified is the author that is shown', () => {
    const types = (charset: string) => [
      `text/plain; charset=${charset}`,
      `multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/plain; charset=${charset}`,
    ];
    const read = async (from: string, type: string) => {
      const raw = bytes(`From: ${from}\r\nContent-Type: ${type}\r\n\r\n`);
      return [(await parseMessage(raw)).from?.address, readAuthors(raw, splitMessage(raw)).domains];
    };

    test('a name of other characters', async () => {
      const shown = { gbk: '你', 'windows-1252': 'Äã' };
      for (const [charset, name] of Object.entries(shown))
        for (const type of types(charset)) {
          const domain = domainToASCII(`${name}.example`);
          assert.deepEqual(await read('<ceo@\xc4\xe3.example>', type), [`ceo@${name}.example`, [domain]]);
        }
    });

    test('an "@" that is the second byte of a character', async () => {
      const from = '<ceo@bank.example\x81@evil.example>';
      for (const type of types('gbk'))
        assert.deepEqual(await read(from, type), [
          'ceo@bank.example丂evil.example',
          [domainToASCII('bank.example丂evil.example')],
        ]);
      for (const type of types('windows-1252'))
        assert.deepEqual(await read(from, type), [null, ['bank.example', 'evil.example']]);
    });
  });
});

describe('a text that says UTF-8 and is not', () => {
  const texts: [written: string, text: string][] = [
    ['d\xe9j\xe0 vu', 'déjà vu'],
    ['\x93so\x94 \x96 \x80 5', '“so” – € 5'],
    ['\xc4\xd6\xdc!', 'ÄÖÜ!'],
    ['\xe9t\xe9', 'été'],
    [`${utf8('Grüße €')} \xff`, 'Grüße € \ufffd'],
    // Characters that were cut in half.
    ['a\xc3', 'a\ufffd'],
    ['a \xe2\x82 b', 'a \ufffd b'],
    ['\x82\xac 5', '\ufffd\ufffd 5'],
    [utf8('\ufffd'), '\ufffd'],
  ];
  for (const [written, text] of texts)
    test(JSON.stringify(written), async () => {
      const { text: shown } = await parse(`Content-Type: text/plain; charset=utf-8\r\n\r\n${written}`);
      assert.equal(shown, text);
    });
});

test('U+FFFD that the sender wrote stays, also without a charset', () => {
  assert.equal(decodeCharset(Buffer.from('a \ufffd'), undefined), 'a \ufffd');
});

describe('bytes in a header without a charset', () => {
  const values: [written: string, text: string][] = [
    ['Caf\xe9', 'Café'],
    ['\x80 5 \x96 \x93so\x94 \x85', '€ 5 – “so” …'],
    ['\x91a\x92 \x99', '‘a’ ™'],
    [utf8('Grüße €'), 'Grüße €'],
    [utf8('日本語'), '日本語'],
  ];
  for (const [written, text] of values)
    test(JSON.stringify(written), async () => {
      const parsed = await parse(
        `Subject: ${written}\r\nFrom: ${written} <a@example.com>\r\nX-Any: ${written}\r\n\r\n`,
      );
      assert.equal(parsed.subject, text);
      assert.equal(parsed.from?.name, text);
      assert.equal(parsed.headers[2]?.value, text);
    });
});

describe('damage in UTF-8 does not spoil the rest', () => {
  const values: [why: string, written: string, text: string][] = [
    ['a byte that is never UTF-8', `${utf8('Grüße')} \xff ${utf8('日本')}`, 'Grüße \ufffd 日本'],
    ['a character cut at the end', `${utf8('Grüße 日')}\xe6\x9c`, 'Grüße 日\ufffd'],
    ['a character cut in the middle', `${utf8('日')}\xe6\x9c ${utf8('語')}`, '日\ufffd 語'],
    ['a Latin-1 byte among UTF-8', `${utf8('Grüße, René, ')}Zo\xeb`, 'Grüße, René, Zo\ufffd'],
  ];
  for (const [why, written, text] of values)
    test(`${why}, in a header and in a body without a charset`, async () => {
      for (const type of [
        '',
        'Content-Type: text/plain\r\n',
        'Content-Type: text/plain; charset=us-ascii\r\n',
      ]) {
        const parsed = await parse(`Subject: ${written}\r\n${type}\r\n${written}`);
        assert.deepEqual([parsed.subject, parsed.text], [text, text]);
      }
    });
});

describe('UTF-16 is read the same in body and header', () => {
  const texts = [
    'Hello',
    'Grüße, 12 €',
    'Привет, мир',
    '日本語 のテスト',
    'こんにちは、世界。\n',
    '🎉 party',
  ];
  const encode = (text: string, order: 'le' | 'be', mark: boolean) => {
    const units = Buffer.from(`${mark ? '\ufeff' : ''}${text}`, 'utf16le');
    return order === 'le' ? units : units.swap16();
  };
  for (const text of texts)
    for (const order of ['le', 'be'] as const)
      for (const mark of [true, false])
        for (const label of ['utf-16', 'unicode', 'ucs-2', 'iso-10646-ucs-2'])
          test(`${label}, ${order}, ${mark ? 'with' : 'without'} a byte order mark: ${JSON.stringify(text)}`, async () => {
            const base64 = encode(text, order, mark).toString('base64');
            const parsed = await parse(
              `Subject: =?${label}?B?${base64}?=\r\nContent-Type: text/plain; charset=${label}\r\n` +
                `Content-Transfer-Encoding: base64\r\n\r\n${base64}\r\n`,
            );
            assert.equal(parsed.text, text);
            assert.equal(parsed.subject, text.trim());
          });

  test('an order that the name gives is kept, unless the mark says otherwise', () => {
    assert.equal(decodeCharset(encode('日本', 'le', false), 'utf-16le'), '日本');
    assert.equal(decodeCharset(encode('日本', 'be', false), 'utf-16be'), '日本');
    assert.equal(decodeCharset(encode('日本', 'be', true), 'utf-16le'), '日本');
    assert.equal(decodeCharset(encode('日本', 'le', true), 'utf-16be'), '日本');
  });

  test('a byte order mark counts also without a charset, or under a wrong one', () => {
    for (const label of [undefined, 'us-ascii', 'utf-8', 'x-unknown', 'iso-8859-1'])
      for (const order of ['le', 'be'] as const)
        assert.equal(
          decodeCharset(encode('Grüße 日本', order, true), label),
          'Grüße 日本',
          `${label} ${order}`,
        );
  });

  test('Chinese without zeros is big-endian (RFC 2781 §4.3)', () => {
    assert.equal(decodeCharset(encode('中文', 'be', false), 'utf-16'), '中文');
  });
});

describe('UTF-8 under a wrong name', () => {
  const western = ['iso-8859-1', 'ISO-8859-15', 'windows-1252', 'latin1', 'us-ascii', 'x-unknown', ''];
  for (const label of western)
    for (const text of ['é', 'Grüße', '12 €', '日本語', 'Привет', '🎉'])
      test(`${label || 'no name'}: ${text}`, async () => {
        assert.equal(decodeCharset(Buffer.from(text), label), text);
        const type = label && `Content-Type: text/plain; charset=${label}\r\n`;
        assert.equal((await parse(`${type}\r\n${utf8(text)}`)).text, text);
        if (!label) return;
        const base64 = Buffer.from(text).toString('base64');
        assert.equal((await parse(`Subject: =?${label}?B?${base64}?=\r\n\r\n`)).subject, text);
      });
  for (const label of ['koi8-r', 'windows-1251', 'iso-8859-2', 'windows-1250', 'windows-1256', 'iso-8859-7'])
    for (const text of ['Привет', 'Łódź', '日本語'])
      test(`${label}: ${text}`, () => {
        assert.equal(decodeCharset(Buffer.from(text), label), text);
      });
  for (const label of [
    'gb2312',
    'gbk',
    'big5',
    'shift_jis',
    'euc-kr',
    'euc-jp',
    'iso-2022-jp',
    'tis-620',
    'cp866',
    'gb18030',
  ])
    test(`${label}: a sentence`, () => {
      const text = '这是一个用错误的字符集发送的句子。';
      assert.equal(decodeCharset(Buffer.from(text), label), text);
    });

  const kept: [why: string, label: string, hex: string, text: string][] = [
    ['Latin-1 stays Latin-1', 'iso-8859-1', 'e9 20 e8', 'é è'],
    ['one byte that is not UTF-8 is enough', 'iso-8859-1', 'c3 a9 20 e9', 'Ã© é'],
    ['Chinese that is also valid UTF-8', 'gb2312', 'c4 a3', '模'],
    ['Thai that is also valid UTF-8', 'tis-620', 'e0 a2 b5', 'เขต'],
    ['Russian in the old DOS charset that is also valid UTF-8', 'cp866', 'e0 a0 a4', 'рад'],
    ['ISO Cyrillic that is also valid UTF-8', 'iso-8859-5', 'c2 b0', 'ТА'],
    ['a Russian letter before a quotation mark', 'windows-1251', 'df bb', 'Я»'],
    ['Japanese that is also valid UTF-8', 'shift_jis', 'c3 bd', 'ﾃｽ'],
  ];
  for (const [why, label, hex, text] of kept)
    test(`${why} stays ${label}`, () => {
      assert.equal(decodeCharset(Buffer.from(hex.replaceAll(' ', ''), 'hex'), label), text);
    });
});

describe('any text', () => {
  const labels = ['iso-8859-1', 'windows-1252', 'us-ascii', 'utf-8', 'x-unknown', undefined];
  test('in UTF-8 is read whatever the Western name says', () => {
    const text = fc.string({ unit: 'grapheme', maxLength: 60 }).filter((one) => !/^\ufeff|\0/.test(one));
    fc.assert(
      fc.property(text, fc.constantFrom(...labels), (written, label) => {
        assert.equal(decodeCharset(Buffer.from(written), label), written);
      }),
      { numRuns: 1000 },
    );
  });

  test('in UTF-8 with one bad byte keeps its other characters, in a header', async () => {
    const letters = fc.string({
      unit: fc.constantFrom('日', 'é', 'ж', '€', 'a'),
      minLength: 4,
      maxLength: 30,
    });
    await fc.assert(
      fc.asyncProperty(letters, fc.nat(), async (written, place) => {
        fc.pre([...written].filter((letter) => letter !== 'a').length > 1);
        const at = place % written.length;
        const raw = `Subject: ${utf8(written.slice(0, at))}\xff${utf8(written.slice(at))}\r\n\r\n`;
        assert.equal((await parse(raw)).subject, `${written.slice(0, at)}\ufffd${written.slice(at)}`);
      }),
      { numRuns: 500 },
    );
  });
});

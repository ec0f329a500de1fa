/** Decoding by charset names that senders use, and encoded words. The expected text comes from the charsets' own tables. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { decodeCharset } from '../src/mime/charset.ts';
import { decodeLine } from '../src/mime/encoded-words.ts';

const decode = (hex: string, label?: string) =>
  decodeCharset(Buffer.from(hex.replaceAll(' ', ''), 'hex'), label);

describe('a text under every name of its charset', () => {
  const charsets: [text: string, hex: string, ...names: string[]][] = [
    ['é→', 'c3 a9 e2 86 92', 'utf-8', 'UTF8', ' Utf-8 ', 'x-utf-8', 'utf_8', 'utf8mb4', 'unicode-1-1-utf-8'],
    ['é→+', '2b 41 4f 6b 68 6b 67 2d 2b 2d', 'utf-7', 'UTF7', 'unicode-1-1-utf-7', 'x-unicode-2-0-utf-7'],
    ['é→', '00 e9 21 92', 'utf-16', 'utf-16be', 'UTF16', 'unicodeFFFE'],
    ['é→', 'ff fe e9 00 92 21', 'utf-16', 'utf-16le', 'unicode', 'ucs-2', 'iso-10646-ucs-2'],
    ['é→', '00 00 00 e9 00 00 21 92', 'utf-32be'],
    [
      'é, €“',
      'e9 2c 20 80 93',
      'windows-1252',
      'cp1252',
      'cp-1252',
      'x-cp1252',
      'windows1252',
      'csWindows1252',
    ],
    [
      'é, €“',
      'e9 2c 20 80 93',
      'iso-8859-1',
      'ISO8859_1',
      'latin1',
      'latin-1',
      'iso_8859-1:1987',
      'cp819',
      'cp28591',
    ],
    ['é€', 'e9 a4', 'iso-8859-15', 'latin9', 'latin-9', 'ISO8859-15'],
    ['Łód', 'a3 f3 64', 'windows-1250', 'win-1250', 'cp1250', 'iso-8859-2', 'csISOLatin2'],
    ['Привет', 'cf f0 e8 e2 e5 f2', 'windows-1251', 'win1251', 'CP1251', 'x-cp1251', 'cswindows1251'],
    ['Привет', 'f0 d2 c9 d7 c5 d4', 'koi8-r', 'KOI8R', 'koi8_r', 'csKOI8R', 'koi8-u', 'koi8-ru', 'koi'],
    ['Привет', '8f e0 a8 a2 a5 e2', 'cp866', 'IBM866', 'ibm-866', 'csIBM866'],
    ['Привет', '8f f0 e8 e2 e5 f2', 'x-mac-cyrillic', 'x-mac-ukrainian'],
    ['Γεια', 'c3 e5 e9 e1', 'windows-1253', 'iso-8859-7', 'greek'],
    ['ığş', 'fd f0 fe', 'windows-1254', 'iso-8859-9', 'latin5'],
    ['שלום', 'f9 ec e5 ed', 'windows-1255', 'iso-8859-8', 'iso-8859-8-i', 'ISO-8859-8-E', 'hebrew'],
    ['سلا', 'd3 e1 c7', 'windows-1256'],
    ['سلا', 'd3 e4 c7', 'iso-8859-6', 'iso-8859-6-i', 'arabic'],
    ['ąžė', 'e0 fe eb', 'windows-1257'],
    ['ơư', 'f5 fd', 'windows-1258'],
    ['กข', 'a1 a2', 'windows-874', 'tis-620', 'TIS620', 'iso-8859-11', 'dos-874', 'cp874'],
    ['é€', '8e db', 'macintosh', 'x-mac-roman', 'mac', 'MacRoman'],
    ['é░', '82 b0', 'cp437', 'IBM437', 'cp850', 'cp-850'],
    ['é€', '82 d5', 'cp858', 'IBM00858'],
    ['テスト①～', '83 65 83 58 83 67 87 40 81 60', 'shift_jis', 'Shift-JIS', 'sjis', 'x-sjis', 'MS_Kanji'],
    [
      'テスト①',
      '83 65 83 58 83 67 87 40',
      'cp932',
      'windows-31j',
      'x-ms-cp932',
      'csWindows31J',
      'ms932',
      'ibm932',
    ],
    ['テスト', 'a5 c6 a5 b9 a5 c8', 'euc-jp', 'EUCJP', 'x-euc-jp', 'x-eucjp', 'cp51932'],
    [
      'テスト',
      '1b 24 42 25 46 25 39 25 48 1b 28 42',
      'iso-2022-jp',
      'csISO2022JP',
      'iso2022jp',
      'ISO-2022-JP-2',
    ],
    ['テスト', '1b 24 42 25 46 25 39 25 48 1b 28 42', 'cp50220', 'cp50221', 'junet', 'iso-2022-jp-ms'],
    ['汉字', 'ba ba d7 d6', 'gb2312', 'GB_2312-80', 'x-gbk', 'gbk', 'gb18030', 'cp936', 'ms936', 'euc-cn'],
    ['汉😀', 'ba ba 94 39 fc 36', 'gb18030', 'gbk', 'gb2312'],
    ['漢字', 'ba 7e a6 72', 'big5', 'Big-5', 'x-big5', 'cn-big5', 'cp950', 'big5-hkscs'],
    ['啲', '9d f8', 'big5-hkscs', 'big5'],
    [
      '한글',
      'c7 d1 b1 db',
      'euc-kr',
      'EUCKR',
      'ks_c_5601-1987',
      'KS-C-5601-1987',
      'ks_c_5601',
      'ksc5601',
      'korean',
    ],
    ['똠', '8c 63', 'ks_c_5601-1987', 'euc-kr', 'cp949', 'windows-949', 'x-windows-949', 'uhc', 'ms949'],
    ['Việt', '56 69 ae 74', 'viscii'],
  ];
  for (const [text, hex, ...names] of charsets)
    for (const name of names) test(`${name}: ${text}`, () => assert.equal(decode(hex, name), text));
});

describe('a name without meaning', () => {
  const names = [
    undefined,
    '',
    'us-ascii',
    'ANSI_X3.4-1968',
    'x-unknown',
    'unknown-8bit',
    'iso-8859-99',
    '"',
    'é',
  ];
  // Codecs of iconv-lite that are not charsets, and names that every object has.
  const traps = [
    'base64',
    'hex',
    'binary',
    'utf-7-imap',
    '_internal',
    'constructor',
    '__proto__',
    'toString',
  ];
  for (const name of [...names, ...traps])
    test(`${name}: UTF-8 if the bytes are, else windows-1252`, () => {
      assert.equal(decode('6e 61 c3 af', name), 'naï');
      assert.equal(decode('6e 61 ef 80', name), 'naï€');
    });
});

describe('broken bytes', () => {
  const broken: [name: string, hex: string, text: string][] = [
    ['utf-8', '61 c3 a9 ff 62', 'aé\ufffdb'],
    ['utf-8', 'ed a0 80 00 62', '\ufffd\ufffd\ufffdb'],
    ['utf-16le', '61 00 00 d8 62 00 63', 'a\ufffdb\ufffd'],
    ['shift_jis', '61 83', 'a\ufffd'],
    ['gb18030', '61 ff 62', 'a\ufffdb'],
    ['euc-kr', '61 c7', 'a\ufffd'],
    ['big5', '61 ba', 'a\ufffd'],
    ['iso-2022-jp', '61 ff 62', 'a\ufffdb'],
    ['cp437', '61 00 62', 'ab'],
  ];
  for (const [name, hex, text] of broken) test(`${name} ${hex}`, () => assert.equal(decode(hex, name), text));

  test('UTF-7 whose base64 is too short, does not end, is half a pair, or has bytes above 127', () => {
    const read = (text: string) => decodeCharset(Buffer.from(text), 'utf-7');
    assert.equal(read('1+1=2, +AG, a+'), '1+1=2, +AG, a+');
    assert.equal(read('+AGEAY'), 'a');
    assert.equal(read('+2D0-!'), '\ufffd!');
    assert.equal(read('é +AGE-'), 'é +AGE-');
  });

  test('any bytes under any name give well-formed text without NULs', () => {
    const name = fc.constantFrom(
      ...['utf-7', 'utf-16', 'utf-32', 'cesu-8', 'cp949', 'big5', 'cp932', 'euc-jp', 'gb18030'],
    );
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 40 }), fc.oneof(name, fc.string()), (bytes, label) => {
        const text = decodeCharset(Buffer.from(bytes), label);
        assert.ok(text.isWellFormed() && !text.includes('\0'));
      }),
      { numRuns: 2000 },
    );
  });
});

describe('encoded words', () => {
  const lines: [why: string, written: string, text: string][] = [
    ['any case', '=?UTF-8?q?a=c3=a9?= =?utf-8?b?w6k=?=', 'aéé'],
    ['a character split between base64 and quoted-printable', '=?utf-8?B?8J8=?= =?utf-8?Q?=8E=89?=', '🎉'],
    ['a character split in Shift_JIS', '=?shift_jis?Q?=83e=83?= =?Shift_JIS?Q?X=83g?=', 'テスト'],
    [
      'Japanese without an escape at the start of the second word',
      '=?iso-2022-jp?B?GyRCJUY=?= =?iso-2022-jp?B?JTkbKEI=?=',
      'テス',
    ],
    ['one broken word does not break its neighbour', '=?utf-8?Q?=E2=82?= =?utf-8?Q?=C3=A9?=', '\ufffdé'],
    ['two charsets', '=?koi8-r?Q?=D4?= =?utf-8?Q?=C3=A9?=', 'тé'],
    ['text between words stays', '=?utf-8?Q?a?= b =?utf-8?Q?c?=', 'a b c'],
    ['a blank at the end of a word stays', '=?utf-8?Q?a_?=b =?utf-8?Q?c ?=d', 'a b c d'],
    ['no blanks between words', '=?utf-8?Q?a?==?utf-8?Q?b?=', 'ab'],
    ['padding inside a run', '=?utf-8?B?YQ==?= =?utf-8?B?Yg==?=', 'ab'],
    ['a language', '=?utf-8*en?Q?a?=', 'a'],
    ['UTF-8 that calls itself ASCII or something unknown', '=?us-ascii?Q?=C3=A9?= =?x?Q?=C3=A9?=', 'éé'],
    ['characters that are not encoded', '=?utf-8?Q?é?=', 'é'],
    ['a word that was folded inside', '=?utf-8?Q?=C3= A9 a?=', 'é a'],
    ['an equals sign that begins nothing', '=?utf-8?Q?1=2_=?= =?utf-8?Q?a=?=', '1=2 =a='],
    ['an empty word', 'a =?utf-8?Q??= b', 'a  b'],
    ['not words', '=?utf-8?X?a?= =??Q?a?= =?utf-8?Q?a', '=?utf-8?X?a?= =??Q?a?= =?utf-8?Q?a'],
    ['control characters', '=?utf-8?Q?a=00=0D=0Ab?=', 'a b'],
    ['Korean of Outlook', '=?ks_c_5601-1987?B?jGO55rCi?=', '똠방각'],
  ];
  for (const [why, written, text] of lines) test(why, () => assert.equal(decodeLine(written), text));
});

test('UTF-8, ASCII and what Node decodes load no table of iconv-lite', () => {
  const source = `
    const { createRequire } = await import('node:module');
    const { decodeCharset } = await import('./src/mime/charset.ts');
    const loaded = () => Object.keys(createRequire(import.meta.url).cache).filter((file) => /iconv-lite.encodings/.test(file));
    const bytes = Buffer.from([0xe9]);
    const counts = [];
    for (const name of [undefined, 'us-ascii', 'utf-8', 'iso-2022-jp']) decodeCharset(bytes, name);
    counts.push(loaded().length);
    for (const name of ['iso-8859-1', 'gb2312', 'gb18030', 'shift_jis', 'euc-jp', 'x-unknown']) decodeCharset(bytes, name);
    counts.push(loaded().filter((file) => /tables/.test(file)).length);
    decodeCharset(bytes, 'euc-kr');
    counts.push(loaded().filter((file) => /tables/.test(file)).length);
    console.log(JSON.stringify(counts));
  `;
  const cwd = path.dirname(import.meta.dirname);
  const counts = execFileSync(process.execPath, ['--input-type=module', '-e', source], {
    cwd,
    encoding: 'utf8',
  });
  assert.deepEqual(JSON.parse(counts), [0, 0, 1]);
});

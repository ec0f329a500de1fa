/** The rules for an identity's value, example by example. What holds for every text is in test/fuzz/identity-values.ts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readAddressOrDomain } from '../src/net/address-or-domain.ts';

const l = (length: number) => 'l'.repeat(length);
const domainOf = (length: number) => `${`${l(49)}.`.repeat(5).slice(0, length - 4)}.com`;
const longDomain = (length: number) => `${l(63)}.${l(63)}.${l(63)}.${l(length - 192)}`;

/** [written, normalised]; the key is the same unless a third is given */
const accepted: [text: string, value: string, key?: string][] = [
  ['example.com', 'example.com'],
  ['EXAMPLE.Com', 'example.com'],
  ['example.com.', 'example.com'],
  ['mail.sub.example.co.uk', 'mail.sub.example.co.uk'],
  ['a.bc', 'a.bc'],
  ['3com.com', '3com.com'],
  ['1.2.3.4.com', '1.2.3.4.com'],
  ['0x7f.com', '0x7f.com'],
  ['a-b.example', 'a-b.example'],
  ['r3---sn-ab.example.com', 'r3---sn-ab.example.com'],
  ['münchen.de', 'xn--mnchen-3ya.de'],
  ['MÜNCHEN.DE', 'xn--mnchen-3ya.de'],
  ['mu\u0308nchen.de', 'xn--mnchen-3ya.de'],
  ['xn--mnchen-3ya.de', 'xn--mnchen-3ya.de'],
  ['XN--Mnchen-3YA.de', 'xn--mnchen-3ya.de'],
  ['faß.de', 'xn--fa-hia.de'],
  ['fass.de', 'fass.de'],
  ['İstanbul.com', 'xn--istanbul-o0e.com'],
  ['ısparta.com', 'xn--sparta-o9a.com'],
  ['ｅｘａｍｐｌｅ．ｃｏｍ', 'example.com'],
  ['例え。テスト', 'xn--r8jz45g.xn--zckzah'],
  ['例え。テスト。', 'xn--r8jz45g.xn--zckzah'],
  ['пример.рф', 'xn--e1afmkfd.xn--p1ai'],
  ['νίκος.gr', 'xn--kxawhkp.gr'],
  ['א1.com', 'xn--1-zhc.com'],
  ['💌.la', 'xn--rr8h.la'],
  ['❤️.la', 'xn--qei.la'],
  ['नीम.com', 'xn--l2bm7c.com'],
  ['نامه\u200cای.com', 'xn--mgba3gch31f060k.com'],
  [`${l(63)}.com`, `${l(63)}.com`],
  [longDomain(253), longDomain(253)],
  [`${longDomain(253)}.`, longDomain(253)],
  ['ada@example.com', 'ada@example.com'],
  ['Ada.Lovelace@Example.COM', 'Ada.Lovelace@example.com', 'ada.lovelace@example.com'],
  ['ada@example.com.', 'ada@example.com'],
  ['ada+news@example.com', 'ada+news@example.com'],
  ["!#$%&'*+-/=?^_`{|}~@example.com", "!#$%&'*+-/=?^_`{|}~@example.com"],
  ['ada_b@example.com', 'ada_b@example.com'],
  ['-@example.com', '-@example.com'],
  ['1@example.com', '1@example.com'],
  ['a%b@example.com', 'a%b@example.com'],
  ['ada@MÜNCHEN.de', 'ada@xn--mnchen-3ya.de'],
  ['Jürgen@example.com', 'Jürgen@example.com', 'jürgen@example.com'],
  ['Ju\u0308rgen@example.com', 'Ju\u0308rgen@example.com', 'jürgen@example.com'],
  ['J\u030can@example.com', 'J\u030can@example.com', 'ǰan@example.com'],
  ['İpek@example.com', 'İpek@example.com', 'i\u0307pek@example.com'],
  ['ıpek@example.com', 'ıpek@example.com'],
  ['Straße@example.com', 'Straße@example.com', 'straße@example.com'],
  ['STRAẞE@example.com', 'STRAẞE@example.com', 'straße@example.com'],
  ['ΝΙΚΟΣ@example.gr', 'ΝΙΚΟΣ@example.gr', 'νικοσ@example.gr'],
  ['νικος@example.gr', 'νικος@example.gr', 'νικοσ@example.gr'],
  ['ＡＤＡ@example.com', 'ＡＤＡ@example.com', 'ａｄａ@example.com'],
  ['用户@例え。テスト', '用户@xn--r8jz45g.xn--zckzah'],
  ['💌@example.com', '💌@example.com'],
  [`${l(64)}@example.com`, `${l(64)}@example.com`],
  [`${'ü'.repeat(32)}@example.com`, `${'ü'.repeat(32)}@example.com`],
  [`${l(64)}@${domainOf(189)}`, `${l(64)}@${domainOf(189)}`],
  [`a@${longDomain(252)}`, `a@${longDomain(252)}`],
];

const refused: [text: string, why: RegExp][] = [
  ['', /empty/],
  [' ', /white space/],
  [' example.com', /white space/],
  ['example.com\n', /white space/],
  ['ada@example.com\u00a0', /white space/],
  ['\ufeffexample.com', /white space/],
  ['exam ple.com', /a space/],
  ['Ada <ada@example.com>', /a space/],
  ['exam\tple.com', /U\+0009/],
  ['exam\u0000ple.com', /U\+0000/],
  ['ada\u0000@example.com', /U\+0000/],
  ['ada\r\n@example.com', /U\+000D/],
  ['ada\u007f@example.com', /U\+007F/],
  ['exam\u00adple.com', /U\+00AD/],
  ['exam\u200bple.com', /U\+200B/],
  ['ada\u202e@example.com', /U\+202E/],
  ['ada\u3000b@example.com', /U\+3000/],
  ['ada\ud800@example.com', /U\+D800/],
  ['exam\udc00ple.com', /U\+DC00/],
  ['ada\u{e000}@example.com', /U\+E000/],
  ['ada\u{10ffff}@example.com', /U\+10FFFF/],
  ['example', /only one part/],
  ['example.', /only one part/],
  ['💌', /only one part/],
  ['ada@localhost', /only one part/],
  ['.', /dot/],
  ['..', /dot/],
  ['.example.com', /starts with a dot/],
  ['example..com', /two dots in a row/],
  ['example.com..', /two dots in a row/],
  ['例え。。テスト', /two dots in a row/],
  ['\ufe0f.com', /dot|order/],
  ['-example.com', /hyphen/],
  ['example-.com', /hyphen/],
  ['example.-com', /hyphen/],
  ['-é.com', /hyphen/],
  ['é-.com', /hyphen/],
  ['exam_ple.com', /cannot contain '_'/],
  ['_dmarc.example.com', /cannot contain '_'/],
  ['*.example.com', /cannot contain '\*'/],
  ['xn--.com', /xn--/],
  ['xn--a.com', /xn--/],
  ['xn--example-.com', /xn--/],
  ['xn--zzzzzz99999.com', /xn--/],
  ['xn--MNCHEN-3YA-.de', /xn--/],
  ['example.xn--0', /xn--/],
  ['xn--a.münchen.de', /order/],
  ['xn--é.com', /order/],
  ['\u0301a.com', /order/],
  ['1א.com', /order/],
  ['exam\u200dple.com', /order/],
  ['⑴.com', /not allowed in a domain|order/],
  ['℀.com', /not allowed in a domain|order/],
  ['exam／ple.com', /not allowed in a domain|order/],
  ['ada＠example.com', /not allowed in a domain|order/],
  ['exam％41ple.com', /not allowed in a domain|order/],
  [`${l(64)}.com`, /longer than 63/],
  [`${'ü'.repeat(60)}.com`, /longer than 63/],
  [longDomain(254), /longer than 253/],
  [`${longDomain(254)}.`, /longer than 253/],
  [l(65536), /too long/],
  ['1.2.3.4', /IP address/],
  ['1.2.3.4.', /IP address/],
  ['127.1', /IP address/],
  ['2130706433', /IP address/],
  ['0x7f000001', /IP address/],
  ['0x7f.1', /IP address/],
  ['0177.0.0.0x1', /IP address/],
  ['1.2.3.4.5', /IP address/],
  ['999.999.999.999', /IP address/],
  ['１.２.３.４', /IP address/],
  ['1。2。3。4', /IP address/],
  ['example.123', /ends in a number/],
  ['example.0x1', /ends in a number/],
  ['example.①', /number|order/],
  ['[1.2.3.4]', /brackets/],
  ['[::1]', /brackets/],
  ['ada@[1.2.3.4]', /brackets/],
  ['ada@[IPv6:::1]', /brackets/],
  ['ada@1.2.3.4', /IP address/],
  ['::1', /cannot contain ':'/],
  ['exam%70le.com', /cannot contain '%'/],
  ['example.com:25', /cannot contain ':'/],
  ['https://example.com', /cannot contain ':'/],
  ['example.com/', /cannot contain '\/'/],
  ['example.com?x', /cannot contain '\?'/],
  ['example.com#x', /cannot contain '#'/],
  ['exam\\ple.com', /cannot contain '\\'/],
  ['example.com,example.org', /cannot contain ','/],
  ['mailto:ada@example.com', /contains ':'/],
  ['<ada@example.com>', /contains '<'/],
  ['a(b)@example.com', /contains '\('/],
  ['a"b"@example.com', /contains '"'/],
  ['a\u037eb@example.com', /contains U\+037E, which stands for ';'/],
  ['jac\u212a@example.com', /contains U\+212A, which stands for 'k'/],
  ['a\u1fefb@example.com', /contains U\+1FEF, which stands for '`'/],
  ['"ada"@example.com', /Quoted/],
  ['"ada b"@example.com', /Quoted/],
  ['"a@b"@example.com', /Quoted/],
  ['a@b@example.com', /more than one "@"/],
  ['ada@@example.com', /more than one "@"/],
  ['@example.com', /nothing before/],
  ['ada@', /no domain after/],
  ['@', /nothing before/],
  ['ada@.', /dot/],
  ['.ada@example.com', /dot/],
  ['ada.@example.com', /dot/],
  ['a..da@example.com', /dot/],
  ['.@example.com', /dot/],
  ['ada@example..com', /two dots in a row/],
  ['ada@-example.com', /hyphen/],
  ['ada@exam_ple.com', /cannot contain '_'/],
  [`${l(65)}@example.com`, /longer than 64/],
  [`${'ü'.repeat(33)}@example.com`, /longer than 64/],
  // 64 octets as written, 96 in lower case
  [`${'Ⱥ'.repeat(32)}@example.com`, /longer than 64/],
  [`${l(64)}@${domainOf(190)}`, /longer than 254/],
  [`a@${longDomain(253)}`, /longer than 254/],
];

for (const [text, value, key = value] of accepted) {
  test(`accepts ${show(text)}`, () => {
    const domain = value.slice(value.indexOf('@') + 1);
    const kind = domain === value ? 'domain' : 'email';
    assert.deepEqual(readAddressOrDomain(text), { kind, value, key, domain });
  });
}

for (const [text, why] of refused) {
  test(`refuses ${show(text)}`, () => {
    const answer = readAddressOrDomain(text);
    assert.ok('fault' in answer, `accepted as ${JSON.stringify(answer)}`);
    assert.match(answer.fault, why);
    assert.match(answer.fault, /^[A-Z].*\.$/, 'a sentence');
  });
}

test('upper and lower case have one key wherever a letter has one of each', () => {
  let letters = 0;
  for (let code = 0x41; code <= 0x10ffff; code++) {
    const lower = String.fromCodePoint(code);
    const upper = lower.toUpperCase();
    if (upper === lower || upper.toLowerCase() !== lower) continue;
    const answer = readAddressOrDomain(`a${upper}@example.com`);
    assert.deepEqual(answer, {
      ...readAddressOrDomain(`a${lower}@example.com`),
      value: `a${upper}@example.com`,
    });
    letters++;
  }
  assert.ok(letters > 1000);
});

test('every letter has a key that is its own key', () => {
  // beyond are only ideographs, tags and private use
  for (let code = 0; code < 0x20000; code++) {
    const answer = readAddressOrDomain(`a${String.fromCodePoint(code)}\u0301@example.com`);
    if ('fault' in answer) continue;
    assert.deepEqual(readAddressOrDomain(answer.key), { ...answer, value: answer.key });
  }
});

test('64 KiB of anything is refused, in linear time', { timeout: 60_000 }, () => {
  for (const unit of [
    'a',
    'a.',
    'ü',
    '国',
    '@',
    '"',
    ' ',
    '.',
    '1.',
    '\u0301',
    '\u00ad',
    'xn--',
    'Σ',
    '\ud800',
  ]) {
    const text = unit.repeat(65536 / unit.length);
    for (const form of [text, `${text}@example.com`, `ada@${text}`, text.slice(0, 1024)]) {
      assert.ok('fault' in readAddressOrDomain(form));
    }
  }
});

function show(text: string): string {
  const escaped = JSON.stringify(text).replace(
    /[^ -~\p{L}]/gu,
    (c) => `\\u{${c.codePointAt(0)?.toString(16)}}`,
  );
  return escaped.length > 60 ? `${escaped.slice(0, 24)}… (${text.length} characters)` : escaped;
}

/**
 * Generates messages from the grammar of mail: headers, addresses, encoded words, parameters, signatures and trees of parts, mostly
 * well-formed. A message is a string of bytes (latin1), because it may mix charsets.
 */
import { charsets, domains, encodings, multiparts, tokens, types, words } from './mime-words.ts';
import type { Random } from './random.ts';

export function makeMessage(random: Random): Buffer {
  const fields = random.times(random.between(0, 14), () => makeField(random));
  const from = random.chance(0.8) ? [`From: ${makeAddresses(random, 1)}`] : [];
  const part = makePart(random, random.between(0, 4));
  const lines = [...shuffle(random, [...from, ...fields]), part].join('\r\n');
  return Buffer.from(changeLineEnds(random, lines), 'latin1');
}

function changeLineEnds(random: Random, text: string): string {
  const way = random.below(20);
  if (way === 0) return text.replaceAll('\r\n', '\n');
  if (way === 1) return text.replaceAll('\r\n', '\r');
  if (way === 2) return text.replaceAll('\r\n', () => random.pick(['\r\n', '\n', '\r', '\n\r', '\r\r\n']));
  return text;
}

function shuffle<T>(random: Random, items: T[]): T[] {
  for (let i = items.length - 1; i > 0; i--) {
    const j = random.below(i + 1);
    [items[i], items[j]] = [items[j] as T, items[i] as T];
  }
  return items;
}

function makeField(random: Random): string {
  const name = random.pick(['To', 'Cc', 'Bcc', 'Reply-To', 'Sender', 'From', 'to']);
  const ids = () => random.times(random.size(30) + 1, () => makeId(random)).join(fold(random));
  const make = random.pick<() => string>([
    () => `${name}: ${makeAddresses(random, random.size(20) + 1)}`,
    () => `${name}: ${makeAddresses(random, random.size(6) + 1)}`,
    () => `Subject: ${makeText(random)}`,
    () => `Date: ${makeDate(random)}`,
    () => `Message-ID: ${random.chance(0.8) ? makeId(random) : ids()}`,
    () => `In-Reply-To: ${ids()}`,
    () => `References: ${ids()}`,
    () =>
      `Auto-Submitted: ${random.pick(['auto-replied', 'no', 'auto-generated; x=y', '(c) auto-notified', ''])}`,
    () => `Received: from ${makeText(random)}; ${makeDate(random)}`,
    () => makeSignature(random, 'DKIM-Signature'),
    () => makeSignature(random, random.pick(['ARC-Seal', 'ARC-Message-Signature', 'DKIM-Signature'])),
    () => `ARC-Authentication-Results: i=${random.between(0, 3)}; ${makeText(random)}`,
    () => `MIME-Version: 1.0`,
    () =>
      `${random.pick(['X-Odd', 'List-Id', 'x'.repeat(1000), 'A B', '\xe9', '', ' X', 'Subject ', 'From\t'])}: ${makeText(random)}`,
    () => makeText(random),
  ]);
  return make();
}

function fold(random: Random): string {
  return random.pick([' ', ' ', ' ', '', '\t', '\r\n ', '\r\n\t', '\r\n \r\n ', '  ']);
}

function makeText(random: Random): string {
  return random
    .times(random.size(12) + 1, () =>
      random.pick<() => string>([
        () => random.pick(words),
        () => random.pick(words),
        () => random.pick(tokens),
        () => makeEncodedWord(random),
        () =>
          random
            .bytes(random.size(12))
            .toString('latin1')
            .replaceAll(/[\r\n]/g, ' '),
      ])(),
    )
    .join(fold(random));
}

function makeEncodedWord(random: Random): string {
  const content = random.chance(0.5)
    ? Buffer.from(random.pick(words), 'latin1')
    : random.bytes(random.size(40));
  const isBase64 = random.chance(0.5);
  const hex = (byte: number) => `=${byte.toString(16).padStart(2, '0')}`;
  const text = isBase64 ? content.toString('base64') : [...content].map(hex).join('');
  const letter = isBase64 ? random.pick(['B', 'b']) : random.pick(['Q', 'q']);
  const cut = random.chance(0.1) ? text.slice(0, random.below(text.length + 1)) : text;
  return `=?${random.pick(charsets)}?${letter}?${cut}?=`;
}

function makeAddresses(random: Random, count: number): string {
  const all = random
    .times(count, () => makeAddress(random))
    .join(random.pick([',', ', ', ',\r\n ', ' ', ';', ',,']));
  const way = random.below(10);
  if (way === 0) return `${makeText(random)}: ${all};`;
  return way === 1 ? `undisclosed-recipients:;, ${all}` : all;
}

function makeAddress(random: Random): string {
  const local = random.pick([
    'ada',
    'a.b',
    '"a b"',
    '"a@b"',
    'a..b',
    '\xc3\xa9',
    '"',
    'a(b)',
    'x'.repeat(70),
    '',
  ]);
  const domain = random.chance(0.8)
    ? random.pick(domains)
    : random.pick(['[1.2.3.4]', 'a b', '', '.', 'B\xfccher.example']);
  const spec = `${local}${random.chance(0.95) ? '@' : ' @ '}${domain}`;
  const name = random.pick<() => string>([
    () => `"${random.pick(words)}"`,
    () => random.pick(words),
    () => makeEncodedWord(random),
    () => `"${makeEncodedWord(random)}"`,
    () => makeText(random),
    () => `eve@${random.pick(domains)}`,
    () => `<eve@${random.pick(domains)}>`,
    () => '',
  ])();
  return random.pick([
    spec,
    `<${spec}>`,
    `${name} <${spec}>`,
    `${spec} (${name})`,
    `${name} <@x,@y:${spec}>`,
    `${name} <${spec}`,
  ]);
}

function makeId(random: Random): string {
  const id = `${random.pick(['1', 'abc', '"q q"', 'x'.repeat(random.size(2000) + 1)])}@${random.pick(domains)}`;
  return random.pick([`<${id}>`, `<${id}>`, `<${id}>`, id, `<${id}`, `<<${id}>>`, `(${id})`, `< ${id} >`]);
}

function makeDate(random: Random): string {
  const day = random.pick(['1', '31', '30', '29', '00', '99', '']);
  const month = random.pick(['Jan', 'Feb', 'feb', 'December', 'Foo']);
  const year = random.pick(['2024', '24', '124', '0000', '9999', '99999']);
  const zone = random.pick(['+0000', '-2359', '+9999', 'GMT', 'EST', '(x)', '', 'Z', '+0060']);
  return `${random.pick(['Mon, ', '', 'Foo '])}${day} ${month} ${year} ${random.pick(['10:00:00', '23:59:60', '24:00', '1:2'])} ${zone}`;
}

function makeSignature(random: Random, name: string): string {
  const tags = [
    `v=${random.pick(['1', '2', ''])}`,
    `a=${random.pick(['rsa-sha256', 'ed25519-sha256', 'rsa-sha1', 'x'])}`,
    `c=${random.pick(['relaxed/relaxed', 'simple/simple', 'relaxed', 'x/y', 'simple/relaxed'])}`,
    `d=${random.chance(0.8) ? random.pick(domains) : makeText(random)}`,
    `s=${random.pick(['s1', 's2', '*', 'a.b', '', '\xc3\xa9'])}`,
    `i=${random.pick(['1', '2', '3', '0', '@a.example', 'x'])}`,
    `h=${random.times(random.size(40) + 1, () => random.pick(['from', 'to', 'subject', 'From', 'x', ''])).join(':')}`,
    `bh=${random.bytes(random.pick([32, 32, 20, 0])).toString('base64')}`,
    `b=${random.bytes(random.pick([256, 64, 0])).toString('base64')}`,
    `cv=${random.pick(['none', 'pass', 'fail', 'x'])}`,
    ...random.some(3, () =>
      random.pick([
        'l=0',
        'l=5',
        'l=-1',
        'l=99999999999999999999',
        't=1',
        'x=1',
        'x=99999999999',
        'q=dns/txt',
        'z=a:b|c',
      ]),
    ),
  ];
  return `${name}: ${shuffle(
    random,
    tags.filter(() => random.chance(0.93)),
  ).join(`;${fold(random)}`)}`;
}

/** The header of a part, an empty line and its body. */
function makePart(random: Random, depth: number): string {
  if (depth > 0 && random.chance(0.7)) return makeMultipart(random, depth);
  const type = random.pick(types);
  const encoding = random.pick(encodings);
  const fields = [
    `Content-Type: ${type}${makeParameters(random, ['charset', 'name', 'format', 'delsp'])}`,
    `Content-Transfer-Encoding: ${encoding}`,
    `Content-Disposition: ${random.pick(['attachment', 'inline', 'x', ''])}${makeParameters(random, ['filename'])}`,
    `Content-ID: ${makeId(random)}`,
  ].filter(() => random.chance(0.7));
  return [...fields, '', encode(random, makeContentOf(random, type, depth), encoding)].join('\r\n');
}

function makeContentOf(random: Random, type: string, depth: number): string {
  if (type === 'message/rfc822' && depth > 0) return makePart(random, depth - 1);
  if (type === 'text/rfc822-headers') return random.some(10, () => makeField(random)).join('\r\n');
  if (/^message\/(delivery|feedback|disposition)-/.test(type)) return makeReport(random);
  return makeContent(random);
}

/** The content of the structured part of a report. */
function makeReport(random: Random): string {
  const typed = () => random.pick(['rfc822; ', 'utf-8; ', 'dns; ', 'smtp; ', '; ', '']);
  const field = () =>
    random.pick<() => string>([
      () => '',
      () => `${random.pick(['Final', 'Original'])}-Recipient: ${typed()}${makeAddress(random)}`,
      () => `Action: ${random.pick(['failed', 'delayed', 'Delivered (x)', makeText(random)])}`,
      () => `Status: ${random.pick(['5.1.1', '4.0.0 (x)', '5.1', makeText(random)])}`,
      () => `Diagnostic-Code: ${typed()}${random.pick(['550 5.1.1 ', '421-', ''])}${makeText(random)}`,
      () => `Remote-MTA: ${typed()}${makeText(random)}`,
      () => `Original-Message-ID: ${makeId(random)}`,
      () => `Feedback-Type: ${random.pick(['abuse', 'not-spam', makeText(random)])}`,
      () => `Original-Rcpt-To: ${makeAddress(random)}`,
      () => `Disposition: manual-action/MDN-sent-manually; ${random.pick(['displayed', makeText(random)])}`,
    ])();
  return random.times(random.size(200) + 1, field).join('\r\n');
}

function makeMultipart(random: Random, depth: number): string {
  const boundary = random.pick(['b', 'b', `b${depth}`, '=_b', 'b b', '', "'()+_,-./:=?", 'x'.repeat(80)]);
  const children = random.times(random.size(8) + random.below(3), () => makePart(random, depth - 1));
  const line = () => `--${boundary}${random.pick(['', '', '', ' ', '\t'])}`;
  const quote = random.chance(0.6) ? '"' : '';
  return [
    `Content-Type: multipart/${random.pick(multiparts)}; boundary=${quote}${boundary}${quote}${makeParameters(random, ['start', 'type'])}`,
    ...random.some(1, () => `Content-Transfer-Encoding: ${random.pick(encodings)}`),
    '',
    ...random.some(1, () => makeText(random)),
    ...children.flatMap((child) => [line(), child]),
    ...(random.chance(0.85) ? [`--${boundary}--`] : []),
    ...random.some(2, () => makeText(random)),
  ].join('\r\n');
}

function makeParameters(random: Random, names: readonly string[]): string {
  return random
    .some(5, () => {
      const name = random.pick(names);
      const value = name === 'charset' ? random.pick(charsets) : makeText(random);
      const plain = value.replaceAll(/[\r\n]/g, '');
      const percent = [...Buffer.from(plain, 'latin1')]
        .map((byte) => `%${byte.toString(16).padStart(2, '0')}`)
        .join('');
      return random.pick([
        `${name}=${plain}`,
        `${name}="${plain.replaceAll('"', '\\"')}"`,
        `${name}="${plain}"`,
        `${name}*=${random.pick(charsets)}'en'${percent}`,
        `${name}*${random.size(12)}=${plain}`,
        `${name}*${random.size(12)}*=${random.chance(0.5) ? `${random.pick(charsets)}''` : ''}${percent}`,
        `${name}*00*=${percent}`,
      ]);
    })
    .map((parameter) => `;${fold(random)}${parameter}`)
    .join('');
}

function makeContent(random: Random): string {
  return random.pick<() => string>([
    () => random.some(8, () => `${makeText(random)}${random.pick(['', ' ', '  '])}`).join('\r\n'),
    () =>
      `<html><head><title>${makeText(random)}</title></head><body>${makeText(random)}<br>${makeText(random)}`,
    () => random.bytes(random.size(2000)).toString('latin1'),
    () => random.pick(words).repeat(random.size(3000)),
    () => `> ${makeText(random)}\r\n-- \r\n${makeText(random)} \r\n`,
    () => '',
  ])();
}

function encode(random: Random, content: string, encoding: string): string {
  if (random.chance(0.1)) return content;
  const bytes = Buffer.from(content, 'latin1');
  if (/base64/i.test(encoding)) {
    const text = bytes.toString('base64').replaceAll(/.{76}/g, '$&\r\n');
    return random.chance(0.1) ? text.slice(0, random.below(text.length + 1)) : text;
  }
  if (encoding !== 'quoted-printable') return content;
  return content.replaceAll(
    /[^\r\n -<>-~]|=/g,
    (one) => `=${one.charCodeAt(0).toString(16).padStart(2, '0').toUpperCase()}`,
  );
}

/** Finished messages that are prepared for sending: what is changed, what stays byte for byte, and what is refused. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import type { Mailbox } from '../src/mime/address-list.ts';
import {
  needsEightBit,
  needsSmtpUtf8,
  type PreparedMessage,
  type PrepareOptions,
  prepareMessage,
} from '../src/mime/outgoing.ts';
import { parseMessage } from '../src/mime/parse.ts';
import { readAddressOrDomain } from '../src/net/address-or-domain.ts';

const date = new Date('2026-01-31T12:00:00Z');
const defaults: PrepareOptions = { date, unique: '0190-1', hasOwnRecipients: false };
const addedDate = 'Date: Sat, 31 Jan 2026 12:00:00 +0000\r\n';
const addedId = 'Message-ID: <0190-1@example.com>\r\n';
const dated = 'Date: Fri, 30 Jan 2026 12:00:00 +0000\r\nMessage-ID: <1@x>\r\n';
const from = 'From: ada@example.com\r\n';

/** One character for each byte. */
function bytes(text: string): Buffer {
  return Buffer.from(text, 'latin1');
}

function prepare(raw: string | Buffer, options: Partial<PrepareOptions> = {}): PreparedMessage {
  const prepared = prepareMessage(typeof raw === 'string' ? bytes(raw) : raw, { ...defaults, ...options });
  if ('errors' in prepared) assert.fail(JSON.stringify(prepared.errors));
  return prepared;
}

function prepareText(raw: string): string {
  return prepare(raw).bytes.toString('latin1');
}

function findFaults(raw: string, options: Partial<PrepareOptions> = {}): string[] {
  const prepared = prepareMessage(bytes(raw), { ...defaults, ...options });
  return 'errors' in prepared ? prepared.errors.map(({ message }) => message) : [];
}

test('a message that needs no change is not copied', () => {
  const raw = bytes(`${from}${dated}To: bob@example.org\r\n\r\nHi\r\n.\r\n\xff\0\r\n`);
  assert.equal(prepare(raw).bytes, raw);
});

describe('line ends', () => {
  const header = `${from}${dated}`;
  for (const [body, expected] of [
    ['a\nb\n', 'a\r\nb\r\n'],
    ['a\rb\r', 'a\r\nb\r\n'],
    ['a\r\r\nb', 'a\r\n\r\nb\r\n'],
    ['a\n\rb\r\n', 'a\r\n\r\nb\r\n'],
    ['\n.\n', '\r\n.\r\n'],
    ['\n.\r\n', '\r\n.\r\n'],
    ['\r.\r', '\r\n.\r\n'],
    ['a\r\n.\nMAIL FROM:<x>\r\n', 'a\r\n.\r\nMAIL FROM:<x>\r\n'],
    ['a', 'a\r\n'],
    ['', ''],
    ['\r\n\n\r', '\r\n\r\n\r\n'],
  ] as const)
    test(`of the body ${JSON.stringify(body)}`, () => {
      assert.equal(prepareText(`${header}\r\n${body}`), `${header}\r\n${expected}`);
    });

  for (const end of ['\n', '\r'])
    test(`of a message that has ${JSON.stringify(end)} everywhere`, () => {
      const whole = `${header}To: Bob\r\n <bob@example.org>\r\n\r\nHi\r\n`;
      assert.equal(prepareText(whole.replaceAll('\r\n', end)), whole);
    });

  test('a header without a body', () => {
    for (const end of ['', '\n', '\r', '\r\n'])
      assert.equal(prepareText(`${header}Subject: x${end}`), `${header}Subject: x\r\n`);
    assert.equal(prepareText(`${header}\n`), `${header}\r\n`);
  });

  test('two CR before LF end the header, for the check as for the receiver', () => {
    const { bytes: prepared, sender } = prepare(
      `${from}${dated}Subject: x\r\r\nSender: eve@evil.example\r\n\r\nHi\r\n`,
    );
    assert.equal(
      prepared.toString(),
      `${from}${dated}Subject: x\r\n\r\nSender: eve@evil.example\r\n\r\nHi\r\n`,
    );
    assert.equal(sender, null);
  });
});

describe('Date and Message-ID', () => {
  test('are added at the end of the header', () => {
    assert.equal(prepareText(`${from}\r\nHi\r\n`), `${from}${addedDate}${addedId}\r\nHi\r\n`);
    assert.equal(prepareText('From: ada@example.com'), `${from}${addedDate}${addedId}`);
  });

  test('stay as they are, in any case and folded', () => {
    const raw = `${from}dATE:\r\n yesterday\r\nMessage-Id : <odd\r\n\r\nHi\r\n`;
    assert.equal(prepareText(raw), raw);
  });

  test('replace empty ones', () => {
    const raw = `Date:\r\n${from}Message-ID: \t\r\n\r\nHi\r\n`;
    assert.equal(prepareText(raw), `${from}${addedDate}${addedId}\r\nHi\r\n`);
  });

  test('the Message-ID has the domain of the first author, in A-labels', () => {
    const raw = Buffer.from('From: Jörg <jörg@München.example>, ada@example.com\r\n\r\n');
    assert.match(prepare(raw).bytes.toString(), /\r\nMessage-ID: <0190-1@xn--mnchen-3ya\.example>\r\n/);
  });
});

test('Bcc fields are removed, with their folded lines; other fields keep their bytes', () => {
  const raw = [
    'Bcc: a@example.org,\r\n\tb@example.org,\r\n  c@example.org\r\n',
    from,
    'bCC : d@example.org\r\n',
    dated,
    'X-Bcc: kept  \r\n',
    'Subject: \xff\xe9\r\n',
    'BCC:\r\n',
    'bcc: J\xf6rg <e@example.org>\r\n',
    '\r\nBcc: in the text\r\n',
  ].join('');
  const prepared = prepare(raw);
  const expected = `${from}${dated}X-Bcc: kept  \r\nSubject: \xff\xe9\r\n\r\nBcc: in the text\r\n`;
  assert.equal(prepared.bytes.toString('latin1'), expected);
  assert.deepEqual(
    prepared.bcc.map(({ address }) => address),
    ['a', 'b', 'c', 'd', 'e'].map((name) => `${name}@example.org`),
  );
});

describe('addresses', () => {
  test('every author, the sender, and the recipients, each once', () => {
    const prepared = prepare(
      [
        'From: Ada <ada@example.com>,\r\n "B, C" <b@example.com>\r\n',
        'Sender: (desk) desk@example.com\r\n',
        'To: Friends: x@example.org, Y <y@example.org>;, x@EXAMPLE.org\r\n',
        'To: z@example.org\r\n',
        'Cc: Y@example.org, =?utf-8?Q?Zo=C3=AB?= <zoe@example.org>\r\n\r\n',
      ].join(''),
    );
    assert.deepEqual(prepared.from, [
      { name: 'Ada', address: 'ada@example.com' },
      { name: 'B, C', address: 'b@example.com' },
    ]);
    assert.deepEqual(prepared.sender, { name: 'desk', address: 'desk@example.com' });
    assert.deepEqual(
      prepared.to.map(({ address }) => address),
      ['x@example.org', 'y@example.org', 'z@example.org'],
    );
    assert.deepEqual(prepared.cc, [{ name: 'Zoë', address: 'zoe@example.org' }]);
    assert.deepEqual(prepared.bcc, []);
  });

  test('a group of authors (RFC 6854)', () => {
    assert.deepEqual(prepare('From: Team: a@example.com, b@example.com;\r\n\r\n').from, [
      { name: null, address: 'a@example.com' },
      { name: null, address: 'b@example.com' },
    ]);
  });

  test('an author that could be read as another is refused', () => {
    for (const value of [
      'ceo@bank.example <ada@example.com>',
      'ceo@bank.example:ada@example.com;',
      '<@bank.example:ada@example.com>',
      'ceo@bank.example(<)<ada@example.com>',
      'ceo@bank.example] <ada@example.com>',
      'Ada <ada . l @ example.com>',
    ]) {
      const [fault = ''] = findFaults(`From: ${value}\r\n\r\n`);
      assert.match(fault, /^"from" (?:can be read in several ways|has a domain in a form)/, value);
    }
    assert.deepEqual(prepare('From: "ceo@bank.example" <ada@example.com>\r\n\r\n').from, [
      { name: 'ceo@bank.example', address: 'ada@example.com' },
    ]);
  });

  test('fields that may stand once are refused twice; Resent-Bcc and Return-Path are removed', () => {
    for (const name of ['Message-ID', 'Reply-To', 'Content-Type', 'Subject', 'Date'])
      assert.match(findFaults(`${from}${name}: a\r\n${name}: b\r\n\r\n`)[0] ?? '', /has 2 fields/);
    const { bytes } = prepare(`${from}Resent-Bcc: eve@x.example\r\nReturn-Path: <a@b.example>\r\n\r\nx`);
    assert.doesNotMatch(bytes.toString(), /eve|Return-Path/);
  });

  test('To, Cc and Bcc may hold anything if the recipients are given elsewhere', () => {
    const raw = `${from}To: nobody in particular\r\nCc: <\r\nBcc: ?\r\n\r\n`;
    assert.equal(findFaults(raw).length, 3);
    const prepared = prepare(raw, { hasOwnRecipients: true });
    assert.deepEqual([prepared.to, prepared.cc, prepared.bcc], [[], [], []]);
    assert.doesNotMatch(prepared.bytes.toString(), /bcc/i);
  });
});

describe('refused', () => {
  const cases: [string, string, RegExp][] = [
    ['nothing', '', /no address in "from"/],
    ['an empty line first', `\r\n${from}\r\n`, /no address in "from"/],
    ['no From', 'To: bob@example.org\r\n\r\n', /no address in "from"/],
    ['an empty From', 'From:\r\n\r\n', /no address in "from"/],
    ['an empty group in From', 'From: Nobody:;\r\n\r\n', /no address in "from"/],
    ['two From fields', `${from}${from}\r\n`, /2 fields "from"/],
    ['a second From in another spelling', `${from}fROM\t: eve@evil.example\r\n\r\n`, /2 fields "from"/],
    [
      'two Sender fields',
      `${from}Sender: a@example.com\r\nSender: b@example.com\r\n\r\n`,
      /2 fields "sender"/,
    ],
    ['two senders', `${from}Sender: a@example.com, b@example.com\r\n\r\n`, /"sender" has more than one/],
    ['an author without an address', 'From: Ada\r\n\r\n', /"from" has no valid address/],
    [
      'two authors without a comma',
      'From: <a@example.com> <eve@evil.example>\r\n\r\n',
      /"from" has no valid/,
    ],
    ['a quote that does not end', 'From: "Ada <ada@example.com>\r\n\r\n', /"from" is not an address list/],
    ['a recipient without an address', `${from}To: Bob\r\n\r\n`, /"to" has no valid address/],
    ['a mailbox file', `From ada@example.com Sat Jan 31\r\n${from}\r\n`, /^Line 1 of the header is not/],
    [
      'a line that is no field',
      `${from}Hello\r\nSender: x@example.com\r\n\r\n`,
      /^Line 2 of the header is not/,
    ],
    [
      'a header without an empty line',
      `${from}Hello Bob,\r\nhow are you?\r\n`,
      /^Line 2 of the header is not/,
    ],
    ['a continuation first', ` x\r\n${from}\r\n`, /^Line 1 of the header begins with a blank/],
    [
      'a line of blanks',
      `${from} \t\r\nSender: x@example.com\r\n\r\n`,
      /^Line 2 of the header has only blanks/,
    ],
    ['NUL in From', 'From: ada@exa\0mple.com\r\n\r\n', /^Line 1 of the header has a NUL/],
    [
      'an address that is not UTF-8',
      'From: J\xf6rg <j\xf6rg@example.com>\r\n\r\n',
      /"from" has an address with damaged/,
    ],
    ['a domain that is not UTF-8', 'From: ada@exampl\xe9.com\r\n\r\n', /"from" has an address with damaged/],
    ['a name beyond ASCII', `${from}Fr\xf6m: x\r\n\r\n`, /^Line 2 of the header is not/],
    [
      'a line of 999 octets',
      `${from}X: ${'x'.repeat(996)}\r\n\r\n`,
      /^Line 2 of the header has more than 998/,
    ],
    [
      'a header that never ends',
      `${from}${' x\r\n'.repeat(200_000)}`,
      /^The header has more than 524288 bytes/,
    ],
    ['very many fields', `${from}${'X: y\r\n'.repeat(1000)}`, /^The header has more than 1000 fields/],
    ['a line that never ends', 'x'.repeat(1_000_000), /^The header has more than/],
    [
      'a line of 999 octets in the body',
      `${from}\r\nHi\nyou\rand\r\n\r\n${'x'.repeat(999)}\r\nBye\r\n`,
      /^Line 5 of the body has more than 998 octets\. Encode/,
    ],
    [
      'without an end',
      `${from}\r\n${`${'x'.repeat(998)}\r\n`.repeat(3)}${'\xe9'.repeat(999)}`,
      /^Line 4 of the body/,
    ],
  ];
  for (const [what, raw, fault] of cases)
    test(what, () => {
      const [first, ...others] = findFaults(raw);
      assert.match(first ?? '', fault);
      assert.deepEqual(others, []);
    });

  test('all faults are named at once', () => {
    assert.equal(findFaults(`${from}${from}Sender: x\r\nTo: y\r\nCc: z\r\n\r\n`).length, 4);
  });

  test('a line of 998 octets is not', () => {
    assert.deepEqual(findFaults(`${from}X: ${'x'.repeat(995)}\r\n\r\n`), []);
    for (const end of ['\r\n', '\r', '\n'])
      assert.deepEqual(
        findFaults(`${from}\r\n${`${'x'.repeat(998)}${end}a${end}`.repeat(5)}${'y'.repeat(998)}`),
        [],
      );
  });

  test('lines of any length: only the first that is too long is named', () => {
    const line = fc.oneof(fc.integer({ max: 5, min: 0 }), fc.integer({ max: 1001, min: 990 }));
    fc.assert(
      fc.property(fc.array(fc.tuple(line, fc.constantFrom('\r\n', '\r', '\n'))), (lines) => {
        const body = lines.map(([length, end]) => 'x'.repeat(length) + end).join('');
        const first = body.split(/\r\n|\r|\n/).findIndex(({ length }) => length > 998);
        const expected = first === -1 ? [] : [`Line ${first + 1} of the body has more than 998 octets`];
        assert.deepEqual(
          findFaults(`${from}\r\n${body}`).map((fault) => fault.split('.')[0]),
          expected,
        );
      }),
    );
  });
});

test('what the connection must offer', () => {
  const ascii = bytes(`${from}\r\nHi\r\n`);
  const body = bytes(`${from}\r\n\xe9\r\n`);
  const header = Buffer.from(`${from}Subject: é\r\n\r\nHi\r\n`);
  const headerOnly = Buffer.from(`${from}Subject: é\r\n`);
  assert.deepEqual([ascii, body, header, headerOnly].map(needsEightBit), [false, true, true, true]);
  assert.deepEqual(
    [ascii, body, header, headerOnly].map((message) => needsSmtpUtf8(message, ['a@example.org'])),
    [false, false, true, true],
  );
  assert.equal(needsSmtpUtf8(ascii, ['a@example.org', 'jörg@example.org']), true);
});

test('whatever the bytes: no bare line end, no Bcc, and the rest is what was given', async () => {
  const fields = [
    'From: ada@example.com',
    'from : b@example.com',
    'Sender: c@example.com',
    'To: d@example.org',
  ];
  const piece = fc.constantFrom(
    ...[
      ...fields,
      'Bcc: e@example.org',
      'bCC:',
      'Subject: \xe9',
      'Date: x',
      'Message-ID: <1@x>',
      'MESSAGE-ID:',
      'Hello',
    ],
    ...[
      '\r\n',
      '\r\n',
      '\r\n',
      '\r\n',
      '\n',
      '\r',
      '\r\n\r\n',
      '\n\n',
      '\r\n ',
      '\n\t',
      ' ',
      '\0',
      '.',
      '\xff',
      ',',
      '<',
      '"',
      ':',
    ],
  );
  let prepared = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(piece, { maxLength: 25 }), fc.boolean(), async (pieces, hasStart) => {
      const raw = `${hasStart ? from : ''}${pieces.join('')}`;
      const result = prepareMessage(bytes(raw), defaults);
      if ('errors' in result) {
        assert.ok(result.errors.length > 0);
        return;
      }
      prepared++;
      const text = result.bytes.toString('latin1');
      assert.doesNotMatch(text, /(?:^|[^\r])\n|\r(?!\n)/);
      assert.match(text, /\r\n$/);
      const [header = '', ...body] = text.split('\r\n\r\n');
      const ended = raw.replace(/\r\n|\r|\n/g, '\r\n').replace(/(?<!\r\n)$/, '\r\n');
      const [givenHeader = '', ...givenBody] = ended.split('\r\n\r\n');
      assert.equal(body.join('\r\n\r\n'), givenBody.join('\r\n\r\n'));
      assert.doesNotMatch(header, /^bcc[ \t]*:/im);
      assert.match(header, /^date[ \t]*:/im);
      assert.match(header, /^message-id[ \t]*:/im);
      const kept = givenHeader
        .split(/\r\n(?![ \t])/)
        .filter((field) => !/^bcc[ \t]*:/i.test(field) && !/^message-id:[ \t]*$/i.test(field));
      assert.ok(header.startsWith(kept.join('\r\n').replace(/\r\n$/, '')), JSON.stringify([header, kept]));

      // The parser of received mail is lenient. It must not find an author, a sender or a recipient that was not checked.
      const parsed = await parseMessage(result.bytes);
      const plain = (one?: Mailbox | null) => {
        const read = readAddressOrDomain(one?.address ?? '');
        return 'fault' in read ? undefined : read.key;
      };
      const checked = [...result.from, ...result.to, ...result.cc].map(plain);
      assert.equal(plain(parsed.from), plain(result.from[0]));
      assert.equal(plain(parsed.sender), plain(result.sender));
      for (const one of [...parsed.to, ...parsed.cc]) assert.ok(checked.includes(plain(one)));
      assert.deepEqual(parsed.bcc, []);
      // A second preparation changes nothing.
      assert.equal(prepare(result.bytes).bytes, result.bytes);
    }),
    { numRuns: 4000 },
  );
  assert.ok(prepared > 400, `only ${prepared} messages were prepared`);
});

describe('a large message', () => {
  const mib = 1024 * 1024;
  const header = bytes(`${from}${dated}\r\n`);
  const fill = (unit: string, size = 4 * mib) => Buffer.concat([header, Buffer.alloc(size, unit, 'latin1')]);
  const work = (raw: Buffer) => {
    const started = process.cpuUsage();
    const prepared = prepare(raw).bytes;
    const { user, system } = process.cpuUsage(started);
    return { cost: user + system, prepared };
  };
  const ordinary = fill(`${'x'.repeat(76)}\n`);
  work(ordinary);
  const control = Math.max(20_000, work(ordinary).cost);

  for (const unit of [
    '\n',
    '\r',
    '\n\r',
    '\r\r\n',
    '\r\n',
    `${'x'.repeat(998)}\r`,
    '\r\n.\n',
    'Bcc: a\n',
    ' \n',
  ])
    test(`of ${JSON.stringify(unit)} costs at most 30 times what ordinary lines cost`, () => {
      const { cost, prepared } = work(fill(unit));
      assert.ok(cost <= 30 * control, `${cost} µs, ordinary ${control} µs`);
      assert.ok(prepared.length >= 4 * mib);
    });

  test('of 25 MiB takes the memory of one copy', () => {
    const raw = fill('\n', 25 * mib);
    const before = process.memoryUsage().arrayBuffers;
    const { prepared } = work(raw);
    const grown = process.memoryUsage().arrayBuffers - before;
    assert.ok(grown <= prepared.length + 4 * mib, `${grown} bytes for ${prepared.length}`);
  });
});

/** Authors and recipients as a person would read them, also where the address is missing or is not an address. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { readAddresses, readMailboxes } from '../src/mime/address-list.ts';
import { parseMessage } from '../src/mime/parse.ts';

const parse = (field: string) => parseMessage(Buffer.from(`${field}\r\n\r\nx`));

describe('an author without a usable address has a name', () => {
  const written: [from: string, name: string | null][] = [
    ['Mail Delivery Subsystem <MAILER-DAEMON>', 'Mail Delivery Subsystem'],
    ['"Mail Delivery Subsystem" <MAILER-DAEMON>', 'Mail Delivery Subsystem'],
    ['Mail Delivery Subsystem <>', 'Mail Delivery Subsystem'],
    ['Mail Delivery Subsystem', 'Mail Delivery Subsystem'],
    ['<MAILER-DAEMON>', 'MAILER-DAEMON'],
    ['MAILER-DAEMON', 'MAILER-DAEMON'],
    ['MAILER-DAEMON (Mail Delivery System)', 'Mail Delivery System'],
    ['Ada Lovelace (at work)', 'Ada Lovelace'],
    ['<> (Ada)', 'Ada'],
    ['(Ada)', null],
    ['postmaster@', 'postmaster@'],
    ['@example.com', '@example.com'],
    ['Ada <ada@>', 'Ada'],
    ['Ada <@example.com>', 'Ada'],
    ['Ada <ada at example.com>', 'Ada'],
    ['ada at example.com', 'ada at example.com'],
    ['Ada <ada@one@two.example>', 'Ada'],
    ['=?utf-8?Q?Ren=C3=A9?= <rene>', 'René'],
    ['=?utf-8?Q?Ren=C3=A9?=', 'René'],
    ['René', 'René'],
    ['Dr. Ada King, Countess', 'Dr. Ada King'],
    ['"Ada" <', 'Ada'],
    ['"Ada', 'Ada'],
    ['Ada <ada', 'Ada'],
    ['undisclosed-recipients:;', null],
    ['<>', null],
    ['""', null],
    ['" "', null],
    [',;,', null],
    ['', null],
  ];
  for (const [from, name] of written)
    test(JSON.stringify(from), async () => {
      const parsed = await parse(`From: ${from}\r\nSender: ${from}`);
      const expected = name === null ? null : { name, address: null };
      assert.deepEqual([parsed.from, parsed.sender], [expected, expected]);
      assert.deepEqual(parsed.truncated, []);
    });
});

test('an author with an address is preferred to one without', async () => {
  const { from } = await parse('From: Nobody, The Daemon <MAILER-DAEMON>, Ada <ada@example.com>');
  assert.deepEqual(from, { name: 'Ada', address: 'ada@example.com' });
});

test('recipients without a usable address have their place in the list', async () => {
  const list = 'Team, Ada <ada@example.com>, <bob>, Friends: Carol, d@example.org;, <>';
  const expected = [
    { name: 'Team', address: null },
    { name: 'Ada', address: 'ada@example.com' },
    { name: 'bob', address: null },
    { name: 'Carol', address: null },
    { name: null, address: 'd@example.org' },
  ];
  const parsed = await parse(`To: ${list}\r\nCc: ${list}\r\nBcc: ${list}\r\nReply-To: ${list}`);
  for (const key of ['to', 'cc', 'bcc', 'replyTo'] as const) assert.deepEqual(parsed[key], expected, key);
  assert.deepEqual((await parse('To: undisclosed-recipients: ;\r\nCc: Undisclosed recipients:')).to, []);
});

test('more than 1,000 names without an address are cut, and the list is named', async () => {
  const parsed = await parse(`To: ${'Team,'.repeat(1001)}`);
  assert.equal(parsed.to.length, 1000);
  assert.deepEqual(parsed.truncated, ['to']);
});

describe('spaces that are not ASCII stay in names', () => {
  const names = ['山田　太郎', 'Jean\u00a0Luc', 'Jean \u00a0Luc', 'a\u2003b', 'a\u202fb'];
  for (const name of names)
    for (const from of [
      `${name} <a@example.com>`,
      `"${name}" <a@example.com>`,
      `=?utf-8?B?${Buffer.from(name).toString('base64')}?= <a@example.com>`,
      `a@example.com (${name})`,
    ])
      test(JSON.stringify(from), async () => {
        assert.deepEqual((await parse(`From: ${from}`)).from, { name, address: 'a@example.com' });
      });

  test('and in subjects and file names', async () => {
    const parsed = await parse('Subject: 山田　太郎\u00a0\r\nContent-Type: a/b; name="山田　太郎.pdf"');
    assert.equal(parsed.subject, '山田　太郎\u00a0');
    assert.equal(parsed.attachments[0]?.filename, '山田　太郎.pdf');
  });

  test('but not in or around addresses', async () => {
    for (const from of ['Ada　<a@example.com>', 'Ada <\u00a0a@example.com\u00a0>', 'Ada　a@example.com　'])
      assert.deepEqual((await parse(`From: ${from}`)).from, { name: 'Ada', address: 'a@example.com' }, from);
    assert.deepEqual((await parse('From: 　<a@example.com>')).from, { name: null, address: 'a@example.com' });
  });
});

test('whatever the list, the addresses among the mailboxes are the addresses', () => {
  const piece = fc.constantFrom(
    ...[
      'Ada',
      'a@b.example',
      '<a@b.example>',
      '<',
      '>',
      '@',
      '.',
      ',',
      ';',
      ':',
      '"',
      '"q"',
      '(c)',
      '(',
      ' ',
    ],
    ...['[1]', '　', '\u00a0', '=?utf-8?Q?=C3=A9?=', '\\', 'MAILER-DAEMON', '<>'],
  );
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 30 }), (pieces) => {
      const value = pieces.join('');
      const { addresses } = readAddresses(value, 10);
      const { mailboxes } = readMailboxes(value, 100);
      assert.deepEqual(mailboxes.filter(({ address }) => address !== null).slice(0, 10), addresses);
      for (const { name, address } of mailboxes) {
        assert.ok(name !== null || address !== null);
        assert.notEqual(name?.trim(), '');
      }
    }),
    { numRuns: 3000 },
  );
});

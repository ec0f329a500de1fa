/** Untidy reports: what the sender meant is read, and nothing is guessed. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Report } from '../src/mime/reports.ts';
import { compose, failed, lines, type Piece, read, readBoth, readOne, simple } from './report-messages.ts';

describe('untidy reports', () => {
  test('the tidy one, for comparison', () => assert.deepEqual(read(compose(failed)), simple));

  for (const top of [
    'multipart/report; boundary=b',
    'MULTIPART/REPORT; REPORT-TYPE="Delivery-Status"; BOUNDARY=b',
    'multipart/report; report-type=disposition-notification; boundary=b',
    'multipart/mixed; boundary=b',
    'Multipart/Mixed; report-type=delivery-status; boundary=b',
  ])
    test(`the top type ${top}`, () => assert.deepEqual(read(compose(failed, { top })), simple));

  for (const type of [
    'Message/Delivery-Status',
    'message/global-delivery-status',
    'message/delivery-status; charset=utf-8; name="details.txt"',
  ])
    test(`the part type ${type}`, () => assert.deepEqual(read(compose(failed, { type })), simple));

  for (const [name, end] of [
    ['LF', '\n'],
    ['CR', '\r'],
    ['CR CR LF', '\r\r\n'],
    ['blanks and CR LF', ' \t\r\n'],
  ] as const)
    test(`lines that end in ${name}`, () =>
      assert.deepEqual(read(compose(failed.replaceAll('\r\n', end))), simple));

  test('a whole message with LF only', () =>
    assert.deepEqual(read(compose(failed).toString('latin1').replaceAll('\r\n', '\n')), simple));

  test('base64 and quoted-printable', () => {
    const base64 = Buffer.from(failed).toString('base64');
    const quoted = failed.replaceAll('@', '=40').replace('No such', 'No=\r\n such');
    const encode = (status: string, encoding: string) =>
      compose(status, { partHeader: `Content-Transfer-Encoding: ${encoding}\r\n` });
    assert.deepEqual(read(encode(base64, 'base64')), simple);
    assert.deepEqual(read(encode(quoted, 'Quoted-Printable')), simple);
  });

  test('blank lines before the first field and several between recipients', () => {
    const { recipients = [] } =
      read(compose(`\r\n\r\n${failed}\r\n \r\n\r\nFinal-Recipient: rfc822; b@dest.example\r\n\r\n`)) ?? {};
    assert.deepEqual(
      recipients.map(({ address }) => address),
      ['grace@dest.example', 'b@dest.example'],
    );
  });

  test('no blank line between the fields of the report and the first recipient', () => {
    const status = failed.replace('\r\n\r\n', '\r\nOriginal-Envelope-Id: id\r\n');
    const found = readBoth(compose(status));
    assert.deepEqual(found?.report, simple);
    assert.equal(found?.evidence.envelopeId, 'id');
  });

  test('no blank line between two recipients', () => {
    const block = (name: string) => [
      `Original-Recipient: rfc822; ${name}@sent.example`,
      `Final-Recipient: rfc822; ${name}@dest.example`,
      'Action: failed',
      `Diagnostic-Code: smtp; 550 ${name}`,
    ];
    const found = readBoth(
      compose(lines('Reporting-MTA: dns; x', '', ...block('a'), ...block('b'), ...block('c'))),
    );
    assert.deepEqual(
      found?.report.recipients.map(({ address, diagnostic }) => [address, diagnostic]),
      ['a', 'b', 'c'].map((name) => [`${name}@dest.example`, `550 ${name}`]),
    );
    assert.deepEqual(
      found?.evidence.recipients.map(({ originalAddress }) => originalAddress),
      ['a@sent.example', 'b@sent.example', 'c@sent.example'],
    );
  });

  test('a blank line inside the fields of a recipient', () => {
    assert.deepEqual(read(compose(failed.replace('Action:', '\r\nAction:'))), simple);
    assert.deepEqual(read(compose(failed.replace('Remote-MTA:', '\r\nRemote-MTA:'))), simple);
  });

  test('a recipient without an address does not give its fields to the one before', () => {
    const status = lines(
      'Final-Recipient: rfc822; a@dest.example',
      'Action: delivered',
      '',
      'Action: failed',
      'Diagnostic-Code: smtp; 550 of another',
    );
    assert.deepEqual(read(compose(status))?.recipients, [
      { address: 'a@dest.example', action: 'delivered', status: null, diagnostic: null, remoteMta: null },
      { address: null, action: 'failed', status: null, diagnostic: '550 of another', remoteMta: null },
    ]);
  });

  test('of a repeated field the first counts', () => {
    const one = readOne('Final-Recipient: rfc822; a@dest.example', 'Action: delayed', 'Action: failed');
    assert.equal(one.action, 'delayed');
  });

  test('only Original-Recipient', () => {
    const one = readOne('Original-Recipient: rfc822; a@dest.example', 'Action: failed');
    assert.deepEqual([one.address, one.originalAddress], ['a@dest.example', 'a@dest.example']);
  });

  const addresses: [written: string, address: string | null][] = [
    ['rfc822; <grace@dest.example>', 'grace@dest.example'],
    ['RFC822 ; Grace@Dest.example (Grace H.)', 'Grace@Dest.example'],
    ['grace@dest.example', 'grace@dest.example'],
    ['rfc822; "grace hopper"@dest.example', '"grace hopper"@dest.example'],
    ['rfc822; "a;b"@dest.example', '"a;b"@dest.example'],
    ['rfc822; grace=dest.example@list.example', 'grace=dest.example@list.example'],
    ['utf-8; gr\\x{E4}ce@dest.example', 'gräce@dest.example'],
    ['UTF-8;\\x{1F4EF}@\\x{4F8B}.example', '📯@例.example'],
    ['utf-8; gräce@dest.example', 'gräce@dest.example'],
    ['rfc822; gräce@dest.example', 'gräce@dest.example'],
    ['rfc822; a\\x{E4}@dest.example', 'a\\x{E4}@dest.example'],
    ['utf-8; a\\x{FFFFFF}\\x{}\\x{D800}@dest.example', 'a\\x{FFFFFF}\\x{}\ufffd@dest.example'],
    ['utf-8; a\\x{0}b@dest.example', 'ab@dest.example'],
    ['utf-8; a\\x{1}b@dest.example', null],
    ['rfc822; =?utf-8?Q?a?=@dest.example', '=?utf-8?Q?a?=@dest.example'],
    ['rfc822; grace', null],
    ['x400; /C=US/ADMD= /PRMD=X/', null],
    ['rfc822;', null],
    ['', null],
  ];
  for (const [written, address] of addresses)
    test(`the recipient ${written || 'that is empty'}`, () =>
      assert.equal(readOne(`Final-Recipient: ${written}`, 'Action: failed').address, address));

  const statuses: [written: string, status: string | null][] = [
    ['5.1.1 (bad destination mailbox address)', '5.1.1'],
    ['(permanent) 5.1.1', '5.1.1'],
    ['5.1.1.', '5.1.1'],
    ['5.1.10', '5.1.10'],
    ['4.4.7', '4.4.7'],
    ['550', null],
    ['550 5.1.1', null],
    ['3.1.1', null],
    ['5.1.1.1', null],
    ['5.1.1234', null],
    ['5.1', null],
    ['unknown', null],
  ];
  for (const [written, status] of statuses)
    test(`the status ${written}`, () =>
      assert.equal(readOne('Final-Recipient: rfc822; a@b.example', `Status: ${written}`).status, status));

  const diagnostics: [
    written: string,
    diagnostic: string | null,
    code: number | null,
    enhanced: string | null,
  ][] = [
    ['smtp; 550 5.1.1 Gone', '550 5.1.1 Gone', 550, '5.1.1'],
    ['smtp;550-5.7.26 Not authenticated', '550-5.7.26 Not authenticated', 550, '5.7.26'],
    ['SMTP ; 550 #5.1.0 Address rejected', '550 #5.1.0 Address rejected', 550, '5.1.0'],
    ['550 Gone; forever', '550 Gone; forever', 550, null],
    ['smtp; 5501 is not a code', '5501 is not a code', null, null],
    ['X-Postfix; Host not found', 'Host not found', null, null],
    ['x-unix; 550', '550', null, null],
    ['smtp;', null, null, null],
    ['smtp; =?utf-8?Q?Postfach_gel=C3=B6scht?=', 'Postfach gelöscht', null, null],
    ['smtp; 550 a\0b\u0007c\u009bd\te', '550 ab c d e', 550, null],
  ];
  for (const [written, diagnostic, code, enhanced] of diagnostics)
    test(`the diagnostic ${JSON.stringify(written)}`, () => {
      const one = readOne('Final-Recipient: rfc822; a@b.example', `Diagnostic-Code: ${written}`);
      assert.deepEqual([one.diagnostic, one.code, one.enhanced], [diagnostic, code, enhanced]);
    });

  test('a diagnostic that is not UTF-8', () => {
    const status = Buffer.from(
      'Final-Recipient: rfc822; a@b.example\r\nDiagnostic-Code: smtp; 550 gel\xf6scht\r\n',
      'latin1',
    );
    assert.equal(read(compose(status))?.recipients[0]?.diagnostic, '550 gelöscht');
  });
});

describe('the returned message', () => {
  const header = 'Subject: Hello\r\nMessage-ID: <one@sender.example>\r\n';
  const found = { messageId: '<one@sender.example>', subject: 'Hello' };
  const readOriginal = (returned: Piece) => read(compose(failed, { returned }))?.original;

  for (const type of [
    'message/rfc822',
    'message/rfc822-headers',
    'message/global',
    'message/global-headers',
    'text/rfc822-headers',
    'Text/RFC822-Headers; charset=us-ascii',
  ])
    for (const encoding of ['7bit', 'base64', 'quoted-printable'])
      test(`${type} in ${encoding}`, () => {
        const text = `${header}\r\nSubject: of the body\r\n`;
        const body = encoding === 'base64' ? Buffer.from(text).toString('base64') : text;
        const part = `Content-Type: ${type}\r\nContent-Transfer-Encoding: ${encoding}\r\n\r\n${body}`;
        assert.deepEqual(readOriginal(part), found);
      });

  const forms: [string, string, Report['original'] | undefined][] = [
    ['an empty line before it', `\r\n\r\n${header}`, found],
    ['the line of a mailbox file before it', `From ada Sun Mar  1 12:00:00 2026\r\n${header}`, found],
    ['CR only', header.replaceAll('\r\n', '\r'), found],
    ['no Subject', 'Message-ID: <one@sender.example>\r\n', { messageId: found.messageId, subject: null }],
    ['no Message-ID', 'Subject: Hello\r\n', { messageId: null, subject: 'Hello' }],
    ['neither of them', 'From: ada@sender.example\r\n', null],
    ['nothing', '', null],
    [
      'a line break in an encoded subject',
      `Subject: =?utf-8?Q?a=0D=0ABcc:_b?=\r\n`,
      { messageId: null, subject: 'a Bcc: b' },
    ],
  ];
  for (const [name, text, expected] of forms)
    test(`with ${name}`, () =>
      assert.deepEqual(readOriginal(`Content-Type: message/rfc822\r\n\r\n${text}`), expected));

  test('is missing: no original', () =>
    assert.equal(readOriginal('Content-Type: text/plain\r\n\r\nMessage-ID: <one@sender.example>'), null));
});

/** Limits of reports: what they may have of everything, any bytes, and linear time. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { readReport } from '../src/mime/reports.ts';
import { readStructure } from '../src/mime/structure.ts';
import { checkStrings } from './mail-invariants.ts';
import { compose, failed, lines, read, readBoth } from './report-messages.ts';

describe('limits', () => {
  const block = (i: number) => `Final-Recipient: rfc822; u${i}@dest.example\r\nAction: failed\r\n`;

  for (const between of ['\r\n', ''])
    test(`50 recipients are shown, ${between ? 'with' : 'without'} blank lines between them`, () => {
      const status = Array.from({ length: 80 }, (_, i) => block(i)).join(between);
      const found = readBoth(compose(status));
      assert.equal(found?.report.recipients.length, 50);
      assert.equal(found?.evidence.recipients.length, 50);
      assert.equal(found?.report.recipients[49]?.address, 'u49@dest.example');
      assert.equal(found?.report.recipients[49]?.action, 'failed');
    });

  test('50 recipients of a feedback report', () => {
    const status = `Feedback-Type: abuse\r\n${'Original-Rcpt-To: a@b.example\r\n'.repeat(80)}`;
    assert.equal(read(compose(status, { type: 'message/feedback-report' }))?.recipients.length, 50);
  });

  test('every text has at most 1,000 characters and no half of one', () => {
    const long = '📯'.repeat(3000);
    const status = lines(
      `Original-Envelope-Id: x${long}`,
      '',
      'Final-Recipient: rfc822; a@b.example',
      `Remote-MTA: dns; x${long}`,
      `Diagnostic-Code: smtp; x${long}`,
      `Action: ${'a'.repeat(5000)}`,
    );
    const returned = `Content-Type: message/rfc822\r\n\r\nSubject: x${long}\r\nReturn-Path: ${'a'.repeat(999)}@b.example\r\n`;
    const found = readBoth(compose(status, { returned }));
    checkStrings(found);
    const [one] = found?.report.recipients ?? [];
    for (const text of [
      found?.evidence.envelopeId,
      one?.remoteMta,
      one?.diagnostic,
      found?.report.original?.subject,
    ])
      assert.equal(text?.length, 1000);
    assert.equal(one?.action, null);
    assert.ok(found?.evidence.returnAddresses.every((address) => address.length <= 320));
  });

  test('100 words that may be return addresses, Return-Path first', () => {
    const many = Array.from({ length: 300 }, (_, i) => `u${i}@dest.example`).join(', ');
    const returned = `Content-Type: message/rfc822\r\n\r\nTo: ${many}\r\nReturn-Path: <bounces+token@mx.example>\r\n`;
    const addresses = readBoth(compose(failed, { returned }))?.evidence.returnAddresses ?? [];
    assert.equal(addresses.length, 100);
    assert.equal(addresses[0], 'bounces+token@mx.example');
  });

  test('a part of more than 128 KiB ends with a whole line', () => {
    const filler = `X-Filler: ${'x'.repeat(250)}\r\n`.repeat(1100);
    const cut = Array.from(
      { length: 60 },
      (_, i) => `Final-Recipient: rfc822; u${i}@dest.example\r\n\r\n`,
    ).join('');
    for (let shift = 0; shift < 40; shift++) {
      const size = 128 * 1024 - 1000 + shift;
      const { recipients = [] } = read(compose(`${filler.slice(0, size)}\r\n\r\n${cut}`)) ?? {};
      assert.ok(recipients.length > 0);
      for (const { address } of recipients) assert.match(address ?? '', /@dest\.example$/);
    }
  });

  test('any bytes give a result with clean strings', () => {
    const words = [
      'Final-Recipient:',
      'rfc822;',
      'a@b',
      '\r\n',
      '\r',
      '\n',
      ' ',
      '\0',
      '\x1b',
      '\xff',
      '(',
      '"',
      '<',
      'Action: failed',
      '=?utf-8?B?/w==?=',
      'utf-8;\\x{0}',
    ];
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...words)), fc.array(fc.constantFrom(...words)), (one, other) => {
        const returned = Buffer.from(`Content-Type: message/rfc822\r\n\r\n${other.join('')}`, 'latin1');
        for (const type of [
          'message/delivery-status',
          'message/feedback-report',
          'message/disposition-notification',
        ]) {
          const found = readBoth(compose(Buffer.from(one.join(''), 'latin1'), { type, returned }));
          assert.ok(found);
          checkStrings(found);
          assert.doesNotMatch(JSON.stringify(found.report.recipients), /\\u00|\\r|\\n/);
        }
      }),
    );
  });
});

/** The control is a tidy report of the same size in the same run. Of 32 KiB, quadratic time takes seconds. */
describe('hostile reports take about as long as tidy ones of the same size', () => {
  const fill = (unit: string) => Buffer.concat([Buffer.alloc(32 * 1024, unit, 'latin1'), Buffer.from('x')]);
  const inReturned = (content: Buffer) =>
    compose(failed, {
      returned: Buffer.concat([
        Buffer.from('Content-Type: message/rfc822\r\n\r\nSubject: x\r\nTo: '),
        content,
      ]),
    });
  const timeOf = (raw: Buffer): number => {
    const { root } = readStructure(raw);
    const started = process.cpuUsage();
    assert.ok(readReport(raw, root));
    return process.cpuUsage(started).user;
  };
  const tidy = fill('X-Field: words of a usual length, and a few more\r\nX-Other: more words\r\n\r\n');
  const leastOf = (raw: Buffer) => Math.min(...Array.from({ length: 10 }, () => timeOf(raw)));
  const control = Math.max(leastOf(compose(tidy)), leastOf(inReturned(tidy)));
  const most = 50 * control + 50_000;
  // Several tries: the processor time of a process has its garbage collection and compilation in it.
  const assertFast = (raw: Buffer, name: string) => {
    const spent: number[] = [];
    while (spent.length < 3 && !spent.some((time) => time < most)) spent.push(timeOf(raw));
    assert.ok(Math.min(...spent) < most, `${JSON.stringify(name)}: ${spent} µs, at most ${most}`);
  };
  const units = [
    ...'\n|\r|\r\r|\n |\n\n | |\t|\0|a|a\n|a\n\n|A:\n|A:\n\n|(|)|"|<|@|a@b |a@b=|=?|=?a?b?AA?= |\\x{|;|a;|\\'.split(
      '|',
    ),
    'Action: failed\n\n',
    'Final-Recipient:\n',
    'Final-Recipient: rfc822; a@b\n',
    'Diagnostic-Code: (((\n',
  ];
  const fields: [type: string, field: string][] = [
    ['message/delivery-status', ''],
    ['message/delivery-status', 'Original-Recipient: x\r\nFinal-Recipient: utf-8; '],
    ['message/delivery-status', 'Final-Recipient: x\r\nDiagnostic-Code: smtp; '],
    ['message/delivery-status', 'Final-Recipient: x\r\nStatus: '],
    ['message/delivery-status', 'Final-Recipient: x\r\nRemote-MTA: '],
    ['message/delivery-status', 'Final-Recipient: x\r\nAction: '],
    ['message/disposition-notification', 'Final-Recipient: x\r\nDisposition: '],
    ['message/feedback-report', 'Original-Rcpt-To: '],
  ];
  for (const [type, field] of fields)
    test(`${type} ${field.split('\n').at(-1)}`, () => {
      for (const unit of units)
        assertFast(compose(Buffer.concat([Buffer.from(field), fill(unit)]), { type }), unit);
    });

  test('the returned header', () => {
    for (const unit of units) assertFast(inReturned(fill(unit)), unit);
  });
});

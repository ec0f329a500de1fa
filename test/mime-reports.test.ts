/** Reports that come back: delivery status, feedback and disposition, in the forms that mail servers write. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  compose,
  type Form,
  failed,
  lines,
  original,
  read,
  readBoth,
  readOne,
  recipient,
  returnedMessage,
  simple,
} from './report-messages.ts';

describe('delivery status, as servers write it', () => {
  test('Postfix: X- fields, folded diagnostics, a notification as text, the header returned', () => {
    const status = lines(
      'Reporting-MTA: dns; relay.sender.example',
      'X-Postfix-Queue-ID: 4WxyZ1abcdE',
      'X-Postfix-Sender: rfc822; bounces+token@mx.example',
      'Arrival-Date: Sun,  1 Mar 2026 13:00:00 +0100 (CET)',
      '',
      'Final-Recipient: rfc822; grace@dest.example',
      'Original-Recipient: rfc822;navy@dest.example',
      'Action: failed',
      'Status: 5.1.1',
      'Remote-MTA: dns; mail.dest.example',
      'Diagnostic-Code: smtp; 550 5.1.1 <grace@dest.example>: Recipient address',
      '    rejected: User unknown in virtual',
      '    mailbox table',
    );
    const returned = lines(
      'Content-Description: Undelivered Message Headers',
      'Content-Type: text/rfc822-headers',
      '',
      'Return-Path: <bounces+token@mx.example>',
      'Subject: Hello',
      'Message-Id: <one@sender.example>',
    );
    const found = readBoth(compose(status, { returned }));
    assert.deepEqual(found?.report, {
      type: 'delivery-status',
      original: { messageId: '<one@sender.example>', subject: 'Hello' },
      recipients: [
        {
          ...recipient,
          diagnostic:
            '550 5.1.1 <grace@dest.example>: Recipient address rejected: User unknown in virtual mailbox table',
        },
      ],
    });
    assert.equal(found?.evidence.arrivalDate, '2026-03-01T12:00:00.000Z');
    assert.deepEqual(found?.evidence.recipients, [
      { originalAddress: 'navy@dest.example', code: 550, enhanced: '5.1.1' },
    ]);
    assert.equal(found?.evidence.returnAddresses[0], 'bounces+token@mx.example');
  });

  test('Postfix: one message delayed, delivered and relayed to several', () => {
    const block = (address: string, action: string, status: string) =>
      lines(`Final-Recipient: rfc822; ${address}`, `Action: ${action}`, `Status: ${status}`, '');
    const { recipients = [] } =
      read(
        compose(
          lines('Reporting-MTA: dns; relay.example', '') +
            block('a@dest.example', 'delayed', '4.4.1') +
            block('b@dest.example', 'delivered', '2.0.0') +
            block('c@dest.example', 'relayed', '2.1.9') +
            block('d@dest.example', 'expanded', '2.0.0'),
        ),
      ) ?? {};
    assert.deepEqual(
      recipients.map(({ address, action, status }) => [address, action, status]),
      [
        ['a@dest.example', 'delayed', '4.4.1'],
        ['b@dest.example', 'delivered', '2.0.0'],
        ['c@dest.example', 'relayed', '2.1.9'],
        ['d@dest.example', 'expanded', '2.0.0'],
      ],
    );
  });

  test('Exim: no space after the type, status 5.0.0, and the exact one in the reply', () => {
    const one = readOne(
      'Action: failed',
      'Final-Recipient: rfc822;grace@dest.example',
      'Status: 5.0.0',
      'Remote-MTA: dns; mail.dest.example',
      'Diagnostic-Code: smtp; 550-5.1.1 The account does not exist.',
      ' 550 5.1.1 Try another.',
    );
    assert.equal(one.address, 'grace@dest.example');
    assert.equal(one.status, '5.0.0');
    assert.equal(one.diagnostic, '550-5.1.1 The account does not exist. 550 5.1.1 Try another.');
    assert.deepEqual([one.code, one.enhanced], [550, '5.1.1']);
  });

  test('Exchange and Microsoft 365: the text in two forms, no blanks after types, X- fields', () => {
    const status = lines(
      'Reporting-MTA: dns;AB1PR01MB0001.prod.example',
      'Received-From-MTA: dns;mx.example',
      'Arrival-Date: Sun, 1 Mar 2026 12:00:00 +0000',
      '',
      'Original-Recipient: rfc822;grace@dest.example',
      'Final-Recipient: rfc822;grace@dest.example',
      'Action: failed',
      'Status: 5.1.10',
      'Diagnostic-Code: smtp;550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found',
      'X-Display-Name: Grace',
    );
    const raw = compose(status).toString('latin1');
    const text = '--b\r\nContent-Type: text/plain\r\n\r\nIn words.\r\n';
    const both =
      '--b\r\nContent-Type: multipart/alternative; differences=Content-Type;\r\n\tboundary="c"\r\n\r\n' +
      '--c\r\nContent-Type: text/plain\r\n\r\nWords\r\n--c\r\nContent-Type: text/html\r\n\r\n<p>Words\r\n--c--\r\n\r\n';
    assert.deepEqual(read(raw.replace(text, both))?.recipients, [
      {
        address: 'grace@dest.example',
        action: 'failed',
        status: '5.1.10',
        diagnostic: '550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found',
        remoteMta: null,
      },
    ]);
  });

  test('Gmail: the server with an address as comment, the header of the message encoded', () => {
    const one = readOne(
      'Final-Recipient: rfc822; grace@dest.example',
      'Action: failed',
      'Status: 5.1.1',
      'Remote-MTA: dns; mail.dest.example. (192.0.2.1, the server for the domain dest.example.)',
      'Diagnostic-Code: smtp; 550-5.1.1 The email account does not exist.',
      'Last-Attempt-Date: Sun, 01 Mar 2026 04:00:00 -0800 (PST)',
    );
    assert.equal(one.remoteMta, 'mail.dest.example.');
    assert.deepEqual([one.code, one.enhanced], [550, '5.1.1']);
  });

  test('Sendmail: upper-case types, an envelope id, and `local` diagnostics that are no SMTP reply', () => {
    const status = lines(
      'Original-Envelope-Id: QQ314159',
      'Reporting-MTA: dns; sendmail.example',
      'Received-From-MTA: DNS; client.example',
      '',
      'Final-Recipient: RFC822; grace@dest.example',
      'X-Actual-Recipient: X-Unix; |/usr/bin/vacation',
      'Action: FAILED',
      'Status: 5.3.0 (other mail system problem)',
      'Diagnostic-Code: X-Unix; 255',
    );
    const found = readBoth(compose(status));
    assert.equal(found?.evidence.envelopeId, 'QQ314159');
    assert.deepEqual(found?.report.recipients, [
      { ...recipient, status: '5.3.0', diagnostic: '255', remoteMta: null },
    ]);
    assert.deepEqual(found?.evidence.recipients, [{ originalAddress: null, code: null, enhanced: '5.3.0' }]);
  });
});

describe('feedback reports', () => {
  const form = (returned = returnedMessage): Form => ({
    top: 'multipart/report; report-type=feedback-report; boundary=b',
    type: 'message/feedback-report',
    returned,
  });

  test('Yahoo: type, envelope and authentication; the sender is in the returned Return-Path too', () => {
    const status = lines(
      'Feedback-Type: abuse',
      'User-Agent: Feedback/2.0',
      'Version: 0.1',
      'Original-Mail-From: <bounces+token@mx.example>',
      'Original-Rcpt-To: grace@dest.example',
      'Received-Date: Sun, 01 Mar 2026 12:00:00 +0000',
      'Reported-Domain: sender.example',
      'Authentication-Results: dkim=pass header.i=@sender.example',
    );
    const found = readBoth(compose(status, form()));
    assert.deepEqual(found?.report, {
      type: 'feedback',
      original,
      recipients: [
        { address: 'grace@dest.example', action: 'abuse', status: null, diagnostic: null, remoteMta: null },
      ],
    });
    assert.equal(found?.evidence.feedbackType, 'abuse');
    assert.equal(found?.evidence.mailFrom, 'bounces+token@mx.example');
    assert.equal(found?.evidence.arrivalDate, '2026-03-01T12:00:00.000Z');
    assert.equal(found?.evidence.returnAddresses[0], 'bounces+token@mx.example');
    assert.deepEqual(found?.evidence.recipients, [
      { originalAddress: 'grace@dest.example', code: null, enhanced: null },
    ]);
  });

  test('several recipients, and a blank line between fields', () => {
    const status = lines(
      'Feedback-Type: Fraud',
      'Original-Rcpt-To: <a@dest.example>',
      '',
      'Original-Rcpt-To: rfc822; b@dest.example',
    );
    assert.deepEqual(
      read(compose(status, form()))?.recipients.map(({ address, action }) => [address, action]),
      [
        ['a@dest.example', 'fraud'],
        ['b@dest.example', 'fraud'],
      ],
    );
  });

  test('no recipient is named: none is guessed, and the type is still known', () => {
    const found = readBoth(compose('Feedback-Type: not-spam\r\n', form()));
    assert.deepEqual(found?.report, { type: 'feedback', original, recipients: [] });
    assert.equal(found?.evidence.feedbackType, 'not-spam');
  });

  test('Microsoft JMRP with the structured part: the token is in fields that the receiver added', () => {
    const returned = lines(
      'Content-Type: message/rfc822',
      'Content-Disposition: inline',
      '',
      'X-HmXmrOriginalRecipient: grace@dest.example',
      'Received: from mx.example (192.0.2.1) by mail.dest.example',
      ' (envelope-from <bounces+received@mx.example>) for <grace@dest.example>',
      'Authentication-Results: spf=pass smtp.mailfrom=bounces+results@mx.example;dkim=pass',
      'Received-SPF: Pass (sender ip is 192.0.2.1) envelope-from="bounces+spf@mx.example";',
      'X-Forwarded: SRS0=Ab1=CD=mx.example=bounces+srs@forwarder.example',
      'Return-Path: bounces+path@mx.example',
      'Subject: Hello',
    );
    const found = readBoth(compose('Feedback-Type: abuse\r\nUser-Agent: FBL/1.0\r\n', form(returned)));
    assert.deepEqual(found?.report.original, { messageId: null, subject: 'Hello' });
    assert.deepEqual(
      found?.evidence.returnAddresses.filter((address) => address.startsWith('bounces+')),
      [
        'bounces+path@mx.example',
        'bounces+received@mx.example',
        'bounces+results@mx.example',
        'bounces+spf@mx.example',
        'bounces+srs@forwarder.example',
      ],
    );
  });

  test('Microsoft JMRP without the structured part is an ordinary message', () => {
    const top = 'multipart/mixed; boundary=b';
    assert.equal(read(compose('Words', { top, type: 'text/plain' })), null);
  });
});

describe('disposition notifications', () => {
  const form: Form = {
    top: 'multipart/report; report-type=disposition-notification; boundary=b',
    type: 'message/disposition-notification',
    returned: 'Content-Type: text/plain\r\n\r\n',
  };
  const displayed = lines(
    'Reporting-UA: pc.dest.example; Reader 1.0',
    'Original-Recipient: rfc822;navy@dest.example',
    'Final-Recipient: rfc822;grace@dest.example',
    'Original-Message-ID: <one@sender.example>',
    'Disposition: manual-action/MDN-sent-manually; displayed',
  );
  const shown = { ...recipient, action: 'displayed', status: null, diagnostic: null, remoteMta: null };

  test('the message is known by Original-Message-ID', () => {
    const found = readBoth(compose(displayed, form));
    const expected = { messageId: '<one@sender.example>', subject: null };
    assert.deepEqual(found?.report, { type: 'disposition', original: expected, recipients: [shown] });
    assert.equal(found?.evidence.recipients[0]?.originalAddress, 'navy@dest.example');
    assert.equal(found?.evidence.feedbackType, null);
  });

  test('the returned header wins, since it has the subject too', () => {
    assert.deepEqual(read(compose(displayed, { ...form, returned: returnedMessage }))?.original, original);
  });

  test('the type of RFC 6533, a modifier after the disposition, an error as diagnostic', () => {
    const status = `${displayed.replace('displayed', 'Processed/error')}Error: No room\r\n`;
    const type = 'message/global-disposition-notification';
    assert.deepEqual(read(compose(status, { ...form, type }))?.recipients, [
      { ...shown, action: 'processed', diagnostic: 'No room' },
    ]);
  });

  test('without a recipient and with a disposition that cannot be read', () => {
    assert.deepEqual(read(compose('Disposition: displayed\r\n', form))?.recipients, []);
    const status = 'Final-Recipient: rfc822; grace@dest.example\r\nDisposition: displayed\r\n';
    assert.equal(read(compose(status, form))?.recipients[0]?.action, null);
  });
});

describe('what is no report', () => {
  const plain = (header: string, body: string) => read(`From: a@b.example\r\n${header}\r\n\r\n${body}`);

  test("qmail's bounce is words and the message after them", () => {
    const words = lines(
      'Hi. This is the qmail-send program at dest.example.',
      '',
      '<grace@dest.example>:',
      'Sorry, no mailbox here by that name. (#5.1.1)',
      '',
      '--- Below this line is a copy of the message.',
      '',
      'Message-ID: <one@sender.example>',
    );
    assert.equal(plain('Subject: failure notice', words), null);
  });

  test('X-Failed-Recipients without a structured part', () => {
    assert.equal(
      plain('X-Failed-Recipients: grace@dest.example\r\nAuto-Submitted: auto-replied', 'Words'),
      null,
    );
  });

  test('multipart/report without the structured part', () => {
    assert.equal(read(compose('Words', { type: 'text/plain' })), null);
  });

  test('an ordinary message', () => assert.equal(plain('Subject: Hello', 'Text'), null));

  test('a message that forwards a bounce as an attachment', () => {
    const forwarded = `--b\r\nContent-Type: message/rfc822\r\n\r\n${compose(failed).toString().replaceAll('--b', '--c').replace('"b"', '"c"')}\r\n`;
    const top = 'Content-Type: multipart/mixed; boundary=b';
    assert.equal(plain(top, `--b\r\n\r\nPlease help\r\n${forwarded}--b--\r\n`), null);
  });

  test('a message that has the parts of a bounce as attachments', () => {
    const top = 'multipart/mixed; boundary=b';
    for (const disposition of [
      'attachment',
      'attachment; filename=details.txt',
      'inline; filename=details.txt',
      'x',
    ])
      assert.equal(
        read(compose(failed, { top, partHeader: `Content-Disposition: ${disposition}\r\n` })),
        null,
      );
    assert.deepEqual(read(compose(failed, { top, partHeader: 'Content-Disposition: inline\r\n' })), simple);
  });

  test('a report inside another multipart', () => {
    const inner = `--c\r\nContent-Type: message/delivery-status\r\n\r\n${failed}\r\n--c--\r\n`;
    const top = 'Content-Type: multipart/mixed; boundary=b';
    const nested = `--b\r\nContent-Type: multipart/report; boundary=c\r\n\r\n${inner}--b--\r\n`;
    assert.equal(plain(top, nested), null);
  });

  test('a structured part alone, or in a multipart of another kind', () => {
    assert.equal(plain('Content-Type: message/delivery-status', failed), null);
    assert.equal(read(compose(failed, { top: 'multipart/related; boundary=b' })), null);
  });
});

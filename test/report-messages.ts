/** Makes reports for tests, in the form that mail servers write, and reads them. */
import assert from 'node:assert/strict';
import { type Report, readReport } from '../src/mime/reports.ts';
import { readStructure } from '../src/mime/structure.ts';

export type Piece = string | Buffer;

export function readBoth(...pieces: Piece[]) {
  const raw = Buffer.concat(pieces.map((piece) => Buffer.from(piece)));
  return readReport(raw, readStructure(raw).root);
}
export const read = (...pieces: Piece[]) => readBoth(...pieces)?.report ?? null;

export interface Form {
  top?: string;
  type?: string;
  partHeader?: string;
  returned?: Piece;
}

export const returnedMessage = [
  'Content-Type: message/rfc822',
  '',
  'Return-Path: <bounces+token@mx.example>',
  'From: Ada <ada@sender.example>',
  'To: grace@dest.example',
  'Subject: =?utf-8?Q?Gr=C3=BC=C3=9Fe?=',
  'Message-ID: <one@sender.example>',
  '',
  'Text of the message',
].join('\r\n');

/** A report whose structured part has `status` as its content. */
export function compose(status: Piece, form: Form = {}): Buffer {
  const {
    top = 'multipart/report; report-type=delivery-status; boundary="b"',
    type = 'message/delivery-status',
    partHeader = '',
    returned = returnedMessage,
  } = form;
  const pieces = [
    `From: MAILER-DAEMON@mx.dest.example\r\nSubject: Report\r\nMIME-Version: 1.0\r\nContent-Type: ${top}\r\n\r\n`,
    '--b\r\nContent-Type: text/plain\r\n\r\nIn words.\r\n',
    `--b\r\nContent-Type: ${type}\r\n${partHeader}\r\n`,
    status,
    '\r\n--b\r\n',
    returned,
    '\r\n--b--\r\n',
  ];
  return Buffer.concat(pieces.map((piece) => Buffer.from(piece)));
}

export const lines = (...written: string[]) => `${written.join('\r\n')}\r\n`;
export const failed = lines(
  'Reporting-MTA: dns; mx.dest.example',
  '',
  'Final-Recipient: rfc822; grace@dest.example',
  'Action: failed',
  'Status: 5.1.1',
  'Remote-MTA: dns; mail.dest.example',
  'Diagnostic-Code: smtp; 550 5.1.1 No such user',
);
export const original = { messageId: '<one@sender.example>', subject: 'Grüße' };
export const recipient = {
  address: 'grace@dest.example',
  action: 'failed',
  status: '5.1.1',
  diagnostic: '550 5.1.1 No such user',
  remoteMta: 'mail.dest.example',
};
export const simple: Report = { type: 'delivery-status', original, recipients: [recipient] };

/** The only recipient of a report with these fields. */
export function readOne(...fields: string[]) {
  const found = readBoth(compose(lines('Reporting-MTA: dns; mx.dest.example', '', ...fields)));
  assert.equal(found?.report.recipients.length, 1);
  return { ...found.report.recipients[0], ...found.evidence.recipients[0] };
}

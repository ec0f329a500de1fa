/**
 * A message of 2 KB, and what version 0.1.0 (schema 11) stored of it. The words in «» differ in each message. The texts must not
 * follow later versions: they are what an upgrade finds.
 */

export const attachment = 'order,item,count\r\n1042,horn,1\r\n1042,mouthpiece,2\r\n';

const boundary = 'b1_5f0c7c3d';
const text = [
  'Hello,',
  'your order has left our house this morning and is on its way to you. The parcel has a number, with which you can follow it on',
  'the pages of the carrier. It arrives within three days; on Saturdays the carrier comes before noon. If nobody is at home, a',
  'neighbour can take the parcel, or you find it at the nearest shop of the carrier.',
  'Your number: «number»',
  'Your code: «words»',
  'Thank you for your order. Until the next time,',
  'the people of the instrument shop',
];

export const mailTemplate = [
  'Received: from app-3.sender.example (app-3.sender.example [192.0.2.17])',
  ' by mx.sender.example with ESMTPS id 4XyZ12 for <«address»>; Sun, 1 Nov 2026 05:00:01 +0000 (UTC)',
  'From: Ada Lovelace <ada@sender.example>',
  'To: Inbox <«address»>',
  'Subject: Your order «number» is on its way =?utf-8?Q?=E2=80=93_thank_you?=',
  'Date: Sun, 1 Nov 2026 05:00:00 +0000',
  'Message-ID: <«number»@sender.example>',
  'Reply-To: Support <support@sender.example>',
  'MIME-Version: 1.0',
  `Content-Type: multipart/mixed; boundary="${boundary}"`,
  '',
  `--${boundary}`,
  'Content-Type: text/plain; charset=utf-8',
  '',
  ...text,
  `--${boundary}`,
  'Content-Type: text/csv; name="order.csv"',
  'Content-Disposition: attachment; filename="order.csv"',
  '',
  `${attachment}`,
  `--${boundary}--`,
  '',
].join('\r\n');

const message = {
  id: '«id»',
  identity: { id: '«identity»', publicId: '«publicId»', kind: 'email', value: '«address»' },
  mailbox: { id: '«mailbox»', kind: 'inbox' },
  source: 'api',
  threadId: '«thread»',
  receivedAt: '«receivedAt»',
  size: '«size»',
  recipient: '«address»',
  tag: null,
  messageId: '<«number»@sender.example>',
  inReplyTo: null,
  references: [],
  date: '2026-11-01T05:00:00.000Z',
  from: { name: 'Ada Lovelace', address: 'ada@sender.example' },
  sender: null,
  replyTo: [{ name: 'Support', address: 'support@sender.example' }],
  to: [{ name: 'Inbox', address: '«address»' }],
  cc: [],
  bcc: [],
  subject: 'Your order «number» is on its way – thank you',
  headers: [
    {
      name: 'Received',
      value:
        'from app-3.sender.example (app-3.sender.example [192.0.2.17]) by mx.sender.example with ESMTPS id 4XyZ12 for <«address»>; Sun, 1 Nov 2026 05:00:01 +0000 (UTC)',
    },
    { name: 'From', value: 'Ada Lovelace <ada@sender.example>' },
    { name: 'To', value: 'Inbox <«address»>' },
    { name: 'Subject', value: 'Your order «number» is on its way =?utf-8?Q?=E2=80=93_thank_you?=' },
    { name: 'Date', value: 'Sun, 1 Nov 2026 05:00:00 +0000' },
    { name: 'Message-ID', value: '<«number»@sender.example>' },
    { name: 'Reply-To', value: 'Support <support@sender.example>' },
    { name: 'MIME-Version', value: '1.0' },
    { name: 'Content-Type', value: 'multipart/mixed; boundary="b1_5f0c7c3d"' },
  ],
  autoSubmitted: null,
  truncated: [],
  text: 'Hello,\nyour order has left our house this morning and is on its way to you. The parcel has a number, with which you can follow it on\nthe pages of the carrier. It arrives within three days; on Saturdays the carrier comes before noon. If nobody is at home, a\nneighbour can take the parcel, or you find it at the nearest shop of the carrier.\nYour number: «number»\nYour code: «words»\nThank you for your order. Until the next time,\nthe people of the instrument shop',
  html: null,
  preview:
    'Hello, your order has left our house this morning and is on its way to you. The parcel has a number, with which you can follow it on the pages of the carrier. It arrives within three days; on Saturday',
  attachments: [
    {
      id: '0',
      filename: 'order.csv',
      contentType: 'text/csv',
      size: 50,
      disposition: 'attachment',
      contentId: null,
      sha256: 'a93343eb201ba019972f799dcd745dd6c80cac393b23c9c86271f055c6148941',
      url: 'attachment:0',
    },
  ],
  envelope: { mailFrom: null, remoteIp: null, helo: null, tls: null, rcptTo: ['«address»'] },
  authentication: {
    spf: { result: 'none', domain: null },
    dkim: [],
    dmarc: {
      result: 'temperror',
      policy: null,
      aligned: null,
      reason: 'DNS does not say whether sender.example has a DMARC policy.',
    },
    arc: { result: 'none' },
  },
};
const { text: _text, html: _html, headers: _headers, ...summary } = message;

export const storedSummary = write(summary);
export const storedEvent = write({
  message,
  rawEmailEncoding: 'utf-8',
  rawEmailSize: '«size»',
  rawEmailSha256: '«sha256»',
});

function write(stored: object): string {
  return JSON.stringify(stored).replaceAll('"«size»"', '«size»');
}

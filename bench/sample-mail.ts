/** The message of the mail scenarios: 5 KB, text and HTML, with a valid DKIM signature. */
import { generateKeyPairSync } from 'node:crypto';
import { dkimSign } from 'mailauth/lib/dkim/sign.js';
import { recipient, sender } from './smtp-session.ts';

export interface SampleMail {
  /** The SMTP data with its final dot, and with `idPlace` in the Message-ID. */
  wire: string;
  /** The DNS names and TXT records of the sender. */
  records: Record<string, string>;
}

/** Mail of several senders, sent in this order and again from the start. */
export interface MailMix {
  /** `from`: the address of MAIL FROM. `wire`: as in `SampleMail`. */
  messages: { from: string; wire: string }[];
  records: Record<string, string>;
}

/** Is replaced with a different number of the same length in each message. */
export const idPlace = '0000000000000000';

const domain = sender.slice(sender.indexOf('@') + 1);
export const selector = 'bench';
const boundary = 'b1_5f0c7c3d';

export async function makeSampleMail(): Promise<SampleMail> {
  const { privateKey, publicKey } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'der' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });
  const message = writeMail({
    from: sender,
    name: 'Ada Lovelace',
    subject: '=?utf-8?Q?Your_order_1042_is_on_its_way_=E2=80=93_thank_you?=',
    text: lines(12, 'Your parcel =E2=80=93 no. '),
    html: `<html><body>\r\n${lines(20, '<p class=3D"item">Parcel no. ')}</body></html>\r\n`,
  });
  const signatures = await signMail(message, domain, privateKey);
  return {
    wire: `${signatures}${message}.\r\n`,
    records: {
      [domain]: 'v=spf1 ip4:127.0.0.0/8 -all',
      [`${selector}._domainkey.${domain}`]: `v=DKIM1; k=rsa; p=${publicKey.toString('base64')}`,
      [`_dmarc.${domain}`]: 'v=DMARC1; p=reject',
    },
  };
}

/** Returns the header fields of the signature. */
export async function signMail(message: string, domain: string, privateKey: string): Promise<string> {
  const signature = { signingDomain: domain, selector, privateKey };
  const { signatures } = await dkimSign(message, {
    // mailauth reads the list, but its types also require these options beside it.
    ...signature,
    signatureData: [signature],
    canonicalization: 'relaxed/relaxed',
    // Without the Message-ID, which differs in each message.
    headerList: 'From:To:Subject:Date:MIME-Version:Content-Type',
  });
  if (signatures === '') throw new Error('Signing the sample message failed');
  return signatures;
}

/** `text` and `html` are quoted-printable. */
export function writeMail(given: {
  from: string;
  name: string;
  subject: string;
  text: string;
  html: string;
}): string {
  const domain = given.from.slice(given.from.indexOf('@') + 1);
  const head = [
    `Received: from app-3.${domain} (app-3.${domain} [192.0.2.17])`,
    ` by mx.${domain} with ESMTPS id 4XyZ12 for <${recipient}>; Sat, 15 Nov 2025 05:00:01 +0000 (UTC)`,
    `From: ${given.name} <${given.from}>`,
    `To: Inbox <${recipient}>`,
    `Subject: ${given.subject}`,
    'Date: Sat, 15 Nov 2025 05:00:00 +0000',
    `Message-ID: <${idPlace}@${domain}>`,
    `Reply-To: Support <support@${domain}>`,
    `List-Unsubscribe: <https://${domain}/unsubscribe/1042>`,
    'X-Mailer: Bench',
    'MIME-Version: 1.0',
    `Content-Type: multipart/alternative; boundary="${boundary}"`,
  ];
  const parts = part('plain', given.text) + part('html', given.html);
  return `${head.join('\r\n')}\r\n\r\n${parts}--${boundary}--\r\n`;
}

function part(subtype: string, body: string): string {
  const encoding = 'Content-Transfer-Encoding: quoted-printable';
  return `--${boundary}\r\nContent-Type: text/${subtype}; charset=utf-8\r\n${encoding}\r\n\r\n${body}`;
}

function lines(count: number, start: string): string {
  const rest = ' left our house this morning and is with the=\r\n carrier now; it will arrive soon.\r\n';
  return Array.from({ length: count }, (_, n) => `${start}${n}${rest}`).join('');
}

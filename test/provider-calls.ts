/** Calls as the providers make them, signed with keys of the test's own. */
import { createHmac, generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto';
import { readFileSync } from 'node:fs';

export interface Call {
  body: string | Buffer;
  headers: Record<string, string>;
}

const json = { 'content-type': 'application/json' };
const seconds = (date = new Date()) => Math.floor(date.getTime() / 1000);

export const postmark = {
  credentials: { serverToken: 'a-server-token' },
  inbound: (recipient: string, raw: string, change: Record<string, unknown> = {}): Call => ({
    headers: json,
    body: JSON.stringify({
      MessageID: randomBytes(16).toString('hex'),
      OriginalRecipient: recipient,
      Headers: [{ Name: 'Return-Path', Value: '<sender@elsewhere.example>' }],
      RawEmail: raw,
      ...change,
    }),
  }),
  event: (fields: Record<string, unknown>): Call => ({ headers: json, body: JSON.stringify(fields) }),
};

interface MailgunSigning {
  key?: string;
  timestamp?: string | number;
  token?: string;
}

const mailgunKey = randomBytes(16).toString('hex');
export const mailgun = {
  credentials: { username: 'postmaster@mg.example', password: 'pw', signingKey: mailgunKey, region: 'eu' },
  sign({
    key = mailgunKey,
    timestamp = seconds(),
    token = randomBytes(25).toString('hex'),
  }: MailgunSigning = {}) {
    const signature = createHmac('sha256', key).update(`${timestamp}${token}`).digest('hex');
    return { timestamp: String(timestamp), token, signature };
  },
  inbound(recipient: string, raw: string | Buffer, signed: Record<string, string> = mailgun.sign()): Call {
    return writeMultipart({ recipient, sender: 'sender@elsewhere.example', ...signed, 'body-mime': raw });
  },
  event(data: Record<string, unknown>, signature: Record<string, string> = mailgun.sign()): Call {
    return { headers: json, body: JSON.stringify({ signature, 'event-data': data }) };
  },
};

export function writeMultipart(fields: Record<string, string | Buffer>): Call {
  const boundary = `b${randomBytes(8).toString('hex')}`;
  const parts = Object.entries(fields).flatMap(([name, value]) => [
    `--${boundary}\r\nContent-Disposition: form-data; name="${name}"\r\n\r\n`,
    value,
    '\r\n',
  ]);
  return {
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
    body: Buffer.concat([...parts, `--${boundary}--\r\n`].map((part) => Buffer.from(part as string))),
  };
}

const p256 = () => generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
const toBase64 = (key: KeyObject) => key.export({ type: 'spki', format: 'der' }).toString('base64');
const [eventKeys, inboundKeys] = [p256(), p256()];
export const sendgrid = {
  credentials: {
    apiKey: 'SG.key',
    verificationKey: toBase64(eventKeys.publicKey),
    inboundVerificationKey: toBase64(inboundKeys.publicKey),
  },
  keys: { events: eventKeys.privateKey, inbound: inboundKeys.privateKey, other: p256().privateKey },
  sign({ body, headers }: Call, key: KeyObject, timestamp: string | number = seconds()): Call {
    const signed = Buffer.concat([Buffer.from(String(timestamp)), Buffer.from(body as string)]);
    return {
      body,
      headers: {
        ...headers,
        'x-twilio-email-event-webhook-timestamp': String(timestamp),
        'x-twilio-email-event-webhook-signature': sign('sha256', signed, key).toString('base64'),
      },
    };
  },
  inbound(to: string[], raw: string | Buffer): Call {
    const envelope = JSON.stringify({ to, from: 'sender@elsewhere.example' });
    return writeMultipart({ envelope, email: raw, to: 'Somebody <header@other.example>' });
  },
  events: (...events: Record<string, unknown>[]): Call => ({ headers: json, body: JSON.stringify(events) }),
};

const topicArn = 'arn:aws:sns:us-east-1:123456789012:mail';
export const snsHost = 'sns.us-east-1.amazonaws.com';
const fixture = (name: string) => readFileSync(new URL(`fixtures/sns/${name}`, import.meta.url), 'utf8');
export const snsCertificate = fixture('signer.pem');
const snsKey = fixture('signer-key.pem');

interface SnsSigning {
  key?: string | KeyObject;
  version?: '1' | '2';
}

export const ses = {
  credentials: { username: 'AKIA', password: 'pw', region: 'us-east-1', topicArn },
  otherKey: generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey,
  /** Signed as documented: these fields by name, each name and value on a line of its own. */
  sign(change: Record<string, string>, { key = snsKey, version = '1' }: SnsSigning = {}): Call {
    const message: Record<string, string> = {
      Type: 'Notification',
      MessageId: randomBytes(16).toString('hex'),
      TopicArn: topicArn,
      Timestamp: new Date().toISOString(),
      Message: '{}',
      SigningCertURL: `https://${snsHost}/SimpleNotificationService-0123456789abcdef.pem`,
      ...change,
    };
    const names = [
      'Message',
      'MessageId',
      'Subject',
      'SubscribeURL',
      'Timestamp',
      'Token',
      'TopicArn',
      'Type',
    ];
    const text = names.map((name) => (name in message ? `${name}\n${message[name]}\n` : '')).join('');
    const Signature = sign(version === '1' ? 'sha1' : 'sha256', Buffer.from(text), key).toString('base64');
    const body = JSON.stringify({ ...message, SignatureVersion: version, Signature });
    return { headers: { 'content-type': 'text/plain; charset=UTF-8' }, body };
  },
  received: (recipients: string[], raw: string | Buffer, encoding = 'BASE64') =>
    JSON.stringify({
      notificationType: 'Received',
      mail: { source: 'sender@elsewhere.example', destination: ['header@other.example'] },
      receipt: { recipients, action: { type: 'SNS', encoding } },
      content: encoding === 'BASE64' ? Buffer.from(raw).toString('base64') : String(raw),
    }),
};

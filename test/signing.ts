/** Shared by the tests of mail authentication: a DNS server and senders that sign. */
import assert from 'node:assert/strict';
import { generateKeyPairSync, type KeyObject } from 'node:crypto';
import { dkimSign } from 'mailauth/lib/dkim/sign.js';
import { type MailOrigin, makeAuthenticate, type Verify } from '../src/mailauth/authenticate.ts';
import { startDns } from './dns.ts';

/** For all files of a process: each file resets it before each of its tests. */
export const dns = await startDns();
dns.unref();

export const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 });
export const otherRsa = generateKeyPairSync('rsa', { modulusLength: 2048 });

export const smtp: MailOrigin = {
  mailFrom: 'ada@example.com',
  remoteIp: '192.0.2.7',
  helo: 'mail.example.com',
};
export const overHttp: MailOrigin = { mailFrom: null, remoteIp: null, helo: null };
export const plain = [
  'From: Ada <ada@example.com>',
  'To: bob@example.net',
  'Subject: Notes on the engine',
  '',
  'It weaves algebraic patterns.',
  'Nothing else.',
  '',
].join('\r\n');

/** With an empty DNS cache. The deadline is far away: a test that is about it gives its own. */
export function checkWithReasons(
  raw: Buffer | string,
  envelope: MailOrigin = overHttp,
  deadlineMs = 60_000,
  verify?: Verify,
) {
  const authenticate = makeAuthenticate({
    dnsServers: [dns.address],
    mailHost: 'mx.example.net',
    deadlineMs,
  });
  return authenticate(Buffer.from(raw), envelope, verify);
}

/** The results without the sentences: each result that needs a reason has one. */
export async function check(...parameters: Parameters<typeof checkWithReasons>) {
  const { dkim, dmarc, ...results } = await checkWithReasons(...parameters);
  const { reason, ...decision } = dmarc;
  assert.equal(reason === null, ['pass', 'none'].includes(dmarc.result), `${dmarc.result}: ${reason}`);
  return {
    ...results,
    dmarc: decision,
    dkim: dkim.map(({ result, reason, domain, selector, aligned }) => {
      assert.equal(reason === null, result === 'pass', `${result}: ${reason}`);
      return { result, domain, selector, aligned };
    }),
  };
}

export async function checkDkim(raw: Buffer | string, deadlineMs?: number) {
  return (await check(raw, overHttp, deadlineMs)).dkim;
}

export async function sign(
  message: string,
  options: {
    domain?: string;
    selector?: string;
    key?: KeyObject;
    expires?: Date;
    maxBodyLength?: number;
    canonicalization?: string;
  } = {},
): Promise<string> {
  const { domain = 'example.com', selector = 's1', key = rsa.privateKey, expires, maxBodyLength } = options;
  const { canonicalization = 'relaxed/relaxed' } = options;
  const { signatures, errors } = await dkimSign(message, {
    canonicalization,
    signatureData: [
      {
        signingDomain: domain,
        selector,
        privateKey: key.export({ type: 'pkcs8', format: 'pem' }) as string,
        ...(maxBodyLength !== undefined && { maxBodyLength }),
      },
    ],
    ...(expires && { expires, signTime: new Date(expires.getTime() - 3_600_000) }),
  } as unknown as Parameters<typeof dkimSign>[1]);
  assert.deepEqual(errors, []);
  return signatures + message;
}

export function publish(key: KeyObject, { domain = 'example.com', selector = 's1' } = {}): void {
  const der = key.export({ type: 'spki', format: 'der' });
  const type = key.asymmetricKeyType === 'ed25519' ? 'ed25519' : 'rsa';
  const value = (type === 'ed25519' ? der.subarray(-32) : der).toString('base64');
  dns.answer(`${selector}._domainkey.${domain}`, { TXT: [`v=DKIM1; k=${type}; p=${value}`] });
}

export const none = { result: 'none', policy: null, aligned: null };

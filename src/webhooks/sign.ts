/** The signature of Standard Webhooks, version 1: HMAC-SHA256 over `id.timestamp.body`, one for each active secret. */
import { createHmac, createSecretKey, type KeyObject } from 'node:crypto';

/** The key of a secret `whsec_<base64>`. Made once for each secret: an HMAC takes 28 µs from bytes, and 6 µs from a KeyObject. */
export function signingKey(secret: string): KeyObject {
  return createSecretKey(Buffer.from(secret.slice('whsec_'.length), 'base64'));
}

export function signatureHeaders(
  id: string,
  timestampSeconds: number,
  body: Buffer,
  keys: readonly KeyObject[],
) {
  const prefix = `${id}.${timestampSeconds}.`;
  const signatures = keys.map(
    (key) => `v1,${createHmac('sha256', key).update(prefix).update(body).digest('base64')}`,
  );
  return {
    'webhook-id': id,
    'webhook-timestamp': String(timestampSeconds),
    'webhook-signature': signatures.join(' '),
  };
}

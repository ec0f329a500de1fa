/** The signature of Standard Webhooks, version 1: HMAC-SHA256 over `id.timestamp.body`, one for each active secret. */
import { createHmac } from 'node:crypto';

/** The key in a secret of the form `whsec_<base64>`. */
export function signingKey(secret: string): Buffer {
  return Buffer.from(secret.slice('whsec_'.length), 'base64');
}

export function signatureHeaders(
  id: string,
  timestampSeconds: number,
  body: Buffer,
  keys: readonly Buffer[],
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

// @ts-check
/**
 * Verifies the signature of a webhook call (Standard Webhooks). Copy this file into your receiver: it needs only Node 20 or newer.
 * It is an ES module: name it verify.mjs where package.json does not have "type": "module".
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

/**
 * `body` must be the received bytes: JSON that was parsed and written again has another signature.
 * @param {string} secret `whsec_…`
 * @param {import('node:http').IncomingHttpHeaders} headers
 * @param {Buffer} body
 * @returns {boolean}
 */
export function verify(secret, headers, body) {
  const { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signatures } = headers;
  // More than five minutes from now: an attacker may have sent an old call again.
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) < 300)) return false;
  const key = Buffer.from(secret.slice('whsec_'.length), 'base64');
  const expected = createHmac('sha256', key).update(`${id}.${timestamp}.`).update(body).digest();
  // After a secret was rotated, a call has two signatures for 24 hours.
  return String(signatures)
    .split(' ')
    .filter((signature) => signature.startsWith('v1,'))
    .map((signature) => Buffer.from(signature.slice('v1,'.length), 'base64'))
    .some((given) => given.length === expected.length && timingSafeEqual(given, expected));
}

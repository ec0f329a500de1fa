/** Signatures, held against a verifier that we did not write. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { Webhook } from 'standardwebhooks';
import { makeSecret } from '../src/webhooks/secret.ts';
import { signatureHeaders, signingKey } from '../src/webhooks/sign.ts';
import { anyCharacter } from './any-character.ts';

const seconds = () => Math.floor(Date.now() / 1000);

function sign(id: string, body: Buffer, secrets: string[], at = seconds()) {
  return signatureHeaders(id, at, body, secrets.map(signingKey));
}

function verifies(secret: string, body: Buffer, headers: Record<string, string>): boolean {
  try {
    new Webhook(secret).verify(body, headers, { jsonParse: false });
    return true;
  } catch {
    return false;
  }
}

describe('signatures', () => {
  test('verify with the secret and with no other', () => {
    fc.assert(
      fc.property(fc.uuid(), fc.string({ unit: anyCharacter }), (id, text) => {
        const secret = makeSecret();
        const body = Buffer.from(text);
        const headers = sign(id, body, [secret]);
        assert.ok(verifies(secret, body, headers));
        assert.ok(!verifies(makeSecret(), body, headers));
      }),
      { numRuns: 50 },
    );
  });

  test('cover id, time and body', () => {
    const secret = makeSecret();
    const body = Buffer.from('{"event":"message.received","data":{}}');
    const headers = sign('one', body, [secret]);
    assert.ok(verifies(secret, body, headers));
    assert.ok(!verifies(secret, Buffer.from(`${body} `), headers));
    assert.ok(!verifies(secret, body, { ...headers, 'webhook-id': 'two' }));
    assert.ok(!verifies(secret, body, { ...headers, 'webhook-timestamp': String(seconds() - 1) }));
  });

  test('are told as old by the verifier when the try is', () => {
    const secret = makeSecret();
    const body = Buffer.from('{}');
    assert.ok(!verifies(secret, body, sign('one', body, [secret], seconds() - 3600)));
  });

  test('are those that the verifier itself would make', () => {
    const secret = makeSecret();
    const at = seconds();
    const signature = new Webhook(secret).sign('one', new Date(at * 1000), 'body');
    assert.equal(sign('one', Buffer.from('body'), [secret], at)['webhook-signature'], signature);
  });

  test('of several secrets stand side by side, the current one first, and each verifies', () => {
    const secrets = [makeSecret(), makeSecret(), makeSecret()];
    const body = Buffer.from('{"a":"é"}');
    const headers = sign('one', body, secrets);
    for (const secret of secrets) assert.ok(verifies(secret, body, headers));
    assert.ok(!verifies(makeSecret(), body, headers));
    const alone = secrets.map((secret) => sign('one', body, [secret])['webhook-signature']);
    assert.equal(headers['webhook-signature'], alone.join(' '));
  });
});

test('the headers have exactly the form of Standard Webhooks', () => {
  const headers = sign('018f', Buffer.from('{}'), [makeSecret(), makeSecret()], 1_769_860_800);
  assert.deepEqual(Object.keys(headers), ['webhook-id', 'webhook-timestamp', 'webhook-signature']);
  assert.equal(headers['webhook-id'], '018f');
  assert.equal(headers['webhook-timestamp'], '1769860800');
  assert.match(headers['webhook-signature'], /^v1,[A-Za-z0-9+/]{43}= v1,[A-Za-z0-9+/]{43}=$/);
});

test('a secret is whsec_ and 32 bytes in base64', () => {
  assert.match(makeSecret(), /^whsec_[A-Za-z0-9+/]{43}=$/);
  assert.equal(Buffer.from(makeSecret().slice('whsec_'.length), 'base64').length, 32);
});

/** Mail from a Postfix that requires TLS. */
import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { root } from '../programs.ts';
import { startMailroom } from './mailroom.ts';
import { startPostfix } from './postfix.ts';

const tlsFiles = path.join(root, 'test/fixtures/tls');
const room = await startMailroom({
  POSTHORN_TLS_CERT: path.join(tlsFiles, 'receiver-good.pem'),
  POSTHORN_TLS_KEY: path.join(tlsFiles, 'receiver-good-key.pem'),
});
const postfix = await startPostfix(room.service.smtpPort, {
  smtp_tls_security_level: 'secure',
  smtp_tls_secure_cert_match: 'hooks.example',
  smtp_tls_CAfile: path.join(tlsFiles, 'receiver-ca.pem'),
  smtp_tls_mandatory_protocols: '<=TLSv1.2',
  smtp_tls_loglevel: '1',
});
const selfSignedRoom = await startMailroom();
const lenientPostfix = await startPostfix(selfSignedRoom.service.smtpPort, {
  smtp_tls_security_level: 'encrypt',
});

function compose(subject: string) {
  const message = `From: ada@client.example\nSubject: ${subject}\n\nx\n`;
  return { from: 'ada@client.example', to: ['sales@shop.example'], message };
}

test("it verifies the operator's certificate", async () => {
  await room.addIdentity('sales@shop.example');
  await postfix.send(compose('verified'));
  const [{ message } = assert.fail()] = await room.announced('verified');
  assert.equal(message.envelope.tls.version, 'TLSv1.2');
  await postfix.logged(/Verified TLS connection established to 127\.0\.0\.1/);
});

test('it takes the certificate that we make where it only wants encryption', async () => {
  await selfSignedRoom.addIdentity('sales@shop.example');
  await lenientPostfix.send(compose('encrypted'));
  const [{ message } = assert.fail()] = await selfSignedRoom.announced('encrypted');
  assert.equal(message.envelope.tls.version, 'TLSv1.3');
  assert.match(message.envelope.tls.cipher, /^TLS_/);
});

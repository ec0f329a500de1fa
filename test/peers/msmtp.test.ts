/** Mail from msmtp, which people run by hand and from scripts. */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, test } from 'node:test';
import { root } from '../programs.ts';
import { startMailroom } from './mailroom.ts';
import { type Ended, execute, makePeerFolder } from './programs.ts';

const tlsFiles = path.join(root, 'test/fixtures/tls');
const room = await startMailroom({
  POSTHORN_TLS_CERT: path.join(tlsFiles, 'receiver-good.pem'),
  POSTHORN_TLS_KEY: path.join(tlsFiles, 'receiver-good-key.pem'),
});
await room.addIdentity('sales@shop.example');
const folder = makePeerFolder('msmtp');
after(() => folder.remove());
const config = path.join(folder.path, 'config');
await writeFile(config, 'defaults\n');

function msmtp(args: string[], subject: string, body = 'x\n'): Promise<Ended> {
  const server = ['--host=127.0.0.1', `--port=${room.service.smtpPort}`, '--domain=laptop.example'];
  const message = `From: ada@client.example\nTo: sales@shop.example\nSubject: ${subject}\n\n${body}`;
  return execute(
    'msmtp',
    [`--file=${config}`, ...server, '--from=ada@client.example', '--timeout=20', ...args],
    message,
  );
}

const trusting = [
  '--tls=on',
  '--tls-starttls=on',
  `--tls-trust-file=${path.join(tlsFiles, 'receiver-ca.pem')}`,
];

test('a message in the clear', async () => {
  const { code, output } = await msmtp(['sales@shop.example'], 'in the clear', '.\nGrüße\n');
  assert.equal(code, 0, output);
  const [{ message, rawEmail } = assert.fail()] = await room.announced('in the clear');
  assert.match(rawEmail, /\r\n\r\n\.\r\nGrüße\r\n$/);
  assert.equal(message.envelope.tls, null);
  assert.equal(message.envelope.helo, 'laptop.example');
});

test("Python's smtplib sends bare line ends, and doubles dots after them", async () => {
  const program = [
    'import smtplib, sys',
    "message = b'Subject: smtplib\\n\\n.one\\n..two\\n.\\nend\\n'",
    "smtplib.SMTP('127.0.0.1', int(sys.argv[1])).sendmail('ada@client.example', ['sales@shop.example'], message)",
  ];
  const { code, output } = await execute('python3', ['-c', program.join('\n'), `${room.service.smtpPort}`]);
  assert.equal(code, 0, output);
  const [{ rawEmail } = assert.fail()] = await room.announced('smtplib');
  assert.equal(rawEmail, 'Subject: smtplib\n\n.one\n..two\n.\nend\n\r\n');
});

test("STARTTLS with the operator's certificate verified", async () => {
  const { code, output } = await msmtp([...trusting, 'sales@shop.example'], 'trusting');
  assert.equal(code, 0, output);
  const [{ message } = assert.fail()] = await room.announced('trusting');
  assert.equal(message.envelope.tls.version, 'TLSv1.3');
});

test('it tells what its server can', async () => {
  const { code, output } = await msmtp(['--serverinfo', ...trusting], '');
  assert.equal(code, 0, output);
  for (const capability of [/SIZE 26214400/, /PIPELINING/, /STARTTLS/]) assert.match(output, capability);
  assert.doesNotMatch(output, /AUTH/);
});

test('an unknown recipient is told with our words', async () => {
  const { code, output } = await msmtp(['nobody@shop.example'], 'for nobody');
  assert.notEqual(code, 0);
  assert.match(output, /550 5\.1\.1 No such recipient/);
});

test('a message of 10 MB', async () => {
  const body = `${'0123456789'.repeat(7)}\n`.repeat(140_000);
  const { code, output } = await msmtp([...trusting, 'sales@shop.example'], 'big', body);
  assert.equal(code, 0, output);
  const [{ message } = assert.fail()] = await room.announced('big');
  assert.equal(message.attachments.length, 0);
  assert.ok(message.size > 10_000_000);
});

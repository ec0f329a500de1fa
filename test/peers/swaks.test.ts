/** SMTP sessions with swaks that mail servers seldom have. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from '../harness.ts';
import { startMailroom } from './mailroom.ts';
import { type Ended, execute } from './programs.ts';

const maxMessageBytes = 100_000;
const room = await startMailroom({ POSTHORN_MAX_MESSAGE_BYTES: String(maxMessageBytes) });
await room.addIdentity('sales@shop.example');
await room.addIdentity('many.example', { incoming_domain: true });

/** Exit codes of swaks. */
const done = 0;
const helloRefused = 22;
const recipientsRefused = 24;
const messageRefused = 26;
const noLogin = 28;

/** By default from ada to sales, with this subject; `args` override that. swaks adds a line end to the message. */
function swaks(subject: string, args: string[] = [], message = compose(subject)): Promise<Ended> {
  const plain = ['--server', '127.0.0.1', '--port', String(room.service.smtpPort), '--timeout', '20s'];
  const envelope = ['--from', 'ada@client.example', '--to', 'sales@shop.example', '--ehlo', 'client.example'];
  return execute('swaks', [...plain, ...envelope, '--data', '-', ...args], message);
}

function compose(subject: string, body = 'x', more = ''): string {
  return `From: Ada <ada@client.example>\n${more}Subject: ${subject}\n\n${body}`;
}

async function announcedOnce(subject: string) {
  const [{ message, rawEmail } = assert.fail()] = await room.announced(subject);
  assert.equal(await room.countStored(subject), 1);
  return { message, rawEmail };
}

test('pipelining: the unknown among the recipients is refused, the rest get it', async () => {
  const to = 'nobody@shop.example,sales@shop.example,nobody2@shop.example';
  const { code, output } = await swaks('pipelined', ['--pipeline', '--to', to]);
  assert.equal(code, done, output);
  assert.equal(output.match(/<\*\* 550 5\.1\.1 /g)?.length, 2, output);
  const { message } = await announcedOnce('pipelined');
  assert.deepEqual(message.envelope.rcptTo, ['sales@shop.example']);
});

test('pipelining to nobody we know: DATA is refused as well', async () => {
  const { code, output } = await swaks('to nobody', ['--pipeline', '--to', 'nobody@shop.example']);
  assert.equal(code, recipientsRefused, output);
  assert.match(output, /<\*\* 550 5\.1\.1 /);
  assert.match(output, /<\*\* 554 5\.5\.1 /);
  assert.equal(await room.countStored('to nobody'), 0);
});

test('no relay: the rest of the world is unknown too', async () => {
  const { code, output } = await swaks('relay', ['--to', 'someone@elsewhere.example']);
  assert.equal(code, recipientsRefused, output);
  assert.match(output, /<\*\* 550 5\.1\.1 /);
});

test('a message that turns out too big is read and refused', async () => {
  const big = compose('too big', `${'x'.repeat(70)}\n`.repeat((maxMessageBytes * 1.5) / 71));
  const { code, output } = await swaks('too big', ['--hide-send'], big);
  assert.equal(code, messageRefused, output);
  assert.match(output, /<\*\* 552 5\.3\.4 .*100000 bytes/);
  assert.equal(await room.countStored('too big'), 0);
});

for (const version of ['1.2', '1.3']) {
  test(`STARTTLS with TLS ${version}`, async () => {
    const subject = `over TLS ${version}`;
    const { code, output } = await swaks(subject, [
      '--tls',
      '--tls-protocol',
      `tlsv${version.replace('.', '_')}`,
    ]);
    assert.equal(code, done, output);
    assert.equal((await announcedOnce(subject)).message.envelope.tls.version, `TLSv${version}`);
  });
}

test('the empty sender, and HELO as of old', async () => {
  const { code, output } = await swaks('from nobody', ['--from', '<>', '--protocol', 'SMTP']);
  assert.equal(code, done, output);
  const { message } = await announcedOnce('from nobody');
  assert.equal(message.envelope.mailFrom, null);
  assert.equal(message.envelope.helo, 'client.example');
});

test('one recipient too many is for another message', async () => {
  const to = Array.from({ length: 101 }, (_, n) => `user${n}@many.example`);
  const { code, output } = await swaks('many recipients', ['--pipeline', '--to', to.join(',')]);
  assert.equal(code, done, output);
  assert.equal(output.match(/<\*\* 452 4\.5\.3 /g)?.length, 1, output);
  const { message } = await announcedOnce('many recipients');
  assert.deepEqual(message.envelope.rcptTo, to.slice(0, 100));
});

test('there is no login', async () => {
  const { code, output } = await swaks('login', [
    '--auth',
    'LOGIN',
    '--auth-user',
    'a',
    '--auth-password',
    'b',
  ]);
  assert.equal(code, noLogin, output);
  assert.doesNotMatch(output, /250[- ]AUTH/);
});

test('LMTP is not spoken', async () => {
  const { code, output } = await swaks('local', ['--protocol', 'LMTP']);
  assert.equal(code, helloRefused, output);
  assert.match(output, /<\*\* 500 5\.5\.2 /);
});

test('dots travel doubled and come back single', async () => {
  const { code, output } = await swaks('dots', [], compose('dots', '.\n..\n.x'));
  assert.equal(code, done, output);
  const { message } = await announcedOnce('dots');
  assert.equal(message.text, '.\n..\n.x\n');
});

test('bare line ends around a dot conjure no second message', async () => {
  const hidden =
    'MAIL FROM:<a@b.example>\r\nRCPT TO:<sales@shop.example>\r\nDATA\r\nSubject: smuggled\r\n\r\n';
  for (const [n, end] of ['\n.\n', '\n.\r\n', '\r.\r', '\r\n.\r', '\r\n.\n'].entries()) {
    const subject = `smuggler ${n}`;
    const wire = `Subject: ${subject}\r\n\r\nx${end}${hidden}\r\n.\r\n`;
    const { code, output } = await swaks(subject, ['--no-data-fixup'], wire);
    assert.equal(code, done, output);
    await announcedOnce(subject);
  }
  assert.equal(await room.countStored('smuggled'), 0);
});

test('who leaves before the final dot has sent nothing', async () => {
  const { output } = await swaks('unfinished', ['--drop-after', 'DATA']);
  assert.match(output, / 354 /);
  assert.equal(await room.countStored('unfinished'), 0);
});

test('who leaves without hearing the 250 and sends again has sent one message', async () => {
  const message = compose('again', 'x', 'Message-ID: <again@client.example>\n');
  await swaks('again', ['--drop-after-send', 'DOT'], message);
  await waitFor('the message', async () => (await room.countStored('again')) === 1);
  const { code, output } = await swaks('again', [], message);
  assert.equal(code, done, output);
  await announcedOnce('again');
});

/** Mail from Postfix: what it sends, and what it does when the service refuses or defers a message. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from '../harness.ts';
import { connectSmtp } from '../smtp-client.ts';
import { startMailroom } from './mailroom.ts';
import { startPostfix } from './postfix.ts';

const room = await startMailroom();
const postfix = await startPostfix(room.service.smtpPort);
await room.addIdentity('sales@shop.example');

function compose(subject: string, body: string): string {
  return `From: Ada <ada@client.example>\nTo: sales@shop.example\nSubject: ${subject}\n\n${body}`;
}

test('messages arrive with what was written', async () => {
  const bodies = [
    'plain\n',
    '',
    '.\n..\n.a dot first\n',
    `a long line: ${'x'.repeat(950)}\n`,
    'Grüße, 8-bit\n',
    'no line end',
  ];
  for (const [n, body] of bodies.entries()) {
    const message = compose(`content ${n}`, body);
    await postfix.send({ from: 'ada@client.example', to: ['sales@shop.example'], message });
  }
  for (const [n, body] of bodies.entries()) {
    const [{ message, rawEmail } = assert.fail()] = await room.announced(`content ${n}`);
    const got = rawEmail.slice(rawEmail.indexOf('\r\n\r\n') + 4);
    assert.equal(got, body.replace(/\n?$/, body === '' ? '' : '\n').replaceAll('\n', '\r\n'));
    assert.deepEqual(message.from, { name: 'Ada', address: 'ada@client.example' });
    assert.deepEqual(message.envelope, {
      mailFrom: 'ada@client.example',
      rcptTo: ['sales@shop.example'],
      remoteIp: '127.0.0.1',
      helo: 'relay.example',
      tls: null,
    });
    assert.match(rawEmail, /^Received: by relay\.example \(Postfix/);
  }
});

test('recipients of one message are one message for each identity', async () => {
  await room.addIdentity('one@shop.example');
  await room.addIdentity('two@shop.example');
  const to = ['one+a@shop.example', 'two@shop.example', 'one+b@shop.example'];
  await postfix.send({ from: 'ada@client.example', to, message: compose('several', 'x\n') });
  const all = await room.announced('several', 2);
  const recipients = all.map(({ message }) => message.envelope.rcptTo.toSorted());
  assert.deepEqual(recipients.sort(), [['one+a@shop.example', 'one+b@shop.example'], ['two@shop.example']]);
  assert.equal(await room.countStored('several'), 2);
});

test('an address beyond ASCII comes with SMTPUTF8', async () => {
  await room.addIdentity('grüße@bücher.example');
  const message = compose('Straße', 'x\n').replace('sales@shop.example', 'grüße@bücher.example');
  await postfix.send({ from: 'ådå@client.example', to: ['grüße@bücher.example'], message });
  const [{ message: got } = assert.fail()] = await room.announced('Straße');
  assert.equal(got.envelope.mailFrom, 'ådå@client.example');
  assert.deepEqual(got.to, [{ name: null, address: 'grüße@bücher.example' }]);
});

test('an unknown recipient bounces, and the bounce is mail like any other', async () => {
  await room.addIdentity('bounces@shop.example');
  const message = compose('for nobody', 'x\n');
  await postfix.send({
    from: 'bounces@shop.example',
    to: ['nobody@shop.example', 'sales@shop.example'],
    message,
  });
  await postfix.logged(/to=<nobody@shop\.example>.* dsn=5\.1\.1, status=bounced .*said: 550 5\.1\.1/);
  assert.equal((await room.announced('for nobody')).length, 1);
  const [{ message: bounce } = assert.fail()] = await room.announced('Undelivered Mail Returned to Sender');
  assert.equal(bounce.envelope.mailFrom, null);
  assert.deepEqual(bounce.envelope.rcptTo, ['bounces@shop.example']);
  assert.equal(bounce.autoSubmitted, 'auto-replied');
  const { type, original, recipients } = bounce.report;
  assert.deepEqual([type, original.subject], ['delivery-status', 'for nobody']);
  assert.deepEqual(
    recipients.map(({ address, action, status }: Record<string, string>) => [address, action, status]),
    [['nobody@shop.example', 'failed', '5.1.1']],
  );
  assert.match(recipients[0].diagnostic, /^550 5\.1\.1 /);
  assert.match(bounce.text, /<nobody@shop\.example>: host 127\.0\.0\.1.*said: 550 5\.1\.1/s);
  await waitFor('an empty queue', async () => (await postfix.queue()).length === 0);
});

test('a 450 makes it keep the mail and bring it when it is settled whose address it is', async () => {
  const other = await room.service.makeUser();
  await room.addIdentity('contested@shop.example');
  const theirs = await room.addIdentity('contested@shop.example', {}, other);
  const message = compose('contested', 'x\n');
  await postfix.send({ from: 'ada@client.example', to: ['contested@shop.example'], message });
  await postfix.logged(/to=<contested@shop\.example>.* dsn=4\.2\.1, status=deferred .*said: 450 4\.2\.1/);
  assert.equal(await room.countStored('contested'), 0);
  const deleted = await room.service.call('DELETE', `/identities/${theirs}`, { as: other });
  assert.ok(deleted.status < 300, deleted.text);
  // The SMTP listener may use its cached recipients for a moment.
  const client = await connectSmtp(room.service.smtpPort);
  await client.envelope('ada@client.example');
  await waitFor('the address to be settled', async () => {
    return (await client.command('RCPT TO:<contested@shop.example>')).status === 250;
  });
  await postfix.flush();
  assert.equal((await room.announced('contested')).length, 1);
  await waitFor('an empty queue', async () => (await postfix.queue()).length === 0);
  assert.equal(await room.countStored('contested'), 1);
});
